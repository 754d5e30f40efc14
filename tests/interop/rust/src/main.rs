//! The published buffer, driven line by line: one JSON request on standard input, one JSON answer
//! on standard output. Bytes travel as hex.
//!
//!     buffer-v1 produce BUCKET MANIFEST PREFIX none|zstd
//!         {"do": "produce", "records": [HEX, …], "metadata": HEX}, {"do": "flush"}
//!     buffer-v1 consume BUCKET MANIFEST PREFIX LAST_ACKED_SEQUENCE|- GC_INTERVAL_MS|-
//!         {"do": "next"}, {"do": "descriptors", "max": N}, {"do": "ack", "sequence": N},
//!         {"do": "ack_through", "sequence": N}, {"do": "flush"}
//!     buffer-v1 parse
//!         {"do": "manifest", "data": HEX}
//!
//! BUCKET may be BUCKET/ROOT: all other keys are then relative to ROOT. With a GC_INTERVAL_MS the
//! consumer collects garbage of any age; without, none.
//!
//! A first line says that the producer or consumer is open; the end of the input closes it, and a
//! last line says how that went (`parse` has neither). What the library answers with an error is answered with
//! {"error": KIND, "message": TEXT}, and the session goes on.

use std::env;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use buffer::{
    BatchDescriptor, CompressionType, Consumer, ConsumerConfig, Error, Metadata, Producer,
    ProducerConfig, parse_manifest,
};
use bytes::Bytes;
use common::ObjectStoreConfig;
use common::clock::SystemClock;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::prefix::PrefixStore;
use serde_json::{Value, json};

/// Long enough that nothing happens but what the test asks for.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
const FLUSH_SIZE_BYTES: usize = 64 * 1024 * 1024;
const MAX_BUFFERED_INPUTS: usize = 1000;

// Reading a request blocks this thread; connections and the library's tasks live on another.
#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match given.as_slice() {
        ["produce", bucket, manifest, prefix, compression] => {
            produce(store(bucket), manifest, prefix, compression).await
        }
        [
            "consume",
            bucket,
            manifest,
            prefix,
            last_acked,
            gc_interval_ms,
        ] => {
            let (last_acked, gc_interval_ms) = (number(last_acked), number(gc_interval_ms));
            consume(store(bucket), manifest, prefix, last_acked, gc_interval_ms).await
        }
        ["parse"] => parse(),
        _ => panic!("what to do? see the top of main.rs"),
    }
}

/// The address and the credentials come from the environment, as for every other client.
fn store(bucket: &str) -> Arc<dyn ObjectStore> {
    let (bucket, root) = bucket.split_once('/').unwrap_or((bucket, ""));
    let built = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .build();
    let whole = built.expect("the environment says how to reach the store");
    if root.is_empty() {
        return Arc::new(whole);
    }
    Arc::new(PrefixStore::new(whole, root))
}

fn number(text: &str) -> Option<u64> {
    (text != "-").then(|| text.parse().expect("a number, or - for none"))
}

async fn produce(store: Arc<dyn ObjectStore>, manifest: &str, prefix: &str, compression: &str) {
    let config = ProducerConfig {
        object_store: ObjectStoreConfig::InMemory, // not looked at: the store is given
        data_path_prefix: prefix.to_string(),
        manifest_path: manifest.to_string(),
        flush_interval: NEVER,
        flush_size_bytes: FLUSH_SIZE_BYTES,
        max_buffered_inputs: MAX_BUFFERED_INPUTS,
        batch_compression: match compression {
            "none" => CompressionType::None,
            "zstd" => CompressionType::Zstd,
            other => panic!("no compression is called {other}"),
        },
    };
    let opened = Producer::with_object_store(config, store, Arc::new(SystemClock));
    let Some(producer) = opened_or_said(opened) else {
        return;
    };
    for request in requests() {
        let done = match request["do"].as_str() {
            Some("produce") => {
                let records = request["records"].as_array().expect("records");
                let entries = records.iter().map(bytes_of).collect();
                let handle = producer
                    .produce(entries, bytes_of(&request["metadata"]))
                    .await;
                handle.map(|handle| json!({"ingestion_time_ms": handle.ingestion_time_ms}))
            }
            Some("flush") => producer.flush().await.map(|()| json!({})),
            _ => panic!("not a request: {request}"),
        };
        answer(done);
    }
    let conflict_rate = producer.conflict_rate();
    answer(
        producer
            .close()
            .await
            .map(|()| json!({"closed": true, "conflict_rate": conflict_rate})),
    );
}

