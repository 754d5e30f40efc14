"""Apache Kafka: one KRaft broker from its published artifacts, through confluent-kafka."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from bench.peers._peer import (
    EACH,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consume,
    Peer,
    Produce,
    Records,
    joined,
    tabled,
)
from tests.interop.cache import Unavailable
from tests.interop.kafka_broker import JavaTools, KafkaBroker

HEAP = ("-Xms1g", "-Xmx1g")

READ_MESSAGES = 10_000
READ_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 30.0
FULL_POLL_S = 0.01
WARM_UP_TOPIC = "warm-up"
ONLY_ERRORS = 3
# librdkafka's default of 100,000 queued messages makes producer and consumer stop and go.
QUEUE_MESSAGES = 1_000_000
QUEUE_KBYTES = 262_144


class Kafka(Peer):
    """Topics of one partition; the producer is idempotent and waits for all replicas (one)."""

    name = "Kafka"
    promise = "process crash: acks=all with one broker, which by default never fsyncs a record"
    topic_settings: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._broker: KafkaBroker | None = None
        self._library: Any = None
        self._admin: Any = None
        self._servers = ""
        self._topics = itertools.count()
        self._topic = ""

    def start(self) -> None:
        try:
            self._library = importlib.import_module("confluent_kafka")
            admin = importlib.import_module("confluent_kafka.admin")
        except ImportError as error:
            raise Unavailable(f"{error}: install requirements/peers.txt") from error
        self._broker = KafkaBroker(self.folder, JavaTools.find(), options=HEAP)
        self._servers = self._broker.servers
        # Until the broker listens, every refused connection would be a line on the terminal.
        self._admin = admin.AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        self._broker.start(self._is_ready)

    @property
    def servers(self) -> str:
        """Where the broker listens."""
        return self._servers

    @property
    def topic(self) -> str:
        """What `empty` made last."""
        return self._topic

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.kill()

    def server_pids(self) -> Sequence[int]:
        pid = None if self._broker is None else self._broker.pid
        return () if pid is None else (pid,)

    def empty(self) -> None:
        if self._topic:
            self._wait(self._admin.delete_topics([self._topic]))
        self._topic = f"records-{next(self._topics)}"
        new_topic = importlib.import_module("confluent_kafka.admin").NewTopic
        topic = new_topic(self._topic, 1, 1, config=self.topic_settings)
        self._wait(self._admin.create_topics([topic]))

    def producing(self) -> dict[str, Produce]:
        return {EACH: self._each, LISTS: self._lists}

    def consuming(self) -> dict[str, Consume]:
        return {TO_BYTES: self._to_bytes, TO_ARROW: self._to_arrow}

    def _wait(self, futures: dict[str, Any]) -> None:
        for future in futures.values():
            future.result(CALL_TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            return bool(self._admin.list_topics(timeout=1.0).brokers)
        except self._library.KafkaException:
            return False

    def _producer(self) -> Any:
        """Connected, and in possession of its producer id, which can take half a second."""
        producer = self._library.Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "none",
                "queue.buffering.max.messages": QUEUE_MESSAGES,
                "queue.buffering.max.kbytes": QUEUE_KBYTES,
                "log_level": ONLY_ERRORS,
            }
        )
        producer.list_topics(self._topic, timeout=CALL_TIMEOUT_S)
        producer.produce(WARM_UP_TOPIC, b"")
        _settle(producer)
        return producer

    def _each(self, records: Records) -> Callable[[], None]:
        producer, topic = self._producer(), self._topic

        def run() -> None:
            produce = producer.produce
            for value in records.values:
                while True:
                    try:
                        produce(topic, value)
                        break
                    except BufferError:
                        producer.poll(FULL_POLL_S)
            _settle(producer)

        return run

    def _lists(self, records: Records) -> Callable[[], None]:
        producer, topic = self._producer(), self._topic

        def run() -> None:
            for values in records.lists:
                left = [{"value": value} for value in values]
                while left:
                    if producer.produce_batch(topic, left) == len(left):
                        break
                    producer.poll(FULL_POLL_S)
                    left = [message for message in left if message.pop("_error", None)]
            _settle(producer)

        return run

    def _consumer(self) -> Any:
        """Connected; it fetches nothing before it is assigned a partition."""
        consumer = self._library.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.min.messages": QUEUE_MESSAGES,
                "queued.max.messages.kbytes": QUEUE_KBYTES,
                "fetch.queue.backoff.ms": 5,
                "log_level": ONLY_ERRORS,
            }
        )
        partition = self._library.TopicPartition(self._topic, 0)
        consumer.get_watermark_offsets(partition, timeout=CALL_TIMEOUT_S)
        return consumer

    def _pages(self, consumer: Any, count: int) -> Iterator[list[bytes]]:
        library = self._library
        consumer.assign([library.TopicPartition(self._topic, 0, library.OFFSET_BEGINNING)])
        left, deadline_s = count, time.monotonic() + READ_TIMEOUT_S
        while left > 0 and time.monotonic() < deadline_s:
            messages = consumer.consume(min(READ_MESSAGES, left), timeout=1.0)
            if messages:
                deadline_s = time.monotonic() + READ_TIMEOUT_S
                left -= len(messages)
                yield [message.value() for message in messages]

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        consumer = self._consumer()
        return lambda: joined(self._pages(consumer, count))

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        consumer = self._consumer()
        return lambda: tabled(self._pages(consumer, count))


def _settle(producer: Any) -> None:
    remaining = producer.flush(CALL_TIMEOUT_S)
    if remaining:
        raise RuntimeError(f"Kafka did not acknowledge {remaining:,} records")


class KafkaSynced(Kafka):
    """The same broker, told to sync what it acknowledges."""

    name = "Kafka, fsync"
    promise = "power loss: flush.messages=1, an fsync for every produce request"
    topic_settings: ClassVar[dict[str, str]] = {"flush.messages": "1"}
