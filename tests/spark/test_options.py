"""Options: each one read, and whatever is wrong with one said before anything is opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import BadUrl, HeadwaterError, Refused
from headwater.spark.option_values import TimeBound
from headwater.spark.options import (
    OPTIONS,
    Mode,
    ReadOptions,
    WriteOptions,
    parse_options,
    reading_mode,
)

URL = "file:///data"
READ = {"path": URL, "subscribe": "orders"}
STREAM = {**READ, "groupId": "billing"}
WRITE = {"path": URL, "topic": "orders"}


def _read(**more: str) -> ReadOptions:
    return ReadOptions.parse(READ | more, Mode.READ)


def _stream(**more: str) -> ReadOptions:
    return ReadOptions.parse(STREAM | more, Mode.READ_STREAM)


def test_defaults_are_those_of_kafkas_source() -> None:
    assert _read() == ReadOptions(url=URL, subscribe=("orders",))
    assert _stream() == ReadOptions(url=URL, subscribe=("orders",), group_id="billing")
    assert WriteOptions.parse(WRITE, Mode.WRITE) == WriteOptions(url=URL, topic="orders")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("startingOffsets", "EARLIEST", "starting_offsets", "earliest"),
        (
            "startingOffsets",
            '{"orders": {"0": 23, "1": -2}}',
            "starting_offsets",
            {"orders": {0: 23, 1: -2}},
        ),
        (
            "startingTimestamp",
            "1767225600000",
            "starting_time",
            TimeBound("startingTimestamp", "timestamp", 1767225600000000),
        ),
        (
            "startingTimestamp",
            "2026-01-01T00:00:00.000001Z",
            "starting_time",
            TimeBound("startingTimestamp", "timestamp", 1767225600000001),
        ),
        (
            "startingTimestamp",
            "-1",
            "starting_time",
            TimeBound("startingTimestamp", "timestamp", -1000),
        ),
        (
            "startingIngestionTimestamp",
            "1",
            "starting_time",
            TimeBound("startingIngestionTimestamp", "ingestion", 1000),
        ),
        (
            "startingOffsetsByTimestamp",
            '{"orders": {"0": 1, "1": "1970-01-01T00:00:02Z"}}',
            "starting_time",
            TimeBound(
                "startingOffsetsByTimestamp",
                "timestamp",
                moments_us={"orders": {0: 1000, 1: 2_000_000}},
            ),
        ),
        ("startingOffsetsByTimestampStrategy", "LATEST", "starts_at_latest", True),
        ("maxOffsetsPerTrigger", "1000", "max_offsets_per_trigger", 1000),
        ("maxBytesPerTrigger", "512MiB", "max_bytes_per_trigger", 512 << 20),
        ("minPartitions", "8", "min_partitions", 8),
        ("maxPartitionBytes", "1048576", "max_partition_bytes", 1 << 20),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("columns", "offset, value", "columns", ("offset", "value")),
        ("includeHeaders", "true", "include_headers", True),
        ("includeMetadata", "true", "include_metadata", True),
        ("includeIngestionTimestamp", "true", "include_ingestion_timestamp", True),
        ("valueFormat", "Arrow", "value_format", "arrow"),
        ("onBadBatch", "deadletter", "on_bad_batch", "deadLetter"),
    ],
)
def test_an_option_is_read(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(_stream(**{name: text}), field) == value
    assert getattr(_stream(**{name.upper(): text}), field) == value


def test_a_batch_read_has_an_end() -> None:
    assert _read(endingOffsets='{"orders": {"0": -1}}').ending_offsets == {"orders": {0: -1}}
    assert _read(endingTimestamp="1").ending_time == TimeBound("endingTimestamp", "timestamp", 1000)
    assert _read(onBadBatch="skip").on_bad_batch == "skip"


def test_streams_are_named_by_pattern_or_by_partitions() -> None:
    found = ReadOptions.parse({"url": URL, "subscribePattern": "ord.*"}, Mode.READ)
    assert found.subscribe_pattern == "ord.*"
    found = ReadOptions.parse({"url": URL, "assign": '{"orders": [1, 0]}'}, Mode.READ)
    assert found.assign == {"orders": [0, 1]}


def test_options_of_a_write_are_read() -> None:
    asked = {
        "txnAppId": "nightly",
        "txnVersion": "7",
        "sinkTimeout": "2h",
        "compression": "zstd",
        "batchBytes": "4MiB",
    }
    assert WriteOptions.parse(WRITE | asked, Mode.WRITE) == WriteOptions(
        url=URL,
        topic="orders",
        txn_app_id="nightly",
        txn_version=7,
        sink_timeout=7_200_000,
        compression="zstd",
        batch_bytes=4 << 20,
    )


def test_what_is_sparks_own_is_left_to_spark() -> None:
    WriteOptions.parse(WRITE | {"checkpointLocation": "/c"}, Mode.WRITE_STREAM)


@pytest.mark.parametrize(
    ("given", "mode", "told"),
    [
        ({"path": URL}, Mode.READ, "which stream"),
        ({"subscribe": "orders"}, Mode.READ, "address of the store is missing"),
        (READ | {"url": "file:///other"}, Mode.READ, "given twice"),
        (READ | {"assign": '{"a": [0]}'}, Mode.READ, "give one of them"),
        (READ, Mode.READ_STREAM, "groupId is missing"),
        (READ | {"groupId": "g"}, Mode.READ, "option of readStream, and this is read"),
        (
            READ | {"groupId": "g", "maxOffsetsPerTrigger": "1"},
            Mode.READ,
            "groupId is an option of readStream, maxOffsetsPerTrigger is .*: leave them out",
        ),
        (STREAM | {"endingOffsets": "latest"}, Mode.READ_STREAM, "option of read, and this is"),
        (READ | {"topic": "orders"}, Mode.READ, "use subscribe"),
        (WRITE | {"subscribe": "orders"}, Mode.WRITE, "use topic"),
        ({"path": URL}, Mode.WRITE, "which stream"),
        (WRITE | {"txnAppId": "a"}, Mode.WRITE, "give both"),
        (WRITE | {"txnAppId": "a", "txnVersion": "1"}, Mode.WRITE_STREAM, "option of write,"),
        (STREAM | {"onBadBatch": "skip"}, Mode.READ_STREAM, "onBadBatch=deadLetter"),
        (READ | {"onBadBatch": "deadLetter"}, Mode.READ, "onBadBatch=skip"),
    ],
)
def test_what_does_not_go_together_is_refused(given: Any, mode: Mode, told: str) -> None:
    with pytest.raises(Refused, match=told):
        (ReadOptions if mode.startswith("read") else WriteOptions).parse(given, mode)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("takeOver", "a stream has no owner"),
        ("startingOffset", "called startingOffsets"),
        ("failOnDatLoss", "did you mean failOnDataLoss"),
        ("maxoffsetpertrigger", "did you mean maxOffsetsPerTrigger"),
        ("kafka.bootstrap.servers", "there are no brokers"),
        ("kafka.security.protocol", "no Kafka client"),
        ("xyzzy", "for reading there are assign, columns"),
    ],
)
def test_an_unknown_option_is_refused_with_what_was_meant(name: str, told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        _stream(**{name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_a_typo_is_recognised_where_the_option_is_not_for_this_either() -> None:
    told = "did you mean maxOffsetsPerTrigger, an option of readStream"
    with pytest.raises(Refused, match=told):
        _read(maxOffsetPerTrigger="1")


def test_what_is_meant_is_told_by_options_that_one_kind_of_read_has() -> None:
    assert reading_mode(READ) is Mode.READ
    assert reading_mode(STREAM | {"maxOffsetsPerTrigger": "1"}) is Mode.READ_STREAM
    # Advice for one kind alone would lead whoever meant the other in a circle.
    told = "for readStream groupId is missing.*for read, leave maxOffsetsPerTrigger out"
    with pytest.raises(Refused, match=told):
        reading_mode(READ | {"maxOffsetsPerTrigger": "1"})


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("subscribe", " , ", "one or more names"),
        ("subscribe", "a b", "is not a valid stream name"),
        ("subscribePattern", "(", "not a regular expression"),
        ("assign", "orders", r'\{"orders": \[0, 1\]\}'),
        ("assign", '{"orders": []}', r'\{"orders": \[0, 1\]\}'),
        ("assign", '{"orders": [0, "0"]}', "named twice"),
        ("assign", '{"orders": [true]}', "not the number of a partition"),
        ("startingOffsets", "newest", "expected earliest, latest"),
        ("startingOffsets", '{"orders": 5}', "expected earliest, latest"),
        ("startingOffsets", '{"orders": {"x": 5}}', "not the number of a partition"),
        ("startingOffsets", '{"orders": {"0": 0}}', "offsets begin with 1"),
        ("startingOffsets", '{"orders": {"0": -3}}', "is not an offset"),
        ("startingTimestamp", "soon", "milliseconds since 1970"),
        ("startingOffsetsByTimestamp", '{"orders": 5}', "expected"),
        ("startingOffsetsByTimestamp", '{"orders": {"0": "soon"}}', "milliseconds since 1970"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("groupId", "a/b", "is not a valid group name"),
        ("maxOffsetsPerTrigger", "0", "1 or more"),
        ("maxBytesPerTrigger", "0", "above 0"),
        ("maxBytesPerTrigger", "lots", "8MiB"),
        ("minPartitions", "-1", "1 or more"),
        ("columns", "a,a", "each once"),
        ("valueFormat", "json", "raw or arrow"),
        ("onBadBatch", "ignore", "fail or skip or deadLetter"),
        ("url", "http://host/x", "not http"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, text: str, told: str) -> None:
    base = {"groupId": "g"} if name in ("subscribePattern", "assign") else STREAM
    given = {**base, "path": URL, name: text}
    if name == "url":
        del given["path"]
    with pytest.raises((Refused, BadUrl), match=told):
        ReadOptions.parse(given, Mode.READ_STREAM)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("txnVersion", "-1", "0 or more"),
        ("txnAppId", " ", "is empty"),
        ("sinkTimeout", "0s", "above 0"),
        ("compression", "gzip", "none or zstd or lz4"),
    ],
)
def test_a_value_of_a_write_that_does_not_fit_is_refused(name: str, text: str, told: str) -> None:
    with pytest.raises(Refused, match=told):
        parse_options(WRITE | {name: text}, Mode.WRITE)


def test_a_secret_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(HeadwaterError) as refused:
        _read(path="s3://bucket/x?secret_access_key=hunter2")
    assert "hunter2" not in str(refused.value)


def test_every_option_says_what_it_is_for() -> None:
    assert all(option.help.endswith((".", "ord.*", "MiB.")) for option in OPTIONS.values())
    assert all(option.modes for option in OPTIONS.values())


def test_every_option_is_on_its_page_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    wanted = [
        (
            option.name,
            ", ".join(mode for mode in Mode if mode in option.modes),
            option.shown_default,
            option.help,
        )
        for option in OPTIONS.values()
    ]
    assert [row for row in shown if row[0] in OPTIONS] == wanted
