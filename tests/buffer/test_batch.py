"""The native batch: what was put in comes out, and nothing else is believed."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer import arrow_stream
from headwater.buffer.batch import (
    FOOTER_BYTES,
    OVERHEAD_BYTES,
    Batch,
    Call,
    Calls,
    decode_batch,
    encode_parts,
    read_footer,
)
from headwater.buffer.compression import Compression
from headwater.buffer.producer.call import with_column
from headwater.buffer.records import KEY, from_arrow, from_values
from headwater.core import limits
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported
from headwater.core.limits import MIB

ID = "01J5T4R3KXBMZ7QV9N2WSP8YDH"


def batch_of(values: list[bytes | None], *, calls: list[Call] | None = None) -> Batch:
    default = [Call(0, 1_700_000_000_000, None)] if values else []
    return Batch(ID, from_values(values), Calls.of(default if calls is None else calls))


def resealed(data: bytes) -> bytes:
    """The same bytes with a checksum that fits: what a hand that knows the format would write."""
    return data[:-12] + struct.pack("<Q", xxhash.xxh3_64_intdigest(data[:-12])) + data[-4:]


@given(
    values=st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=50),
    compression=st.sampled_from(Compression),
)
def test_what_was_put_in_comes_out(values: list[bytes | None], compression: Compression) -> None:
    batch = batch_of(values)
    found = decode_batch(encode_parts(batch, compression).together(), expected_id=ID)
    assert found.records.equals(batch.records)
    assert found.calls.columns.equals(batch.calls.columns)


def test_typed_columns_and_reserved_ones_come_out_as_they_went_in() -> None:
    (records,) = from_arrow(pa.table({"n": [1, None], "s": ["ä", ""], "l": [[1], []]}))
    records = with_column(records, KEY, [b"k", None])
    ordered = from_arrow(pa.Table.from_batches([records]))[0]
    batch = Batch(ID, ordered, Calls.of([Call(0, 5, b"m")]))
    assert decode_batch(encode_parts(batch).together()).records.equals(ordered)


def test_a_column_nobody_uses_costs_nothing() -> None:
    plain = encode_parts(batch_of([b"x" * 100] * 1000)).together()
    assert len(plain) < 1000 * (100 + 4) + 1500


def test_the_footer_tells_what_is_inside() -> None:
    calls = [Call(0, 30, b"first"), Call(2, 10, None)]
    data = encode_parts(batch_of([b"a", b"b", b"c"], calls=calls)).together()
    footer = read_footer(data[-FOOTER_BYTES:])
    assert (footer.rows, footer.calls, footer.min_ms, footer.max_ms) == (3, 2, 10, 30)
    assert footer.batch_id == ID


def test_every_record_knows_the_time_and_the_metadata_of_its_call() -> None:
    calls = Calls.of([Call(0, 1, b"first"), Call(2, 2, None)])
    times, metadata = calls.per_record(3)
    assert [time.timestamp() for time in times.to_pylist()] == [0.001, 0.001, 0.002]
    assert metadata.to_pylist() == [b"first", b"first", None]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_beyond_all_microseconds_is_the_last_of_them(sign: int) -> None:
    times, _ = Calls.of([Call(0, sign * (1 << 60), None)]).per_record(1)
    assert times.cast(pa.int64()).to_pylist() == [sign * ((1 << 63) // 1000) * 1000]


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [Call(1, 0, None)],
        [Call(0, 0, None), Call(0, 0, None)],
        [Call(0, 0, None), Call(2, 0, None)],
    ],
)
def test_calls_cover_the_records_in_order(calls: list[Call]) -> None:
    with pytest.raises(Corrupt):
        encode_parts(batch_of([b"a", b"b"], calls=calls)).together()


@pytest.mark.parametrize("compression", Compression)
def test_every_flipped_bit_is_noticed(compression: Compression) -> None:
    data = encode_parts(batch_of([b"abc", None, b""]), compression).together()
    for position in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[position] ^= 1 << bit
            with pytest.raises((Corrupt, NotSupported)):
                decode_batch(bytes(bad))


def test_every_cut_is_noticed() -> None:
    data = encode_parts(batch_of([b"abc", b"def"])).together()
    for length in range(len(data)):
        with pytest.raises((Corrupt, NotSupported)):
            decode_batch(data[:length])
    with pytest.raises(Corrupt):
        decode_batch(bytes(data) + b"\0")


def test_another_batch_under_this_name_is_noticed() -> None:
    data = encode_parts(batch_of([b"a"])).together()
    with pytest.raises(Corrupt, match=f"this is batch {ID}"):
        decode_batch(data, expected_id="01J5T4R3KXBMZ7QV9N2WSP8YDJ")


def test_a_later_format_asks_for_an_upgrade() -> None:
    data = bytes(encode_parts(batch_of([b"a"])).together())
    with pytest.raises(NotSupported, match="Upgrade"):
        decode_batch(b"HWB2" + data[4:])
    with pytest.raises(NotSupported, match="upgrade"):
        decode_batch(resealed(data[:4] + b"\x09" + data[5:]))


@given(data=st.data())
def test_damage_under_a_fitting_checksum_gives_documented_errors_alone(data: Any) -> None:
    good = encode_parts(batch_of([b"abc", None, b"defgh"])).together()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 13))] = data.draw(st.integers(0, 255))
    try:
        found = decode_batch(resealed(bytes(bad)))
    except (Corrupt, NotSupported):
        return
    found.records.validate(full=True)


@given(st.binary(max_size=400))
def test_any_bytes_give_documented_errors_alone(junk: bytes) -> None:
    for data in (junk, b"HWB1" + junk + b"HWB1"):
        with pytest.raises((Corrupt, NotSupported)):
            decode_batch(data)


def test_a_size_nobody_has_is_refused_before_it_is_allocated() -> None:
    data = bytearray(encode_parts(batch_of([b"x" * 1000]), Compression.ZSTD).together())
    place = len(data) - FOOTER_BYTES + 8
    for size in (limits.BATCH_MAX_BYTES, limits.BATCH_MAX_BYTES + 1, 2**63):
        data[place : place + 8] = struct.pack("<Q", size)
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        with pytest.raises(Corrupt):
            decode_batch(resealed(bytes(data)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * len(data) + MIB
        assert pa.total_allocated_bytes() - before < MIB


def test_buffers_compressed_one_by_one_are_refused_before_they_are_unpacked() -> None:
    records = from_values([b"\0" * MIB])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_batch(records)
    with pytest.raises(Corrupt, match="individually"):
        arrow_stream.read(sink.getvalue())


def test_a_batch_has_largest_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_MAX_ROWS", 1)
    with pytest.raises(LimitExceeded, match="BATCH_MAX_ROWS"):
        encode_parts(batch_of([b"a", b"b"])).together()


def test_the_overhead_is_what_is_documented() -> None:
    assert (FOOTER_BYTES, OVERHEAD_BYTES) == (76, 84)


def test_offsets_that_point_anywhere_are_noticed() -> None:
    offsets = pa.py_buffer(struct.pack("<3i", 0, 1_000_000, 2))
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"ab")])
    records = pa.record_batch([column], names=["_value"])
    stream = b"".join(arrow_stream.parts(records))  # type: ignore[arg-type]
    with pytest.raises(Corrupt):
        arrow_stream.read(stream)


@pytest.mark.parametrize(
    ("place", "form", "value"),
    [(8, "<Q", limits.BATCH_MAX_BYTES + 1), (24, "<I", limits.BATCH_MAX_ROWS + 1)],
)
def test_a_footer_beyond_the_limits_is_refused_by_itself(place: int, form: str, value: int) -> None:
    tail = bytearray(encode_parts(batch_of([b"a"])).together()[-FOOTER_BYTES:])
    tail[place : place + struct.calcsize(form)] = struct.pack(form, value)
    with pytest.raises(Corrupt, match="beyond"):
        read_footer(bytes(tail))