async fn consume(
    store: Arc<dyn ObjectStore>,
    manifest: &str,
    prefix: &str,
    last_acked: Option<u64>,
    gc_interval_ms: Option<u64>,
) {
    let config = ConsumerConfig {
        object_store: ObjectStoreConfig::InMemory, // not looked at: the store is given
        manifest_path: manifest.to_string(),
        data_path_prefix: prefix.to_string(),
        gc_interval: gc_interval_ms.map_or(NEVER, Duration::from_millis),
        gc_grace_period: gc_interval_ms.map_or(NEVER, |_| Duration::ZERO),
    };
    let opened = Consumer::with_object_store(config, store, last_acked).await;
    let Some(mut consumer) = opened_or_said(opened) else {
        return;
    };
    for request in requests() {
        let sequence = request["sequence"].as_u64();
        let done = match request["do"].as_str() {
            Some("next") => consumer.next_batch().await.map(|next| match next {
                None => Value::Null,
                Some(batch) => json!({
                    "sequence": batch.sequence,
                    "location": batch.location,
                    "records": batch.entries.iter().map(hex::encode).collect::<Vec<_>>(),
                    "metadata": batch.metadata.iter().map(metadata).collect::<Vec<_>>(),
                }),
            }),
            Some("descriptors") => {
                let max = request["max"].as_u64().expect("max") as usize;
                let found = consumer.next_descriptors(max).await;
                found.map(|found| found.iter().map(descriptor).collect())
            }
            Some("ack") => consumer
                .ack(sequence.expect("sequence"))
                .await
                .map(|()| json!({})),
            Some("ack_through") => {
                let done = consumer.ack_through(sequence.expect("sequence")).await;
                done.map(|()| json!({}))
            }
            Some("flush") => consumer
                .flush()
                .await
                .map(|()| json!({"pending": consumer.len()})),
            _ => panic!("not a request: {request}"),
        };
        answer(done);
    }
    answer(consumer.close().await.map(|()| json!({"closed": true})));
}

fn parse() {
    for request in requests() {
        answer(parse_manifest(bytes_of(&request["data"])).map(|view| {
            let entries = view.entries().iter().map(|entry| {
                json!({
                    "sequence": entry.sequence,
                    "location": entry.location,
                    "metadata": entry.metadata.iter().map(metadata).collect::<Vec<_>>(),
                })
            });
            json!({
                "epoch": view.epoch,
                "next_sequence": view.next_sequence,
                "entries": entries.collect::<Vec<_>>(),
            })
        }));
    }
}

fn metadata(item: &Metadata) -> Value {
    json!({
        "start_index": item.start_index,
        "ingestion_time_ms": item.ingestion_time_ms,
        "payload": hex::encode(&item.payload),
    })
}

fn descriptor(found: &BatchDescriptor) -> Value {
    json!({
        "sequence": found.sequence,
        "location": found.location,
        "metadata": found.metadata.iter().map(metadata).collect::<Vec<_>>(),
    })
}

fn bytes_of(value: &Value) -> Bytes {
    let text = value.as_str().expect("bytes are a string of hex");
    Bytes::from(hex::decode(text).expect("bytes are hex"))
}

fn requests() -> impl Iterator<Item = Value> {
    let lines = io::stdin().lock().lines();
    lines.map(|line| {
        let line = line.expect("standard input is readable");
        serde_json::from_str(&line).expect("a request is one line of JSON")
    })
}

fn opened_or_said<T>(opened: Result<T, Error>) -> Option<T> {
    match opened {
        Ok(thing) => {
            answer(Ok(json!({"opened": true})));
            Some(thing)
        }
        Err(error) => {
            answer(Err(error));
            None
        }
    }
}

fn answer(done: Result<Value, Error>) {
    let line = done.unwrap_or_else(|error| {
        let kind = match error {
            Error::Storage(_) => "storage",
            Error::Serialization(_) => "serialization",
            Error::InvalidInput(_) => "invalid_input",
            Error::Fenced => "fenced",
        };
        json!({"error": kind, "message": error.to_string()})
    });
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .expect("standard output is writable");
}
