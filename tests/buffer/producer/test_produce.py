"""What goes in comes out: values, columns, calls and the places of records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import Acceptance, Accepted, Producer
from headwater.buffer.producer.call import LIST_MAX_ROWS
from headwater.core import limits, runtime
from headwater.core.errors import LimitExceeded, Refused
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import virtual

MANY = LIST_MAX_ROWS + 1
"""Records in a call that becomes Arrow columns at once."""


class Finer(datetime):
    """As pandas has one: with a part of a microsecond."""

    nanosecond = 1


async def produced(stream: FakeStream, *calls: dict[str, Any], **settings: Any) -> list[Acceptance]:
    async with Producer(stream, **settings) as producer:
        handles = [await producer.produce(**call) for call in calls]
        return [await handle for handle in handles]


def records(stream: FakeStream, partition: int = 0) -> list[dict[str, Any]]:
    return [
        row for batch in stream.queues[partition].batches() for row in batch.records.to_pylist()
    ]


@virtual
async def test_records_are_accepted_in_the_order_of_the_calls() -> None:
    stream = fake_stream()
    first, second, third = await produced(
        stream, {"entries": [b"a"]}, {"entries": [b"b", None]}, {"entries": b"c"}
    )
    assert stream.queues[0].values() == [b"a", b"b", None, b"c"]
    assert [first, second, third] == [
        (Accepted(0, 0, 1, 1, 1, 1),),
        (Accepted(0, 0, 2, 3, 1, 2),),
        (Accepted(0, 0, 4, 4, 1, 1),),
    ]
    assert (second.partition, second.sequence, second.first_lsn, second.last_lsn) == (0, 0, 2, 3)
    assert (second.rows, second.producer_sequence, second[0].rows) == (2, 1, 2)


@virtual
async def test_a_handle_has_the_numbers_once_it_was_awaited_and_not_before() -> None:
    async with Producer(fake_stream()) as producer:
        await producer.produce([b"a"])
        handle = await producer.produce([b"b", b"c"])
        assert not handle.is_done
        assert handle.accepted() == []
        accepted = await handle
        assert await handle == accepted
        assert bool(handle.is_done) is True
        assert (accepted.partition, accepted.sequence) == (0, 0)
        assert (accepted.first_lsn, accepted.last_lsn) == (2, 3)
        assert repr(handle) == "<Handle of 2 records, done>"


@pytest.mark.parametrize("count", [1, 2, MANY])
@virtual
async def test_values_come_from_lists_tuples_and_arrow(count: int) -> None:
    values = [b"%d" % n for n in range(count - 1)] + [None]
    stream = fake_stream()
    forms = [
        values,
        tuple(values),
        pa.array(values, pa.binary()),
        pa.array(values, pa.large_binary()),
        pa.chunked_array([pa.array(values[:1], pa.binary()), pa.array(values[1:], pa.binary())]),
        [None if value is None else bytearray(value) for value in values],
    ]
    for form in forms:
        await produced(stream, {"entries": form})
    assert stream.queues[0].values() == values * len(forms)


@virtual
async def test_what_is_changed_after_the_call_was_sent_as_it_was() -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        entries, mutable = [b"a", b"b"], [bytearray(b"c")]
        await producer.produce(entries)
        await producer.produce(mutable)
        entries.append(b"x")
        mutable[0][0] = 0
    assert stream.queues[0].values() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ("text", r"encode it first"),
        (["text"], r"encode it first"),
        ([b"a", "text"], r"encode it first"),
        (pa.array(["text"]), r"encode it first"),
        ([1], r"not int"),
        (7, r"not int"),
        ({"a": 1}, r"not dict"),
        ((b"a" for _ in range(2)), r"not generator"),
        (pa.array([1]), r"int64"),
    ],
)
@virtual
async def test_what_is_not_bytes_is_refused_with_advice(entries: Any, why: str) -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=why):
            await producer.produce(entries)
    assert stream.queues[0].entries == []


@pytest.mark.parametrize("count", [2, MANY])
@virtual
async def test_a_record_carries_what_its_call_gave_it(count: int) -> None:
    stream = fake_stream()
    at = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    rest = count - 2
    await produced(
        stream,
        {
            "entries": [b"v"] * count,
            "keys": [b"k", None] + [b"k"] * rest,
            "headers": [{"h": b"1", "n": None}, [("a", b"2"), ("a", b"3")]] + [None] * rest,
            "timestamps": [at, 5] + [at] * rest,
            "operations": ["update", 2] + ["insert"] * rest,
        },
    )
    first, second = records(stream)[:2]
    assert first == {
        "_key": b"k",
        "_value": b"v",
        "_headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
        "_timestamp": at,
        "_operation": 1,
    }
    assert second["_key"] is None
    assert second["_headers"] == [{"key": "a", "value": b"2"}, {"key": "a", "value": b"3"}]
    assert second["_timestamp"] == datetime.fromtimestamp(0.000005, UTC)
    assert second["_operation"] == 2


@pytest.mark.parametrize("header", [{"h": b"1"}, [("h", b"1")], (["h", b"1"],)])
@pytest.mark.parametrize("count", [1, 3, MANY])
@virtual
async def test_a_single_key_header_time_or_operation_counts_for_all(
    count: int, header: Any
) -> None:
    stream = fake_stream()
    at = datetime(2026, 5, 4)  # noqa: DTZ001  a time without a zone counts as UTC
    call = {"keys": b"k", "headers": header, "timestamps": at, "operations": "DELETE"}
    await produced(stream, {"entries": [b"v"] * count, **call})
    for row in records(stream):
        assert row == {
            "_key": b"k",
            "_value": b"v",
            "_headers": [{"key": "h", "value": b"1"}],
            "_timestamp": at.replace(tzinfo=UTC),
            "_operation": 2,
        }


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"keys": [b"k"] * 7}, r"7 values for"),
        ({"keys": "k"}, r"keys are bytes"),
        ({"keys": ["k"]}, r"keys are bytes"),
        ({"keys": [3]}, r"not int"),
        ({"keys": 3}, r"not int"),
        ({"headers": [{"h": "text"}]}, r"\(text, bytes\) pairs"),
        ({"headers": [["h"]]}, r"\(text, bytes\) pairs"),
        ({"timestamps": ["yesterday"]}, r"microseconds"),
        ({"timestamps": [1 << 64]}, r"microseconds"),
        ({"timestamps": [Finer(2026, 1, 1)]}, r"microseconds.*round it first"),
        ({"operations": ["upsert"]}, r"insert, update, delete, refresh"),
        ({"operations": [4]}, r"insert, update, delete, refresh"),
        ({"operations": [True]}, r"insert, update, delete, refresh"),
        ({"metadata": "text"}, r"metadata are bytes"),
        ({"partition": 1}, r"partitions 0 to 0"),
        ({"partition": True}, r"partitions 0 to 0"),
    ],
)
@virtual
async def test_what_a_record_cannot_carry_is_refused(
    extra: dict[str, Any], why: str, count: int
) -> None:
    stream = fake_stream()
    extra = {
        name: given * count if isinstance(given, list) and len(given) == 1 else given
        for name, given in extra.items()
    }
    async with Producer(stream) as producer:
        await producer.produce([b"before"])
        with pytest.raises(Refused, match=why):
            await producer.produce([b"v"] * count, **extra)
    assert stream.queues[0].values() == [b"before"]


@virtual
async def test_calls_keep_their_time_and_their_metadata() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=10_000) as producer:
        start_ms = runtime.wall_ms()
        await producer.produce([b"a"], b"one")
        await producer.produce([b"b", b"c"], b"one")
        await producer.produce([b"d"])
        await producer.produce([b"e"] * MANY)
        await runtime.sleep(0.5)
        await producer.produce([b"f"])
        await producer.produce([b"g"], metadata=b"")
    (batch,) = stream.queues[0].batches()
    assert [tuple(call.values()) for call in batch.calls.columns.to_pylist()] == [
        (0, start_ms, b"one"),
        (1, start_ms, b"one"),
        (3, start_ms, None),  # and the call after it: it says the same
        (4 + MANY, start_ms + 500, None),
        (5 + MANY, start_ms + 500, b""),
    ]
    (entry,) = stream.queues[0].entries
    assert (entry.min_ms, entry.max_ms) == (start_ms, start_ms + 500)
    assert entry.metadata == b"", "that of the last call: what a source resumes from"


@virtual
async def test_a_call_without_records_is_accepted_at_once_and_takes_no_place() -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        handle = await producer.produce([])
        accepted = await handle
        assert len(accepted) == 0
        with pytest.raises(Refused, match="0 parts"):
            _ = accepted.first_lsn
        with pytest.raises(Refused, match="nothing to carry"):
            await producer.produce([], metadata=b"m")
        with pytest.raises(Refused, match="1 values for 0"):
            await producer.produce([], keys=[b"k"])
    assert stream.queues[0].entries == []


@pytest.mark.parametrize("count", [1, MANY])
@virtual
async def test_a_record_above_its_limit_is_refused_before_anything_is_written(count: int) -> None:
    stream = fake_stream()
    large = bytes(limits.RECORD_MAX_BYTES + 1)
    async with Producer(stream) as producer:
        with pytest.raises(LimitExceeded, match="RECORD_MAX_BYTES"):
            await producer.produce([*[b"v"] * (count - 1), large])
        with pytest.raises(LimitExceeded, match="RECORD_MAX_BYTES"):
            await producer.produce([*[b"v"] * count], keys=large)
        with pytest.raises(LimitExceeded, match="METADATA_MAX_BYTES"):
            await producer.produce([b"v"] * count, bytes(limits.METADATA_MAX_BYTES + 1))
    assert stream.queues[0].entries == []


@virtual
async def test_a_stream_in_the_published_format_takes_values_and_metadata_alone() -> None:
    stream = fake_stream(format="v1")
    async with Producer(stream) as producer:
        for extra in ({"keys": b"k"}, {"headers": {"h": b""}}, {"operations": 0}):
            for count in (1, MANY):
                with pytest.raises(Refused, match="values and metadata alone"):
                    await producer.produce([b"v"] * count, **extra)
        with pytest.raises(Refused, match="values and metadata alone"):
            await producer.produce_arrow(pa.table({"a": [1]}))
        for nulls in ([None], [b"v", None], [None] * MANY):
            with pytest.raises(Refused, match="no null values"):
                await producer.produce(nulls)
        await producer.produce([b"v"], b"m")
    (entry,) = stream.queues[0].entries
    assert entry.calls.endswith(b"\x01\x00\x00\x00m"), "the items that its manifest keeps"
