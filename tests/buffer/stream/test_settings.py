"""Settings as people write them, in Headwater's words and in Kafka's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headwater.buffer.stream.config import parse_settings
from headwater.core.errors import Refused


@pytest.mark.parametrize(
    ("name", "value", "field", "parsed"),
    [
        ("retention.ms", "604800000", "retention_ms", 604_800_000),
        ("retention.ms", "7d", "retention_ms", 604_800_000),
        ("retention_ms", 1000, "retention_ms", 1000),
        ("retention-ms", "1.5h", "retention_ms", 5_400_000),
        ("retention", "12 h", "retention_ms", 43_200_000),
        ("retention", timedelta(minutes=2), "retention_ms", 120_000),
        ("retention.ms", "-1", "retention_ms", -1),
        ("retention.ms", -1, "retention_ms", -1),
        ("retention_ms", None, "retention_ms", -1),
        ("retention", "forever", "retention_ms", -1),
        ("retention.bytes", "1GB", "retention_bytes", 1_000_000_000),
        ("retention.bytes", "-1", "retention_bytes", -1),
        ("segment.bytes", "8MiB", "segment_bytes", 8 * 2**20),
        ("segment.bytes", "1,048,576", "segment_bytes", 2**20),
        ("segment.ms", "30min", "segment_ms", 1_800_000),
        ("gc.grace.ms", "500ms", "gc_grace_ms", 500),
        ("compression.type", "ZSTD", "compression", "zstd"),
        ("compression.type", "uncompressed", "compression", "none"),
        ("compression", "lz4", "compression", "lz4"),
        ("linger.ms", "5", "linger_ms", 5),
        ("linger.ms", "default", "linger_ms", None),
        ("batch.size", "64KiB", "batch_bytes", 65_536),
        ("batch_bytes", None, "batch_bytes", None),
        ("partitions", "12", "partitions", 12),
        ("num.partitions", 3, "partitions", 3),
        ("format", "v1", "format", "v1"),
        ("consumer", "nodes", "consumer", "nodes"),
    ],
)
def test_a_setting_is_understood(name: str, value: object, field: str, parsed: object) -> None:
    assert parse_settings({name: value}) == {field: parsed}


def test_only_what_was_given_is_set() -> None:
    assert parse_settings({}) == {}
    assert parse_settings({"cleanup.policy": "delete"}) == {}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retention.msec", "1", "did you mean retention.ms?"),
        ("compresion", "zstd", "did you mean compression?"),
        ("partition", "2", "did you mean partitions?"),
        ("zzz", "1", "known: batch_bytes, compression"),
        ("cleanup.policy", "compact", "not compacted"),
        ("min.insync.replicas", "2", "there are no replicas"),
        ("replication.factor", "3", "there are no replicas"),
        ("unclean.leader.election.enable", "true", "no election"),
        ("acks", "all", "durable in the object store"),
        ("max.message.bytes", "1", "RECORD_MAX_BYTES"),
        ("compression.type", "gzip", "none or zstd or lz4"),
        ("compression.type", "producer", "the stream sets"),
        ("retention.ms", "soon", "expected 7d"),
        ("retention.ms", "7 fortnights", "expected 7d"),
        ("retention.ms", "0.5ms", "expected 7d"),
        ("retention.ms", True, "expected 7d"),
        ("segment.bytes", "7d", "expected 8MiB"),
        ("segment.bytes", 1.5, "expected 8MiB"),
        ("partitions", "two", "a whole number"),
        ("partitions", "2d", "a whole number"),
        ("format", "v2", "native or v1"),
        ("consumer", "me", "query or nodes"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(name: str, value: object, says: str) -> None:
    with pytest.raises(Refused, match=says.replace("?", r"\?")) as refused:
        parse_settings({name: value})
    assert name in str(refused.value)


def test_one_setting_in_two_spellings_is_refused() -> None:
    with pytest.raises(Refused, match=r"retention\.ms and retention are the same setting"):
        parse_settings({"retention.ms": "1d", "retention": "1d"})
