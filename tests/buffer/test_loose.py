"""A column whose values stand one by one is written as if they had been put together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer import loose
from headwater.buffer.batch import Batch, decode_batch, encode_batch, encode_parts
from headwater.buffer.calls import Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.loose import Loose
from headwater.buffer.producer.draft import Draft
from headwater.buffer.producer.pieces import defaults_for
from headwater.buffer.producer.rows import Rows
from headwater.core.limits import KIB

ID = "01J5T4R3KXBMZ7QV9N2WSP8YDH"
CALLS = Calls.of([Call(0, 1_700_000_000_000, None)])


def rows_of(values: list[bytes | None], sizes: list[int] | None = None) -> Rows:
    rows = Rows()
    rows.extend(values, keys=[b"k"] * len(values), sizes=sizes)
    return rows


def both_ways(rows: Rows, compression: Compression = Compression.NONE) -> tuple[bytes, bytes]:
    records, values = rows.to_loose_arrow()
    loosely = encode_parts(Batch(ID, records, CALLS, values), compression)
    assert len(loosely) == len(bytes(loosely))
    return bytes(loosely), bytes(encode_batch(Batch(ID, rows.to_arrow(), CALLS), compression))


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
    assert both_ways(rows_of(values))[0] == bytes(encode_batch(Batch(ID, built, CALLS)))


def test_sizes_that_calls_told_need_no_second_look() -> None:
    values: list[bytes | None] = [b"abc", b"", b"de"]
    told, found = rows_of(values, [3, 0, 2]), rows_of(values)
    assert both_ways(told) == both_ways(found)
    told.append(b"f", None)  # of which no call told the size
    assert decode_batch(both_ways(told)[0]).records.column("_value").to_pylist() == [*values, b"f"]


def test_a_large_column_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loose, "PIECE_BYTES", 100 * KIB)
    values = [bytes([number]) * size for number, size in enumerate([30, 70, 250, 0, 10, 90, 1])]
    values = [value * KIB for value in values]
    pieces = list(Loose(values).pieces())
    assert [len(piece) // KIB for piece in pieces] == [100, 250, 100, 1]
    assert b"".join(pieces) == b"".join(values)
    loosely, together = both_ways(rows_of(list(values)))
    assert loosely == together


def test_parts_are_the_same_every_time() -> None:
    records, values = rows_of([b"x" * 100 * KIB] * 3).to_loose_arrow()
    parts = encode_parts(Batch(ID, records, CALLS, values))
    assert list(parts) == list(parts)
    assert len(list(parts)) > 1


def test_what_a_caller_changes_after_the_call_cannot_damage_the_batch() -> None:
    memory = bytearray(b"ab" * 100 * KIB)
    offsets = pa.py_buffer(pa.array([0, len(memory)], pa.int32()).buffers()[1])
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(memory)])
    draft = Draft(0, None, 0.0)
    draft.begin_call(0, None)
    draft.add_piece(pa.record_batch([column], names=["_value"]))
    parts = encode_parts(draft.build(ID, defaults_for("s"), loose=True))
    memory[:] = bytes(len(memory))
    assert decode_batch(bytes(parts)).records.column("_value").to_pylist() == [b"ab" * 100 * KIB]
