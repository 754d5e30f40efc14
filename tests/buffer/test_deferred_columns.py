"""A column whose values stand one by one is written as if they had been put together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer import arrow_stream
from headwater.buffer.arrow_stream import ChunkedColumn, ValuesColumn
from headwater.buffer.batch import Batch, Call, Calls, decode_batch, encode_parts
from headwater.buffer.compression import Compression
from headwater.buffer.producer import Producer
from headwater.buffer.producer.record_columns import (
    DEFERRED_MIN_BYTES,
    RecordLists,
    joined,
    joined_deferred,
)
from headwater.buffer.records import KEY
from headwater.core.limits import KIB
from tests.buffer.producer.fakes import fake_stream
from tests.store.scripted import virtual

ID = "01J5T4R3KXBMZ7QV9N2WSP8YDH"
CALLS = Calls.of([Call(0, 1_700_000_000_000, None)])


def rows_of(values: list[bytes | None], sizes: list[int] | None = None) -> RecordLists:
    rows = RecordLists()
    rows.values, rows.columns[KEY] = list(values), [b"k"] * len(values)
    rows.sizes.fromlist(sizes or [])
    return rows


def both_ways(
    rows: RecordLists, compression: Compression = Compression.NONE
) -> tuple[bytes, bytes]:
    records, values = rows.to_arrow_deferred()
    loosely = encode_parts(Batch(ID, records, CALLS, values), compression)
    assert len(loosely) == len(bytes(loosely))
    return bytes(loosely), bytes(
        encode_parts(Batch(ID, rows.to_arrow(), CALLS), compression).together()
    )


@given(
    values=st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=50),
    compression=st.sampled_from(Compression),
)
def test_the_bytes_are_those_of_the_column(
    values: list[bytes | None], compression: Compression
) -> None:
    loosely, together = both_ways(rows_of(values), compression)
    assert loosely == together
    assert decode_batch(loosely).records.column("_value").to_pylist() == values


def test_the_bytes_are_those_that_arrow_itself_builds() -> None:
    values: list[bytes | None] = [b"abc", b"", b"d" * 1000]
    built = pa.record_batch(
        [pa.array([b"k"] * 3, pa.binary()), pa.array(values, pa.binary())], names=["_key", "_value"]
    )
    assert both_ways(rows_of(values))[0] == bytes(encode_parts(Batch(ID, built, CALLS)).together())


def test_sizes_that_calls_told_need_no_second_look() -> None:
    values: list[bytes | None] = [b"abc", b"", b"de"]
    told, found = rows_of(values, [3, 0, 2]), rows_of(values)
    assert both_ways(told) == both_ways(found)
    told.append(b"f", None)  # of which no call told the size
    assert decode_batch(both_ways(told)[0]).records.column("_value").to_pylist() == [*values, b"f"]


def test_a_large_column_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_stream, "PIECE_BYTES", 100 * KIB)
    values = [bytes([number]) * size for number, size in enumerate([30, 70, 250, 0, 10, 90, 1])]
    values = [value * KIB for value in values]
    pieces = list(ValuesColumn(values).pieces())
    assert [len(piece) // KIB for piece in pieces] == [100, 250, 100, 1]
    assert b"".join(pieces) == b"".join(values)
    loosely, together = both_ways(rows_of(list(values)))
    assert loosely == together


def test_parts_are_the_same_every_time() -> None:
    records, values = rows_of([b"x" * 100 * KIB] * 3).to_arrow_deferred()
    parts = encode_parts(Batch(ID, records, CALLS, values))
    assert list(parts) == list(parts)
    assert len(list(parts)) > 1


@virtual
async def test_what_a_caller_changes_after_the_call_cannot_damage_the_batch() -> None:
    memory = bytearray(b"ab" * 300 * KIB)
    offsets = pa.py_buffer(pa.array([0, len(memory)], pa.int32()).buffers()[1])
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(memory)])
    stream = fake_stream()
    async with Producer(stream, linger_ms=10_000) as producer:
        await producer.produce_arrow(pa.record_batch([column], names=["_value"]))
        await producer.produce([b"between"])
        await producer.produce_arrow(pa.record_batch([column], names=["_value"]))
        memory[:] = bytes(len(memory))
    assert stream.queues[0].values() == [b"ab" * 300 * KIB, b"between", b"ab" * 300 * KIB]


@given(
    chunks=st.lists(
        st.lists(st.one_of(st.none(), st.text(max_size=9)), min_size=1, max_size=9),
        min_size=2,
        max_size=5,
    ),
    cut=st.integers(0, 3),
    compression=st.sampled_from(Compression),
)
def test_chunks_of_a_column_are_written_as_if_they_had_been_joined(
    chunks: list[list[str | None]], cut: int, compression: Compression
) -> None:
    arrays = [pa.array([*["skipped"] * cut, *chunk], pa.string()).slice(cut) for chunk in chunks]
    together = pa.concat_arrays(arrays)
    apart = ChunkedColumn(arrays)
    loosely = pa.record_batch([apart.placeholder()], names=["s"])
    encoded = bytes(encode_parts(Batch(ID, loosely, CALLS, apart), compression))
    records = decode_batch(encoded).records
    assert records.column("s").to_pylist() == together.to_pylist()
    if not together.null_count:
        whole = pa.record_batch([together], names=["s"])
        assert encoded == bytes(encode_parts(Batch(ID, whole, CALLS), compression).together())


def test_pieces_of_a_draft_that_are_large_are_not_joined_once_more() -> None:
    pieces = [
        pa.record_batch(
            {"n": [n], "s": ["x" * DEFERRED_MIN_BYTES], "t": pa.array([str(n) * 1000])},
            schema=pa.schema([("n", pa.int64()), ("s", pa.string()), ("t", pa.string())]),
        )
        for n in range(3)
    ]
    records, apart = joined_deferred(pieces)
    assert apart is not None
    (held, *_) = apart.pieces()
    address = pa.py_buffer(held).address
    assert address == pieces[0].column("s").buffers()[2].address
    encoded = encode_parts(Batch(ID, records, CALLS, apart))
    assert decode_batch(bytes(encoded)).records.equals(joined(pieces))
    small = [piece.drop_columns(["s"]) for piece in pieces]
    assert joined_deferred(small)[1] is None
    differing = [pieces[0], pieces[1].append_column("_rid", pa.array([1]))]
    assert joined_deferred(differing)[1] is None
