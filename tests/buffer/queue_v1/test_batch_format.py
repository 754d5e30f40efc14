"""The published batch format: byte for byte, and nothing is believed before it is checked."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.compression import Compression, compress
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.queue.v1.batch_format import (
    FOOTER_BYTES,
    V1Footer,
    decode_batch,
    encode_batch,
    read_footer,
)
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.core.limits import MIB

VECTORS = Path(__file__).parents[1] / "vectors"
WRITTEN: dict[str, dict[str, Any]] = json.loads((VECTORS / "v1_batches.json").read_text())[
    "batches"
]
ODD: dict[str, dict[str, str]] = json.loads((VECTORS / "v1_odd.json").read_text())["batch"]
DOCUMENTED = (Corrupt, NotSupported, LimitExceeded)
NOT_SUPPORTED = {"version_2", "compression_255", "truncated_1_byte"}
"""What reads as another version's batch. A cut moves the footer, and the code is read first."""
BOTH = pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])

RECORDS = st.lists(st.binary(max_size=40), max_size=30)


def batch(block: bytes, record_count: int, *, code: int = 0, version: int = 1) -> bytes:
    return block + struct.pack("<BIH", code, record_count, version)


def block_of(records: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(record)) + record for record in records)


@contextmanager
def memory_within(limit_bytes: int) -> Iterator[None]:
    """What Python and Arrow together take while inside stays within the limit."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] + pool.max_memory() <= limit_bytes
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_reference_s_bytes_are_read_and_written(name: str) -> None:
    vector = WRITTEN[name]
    data = bytes.fromhex(vector["hex"])
    records = [bytes.fromhex(record) for record in vector["records"]]
    compression = Compression[vector["compression"].upper()]

    assert decode_batch(data).to_pylist() == records
    assert read_footer(data[-FOOTER_BYTES:]) == V1Footer(len(records), compression)
    assert encode_batch(records, compression) == data
    assert encode_batch(pa.array(records, pa.binary()), compression) == data


def test_all_vectors_are_there() -> None:
    assert (len(WRITTEN), len(ODD)) == (8, 16)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_batch_is_read_as_strictly_as_it_should(name: str) -> None:
    data, read = bytes.fromhex(ODD[name]["hex"]), ODD[name]["read"]
    kind = NotSupported if name in NOT_SUPPORTED else Corrupt

    for lenient in (False, True):
        if read == "always" or (read == "leniently" and lenient):
            records = [] if "count_zero" in name else [b"hello", b"world", b"foo"]
            assert decode_batch(data, lenient=lenient).to_pylist() == records
        else:
            with pytest.raises(kind):
                decode_batch(data, lenient=lenient)


@BOTH
@given(records=RECORDS)
def test_what_was_written_is_read_back(compression: Compression, records: list[bytes]) -> None:
    data = encode_batch(records, compression)

    assert decode_batch(data).to_pylist() == records
    assert decode_batch(data).type == pa.binary()
    assert read_footer(data) == (len(records), compression)
    if compression is Compression.NONE:
        assert data == batch(block_of(records), len(records))


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([0], id="empty"),
        pytest.param([100], id="equal"),
        pytest.param([50, 151, 3, 255], id="short"),
        pytest.param([255, 256], id="around one byte"),
        pytest.param([10] * 30_000 + [300], id="long ones late"),
        pytest.param([0, 70_000, 1], id="very long"),
        pytest.param([256], id="equal, and a multiple of 256"),
    ],
)
def test_every_way_along_the_chain_leads_to_the_same_records(sizes: list[int]) -> None:
    wanted = 200 if max(sizes) > 10_000 else 40_000
    pattern = bytes(range(256)) * 300
    records = [pattern[index % 256 :][: sizes[index % len(sizes)]] for index in range(wanted)]

    data = encode_batch(records)

    assert data == batch(block_of(records), wanted)
    assert decode_batch(data).equals(pa.array(records, pa.binary()))
    longer = batch(data[:-FOOTER_BYTES] + b"\x01", wanted)
    assert decode_batch(longer, lenient=True).equals(pa.array(records, pa.binary()))
    with pytest.raises(Corrupt, match="1 bytes follow the last"):
        decode_batch(longer)


@pytest.mark.parametrize("sizes", [[4, 8, 0], [4, 0, 8], [4, 4, 0, 8]])
def test_records_that_are_equally_long_on_average_are_not_taken_for_equal(sizes: list[int]) -> None:
    records = [b"." * size for size in sizes]

    assert decode_batch(encode_batch(records)).to_pylist() == records


@given(records=RECORDS, stride=st.integers(1, 9))
def test_where_a_guess_ends_does_not_matter(records: list[bytes], stride: int) -> None:
    data = batch(block_of(records), len(records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_format, "_STRIDE_RECORDS", stride)

        assert decode_batch(data).to_pylist() == records


@given(
    sizes=st.lists(st.sampled_from([0, 1, 4, 252, 255, 256, 260, 512, 1024]), max_size=12),
    fill=st.sampled_from([b"\0", b"\x01", b"\x04", b"\xff"]),
)
def test_records_that_look_like_lengths_are_not_taken_for_them(
    sizes: list[int], fill: bytes
) -> None:
    records = [fill * size for size in sizes]

    assert decode_batch(encode_batch(records)).to_pylist() == records


@pytest.mark.parametrize("wrap", [bytearray, memoryview, pa.py_buffer])
@BOTH
def test_any_kind_of_buffer_is_read(wrap: type[bytearray], compression: Compression) -> None:
    data = encode_batch([b"one", b"", b"three"], compression)

    assert decode_batch(wrap(data)).to_pylist() == [b"one", b"", b"three"]
    assert read_footer(wrap(data)).record_count == 3


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()])
def test_a_part_of_an_array_is_written_as_what_it_shows(kind: pa.DataType) -> None:
    records = pa.array(["none", "one", "", "three", "none"], kind).slice(1, 3)

    assert encode_batch(records) == encode_batch([b"one", b"", b"three"])


def test_a_null_is_refused() -> None:
    with pytest.raises(Refused, match="1 of 2 records are null"):
        encode_batch(pa.array([b"one", None], pa.binary()))


def test_a_compression_that_v1_does_not_know_is_refused() -> None:
    with pytest.raises(Refused, match="LZ4"):
        encode_batch([b"one"], Compression.LZ4)
    with pytest.raises(NotSupported, match="code 2 at offset 7"):
        decode_batch(batch(block_of([b"one"]), 1, code=2))


@BOTH
def test_what_would_not_be_read_back_is_not_written(compression: Compression) -> None:
    data = encode_batch([b"123456"], compression, max_bytes=10)

    assert decode_batch(data, max_bytes=10).to_pylist() == [b"123456"]
    with pytest.raises(LimitExceeded, match="at most 9"):
        encode_batch([b"123456"], compression, max_bytes=9)
    with pytest.raises(LimitExceeded, match="at most 9"):
        decode_batch(data, max_bytes=9)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"", Corrupt, "a batch of 0 bytes"),
        (batch(b"", 9, code=9, version=9)[1:], Corrupt, "a batch of 6 bytes"),
        (batch(b"", 9, code=9, version=9), NotSupported, "compression code 9"),
        (batch(b"", 9, code=1, version=9), NotSupported, "version 9 .* upgrade"),
        (batch(b"", 9, code=1), Corrupt, "zstd frame's magic"),
        (batch(b"\x05\0\0\0", 2), Corrupt, "record_count is 2, .* at most 1"),
        (batch(b"\0\0\0\0\0\0\0", 2), Corrupt, "record_count is 2, .* at most 1"),
        (batch(b"\x01\0\0\0.\0\0\0", 2), Corrupt, "length of record 1 at offset 5 .* cut off at 8"),
        (batch(b"\0\0\0\0\x02\0\0\0.", 2), Corrupt, "record 1 at offset 4 .* 2 bytes, and 1 are"),
    ],
)
def test_faults_are_found_in_the_published_order(
    data: bytes, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        decode_batch(data)


def test_a_fault_far_down_the_chain_is_placed() -> None:
    records = [b"x" * (index % 200) for index in range(20_000)]
    good = block_of(records)
    cut = good[:-1]

    with pytest.raises(Corrupt, match=rf"record 19,999 at offset {len(good) - 203:,}"):
        decode_batch(batch(cut, 20_000))


@pytest.mark.parametrize("count", [0xFFFF_FFFF, 100_000_000, 2])
@BOTH
def test_a_count_takes_no_memory(count: int, compression: Compression) -> None:
    block = compress(compression, block_of([b"one"])).to_pybytes()
    data = batch(block, count, code=compression)

    with memory_within(len(data) * 4 + MIB), pytest.raises(Corrupt, match="record_count"):
        decode_batch(data)


@pytest.mark.parametrize("count", [1, 0xFFFF_FFFF])
def test_a_bomb_is_refused(count: int) -> None:
    data = batch(compress(Compression.ZSTD, bytes(64 * MIB)).to_pybytes(), count, code=1)

    with memory_within(len(data) * 4 + MIB), pytest.raises(LimitExceeded):
        decode_batch(data, max_bytes=MIB)


@pytest.mark.parametrize("size", [0, 1, 100, 300])
@pytest.mark.parametrize("varied", [False, True])
def test_memory_is_bounded_by_the_input(size: int, varied: bool) -> None:
    count = 1_000_000 // (size + 4)
    sizes = [size + (index % 2 if varied else 0) for index in range(count)]
    data = encode_batch([b"x" * length for length in sizes])

    with memory_within(4 * len(data) + MIB):
        assert len(decode_batch(data)) == count


SEEDS = [bytes.fromhex(vector["hex"]) for vector in (*WRITTEN.values(), *ODD.values())] + [
    encode_batch([b"x" * (index % 7 * 50) for index in range(60)], compression)
    for compression in (Compression.NONE, Compression.ZSTD)
]


@settings(max_examples=400)
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), max_size=5),
    cut=st.tuples(st.integers(0, 1 << 14), st.integers(0, 9)),
    lenient=st.booleans(),
)
def test_changed_batches_give_records_or_documented_errors(
    seed: bytes, changes: list[tuple[int, int]], cut: tuple[int, int], lenient: bool
) -> None:
    changed = bytearray(seed)
    for place, value in changes:
        changed[place % len(changed)] = value
    start = cut[0] % len(changed)
    del changed[start : start + cut[1]]
    data = bytes(changed)

    try:
        records = decode_batch(data, lenient=lenient, max_bytes=MIB)
    except DOCUMENTED:
        return
    records.validate(full=True)
    footer = read_footer(data)
    assert len(records) == footer.record_count
    if footer.compression is Compression.NONE:
        written = encode_batch(records)
        assert data.startswith(written[:-FOOTER_BYTES])
        assert lenient or data == written


@given(block=st.binary(max_size=100), count=st.integers(0, 30), code=st.sampled_from([0, 0, 1, 2]))
def test_random_blocks_give_records_or_documented_errors(
    block: bytes, count: int, code: int
) -> None:
    try:
        records = decode_batch(batch(block, count, code=code), lenient=True, max_bytes=MIB)
    except DOCUMENTED:
        return
    assert len(records) == count
