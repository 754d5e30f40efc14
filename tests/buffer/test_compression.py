"""Compression: what goes in comes out, and no frame takes memory on its own word."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer.compression import (
    ZSTD_FRAMES_MAX,
    Compression,
    compress,
    decompress,
)
from headwater.core.errors import Corrupt, LimitExceeded
from headwater.core.limits import GIB, KIB, MIB

NONE, ZSTD, LZ4 = Compression.NONE, Compression.ZSTD, Compression.LZ4
FRAMED = pytest.mark.parametrize("kind", [ZSTD, LZ4])
TEXT = b"the same words again and again, "
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
HELLO_BLOCK = bytes.fromhex("290000") + b"hello"
"""The last block of a zstd frame, raw, five bytes."""

STREAM_OVERHEAD_BYTES = 2 * MIB
"""What Arrow's buffers take beside input and output."""


def streamed(kind: Compression, data: bytes, *, piece_bytes: int = 50_000) -> bytes:
    """A frame that does not say how much it holds."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, kind.name.lower()) as stream:
        for start in range(0, len(data), piece_bytes):
            stream.write(data[start : start + piece_bytes])
    written: bytes = sink.getvalue().to_pybytes()
    return written


def whole(kind: Compression, data: bytes) -> bytes:
    written: bytes = compress(kind, data).to_pybytes()
    return written


class Peak:
    used_bytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """What Python and Arrow together take at most while inside."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    found = Peak()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield found
        found.used_bytes = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("kind", list(Compression))
@given(data=st.binary(max_size=300), repeats=st.integers(0, 2000))
def test_what_was_compressed_comes_back(kind: Compression, data: bytes, repeats: int) -> None:
    content = data * repeats

    assert decompress(kind, compress(kind, content), max_bytes=len(content)) == content


@FRAMED
@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 65_537, 1_000_000])
def test_a_frame_that_does_not_say_its_size_is_read(kind: Compression, size: int) -> None:
    content = (TEXT * (size // len(TEXT) + 1))[:size]

    assert decompress(kind, streamed(kind, content), max_bytes=size) == content


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pa.py_buffer])
@pytest.mark.parametrize("kind", list(Compression))
def test_any_kind_of_buffer_is_taken(kind: Compression, wrap: type[bytes]) -> None:
    written = compress(kind, wrap(TEXT))

    assert decompress(kind, wrap(written.to_pybytes()), max_bytes=100) == TEXT


def test_zstd_has_the_level_of_the_published_format() -> None:
    content = b"".join(b"%d " % (number * number) for number in range(5000))
    at_level_3 = pa.Codec("zstd", compression_level=3).compress(content, asbytes=True)

    assert compress(ZSTD, content).to_pybytes() == at_level_3


@pytest.mark.parametrize("kind", list(Compression))
@pytest.mark.parametrize("write", [whole, streamed])
def test_one_byte_more_than_allowed_is_refused(
    kind: Compression, write: Callable[[Compression, bytes], bytes]
) -> None:
    frame = TEXT if kind is NONE else write(kind, TEXT)

    assert decompress(kind, frame, max_bytes=len(TEXT)) == TEXT
    with pytest.raises(LimitExceeded, match="at most 31"):
        decompress(kind, frame, max_bytes=len(TEXT) - 1)


@FRAMED
def test_a_bomb_is_refused_before_its_memory_is_taken(kind: Compression) -> None:
    said = whole(kind, bytes(64 * MIB))
    unsaid = streamed(kind, bytes(64 * MIB))

    for bomb in (said, unsaid):
        with peak_memory() as peak, pytest.raises(LimitExceeded):
            decompress(kind, bomb, max_bytes=MIB)
        assert peak.used_bytes <= 2 * MIB + len(bomb) + STREAM_OVERHEAD_BYTES


def test_a_frame_that_says_its_size_takes_that_much_and_no_more() -> None:
    frame = whole(ZSTD, bytes(16 * MIB))

    with peak_memory() as peak:
        decompress(ZSTD, frame, max_bytes=GIB)

    assert peak.used_bytes <= 16 * MIB + 64 * KIB


@FRAMED
def test_a_frame_that_does_not_say_takes_twice_what_comes_out(kind: Compression) -> None:
    frame = streamed(kind, bytes(16 * MIB))

    with peak_memory() as peak:
        decompress(kind, frame, max_bytes=GIB)

    assert peak.used_bytes <= 32 * MIB + len(frame) + STREAM_OVERHEAD_BYTES


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("c0 88 0000008000000000", id="2 GiB"),
        pytest.param("e0 ffffffffffffff7f", id="8 EiB, one segment"),
        pytest.param("a0 00000080", id="2 GiB in four bytes"),
        pytest.param("20 06", id="one byte more than there is"),
    ],
)
def test_a_size_that_the_blocks_cannot_give_is_corrupt(header: str) -> None:
    frame = ZSTD_MAGIC + bytes.fromhex(header) + HELLO_BLOCK

    with peak_memory() as peak, pytest.raises(Corrupt, match="can give 5 at most"):
        decompress(ZSTD, frame, max_bytes=1 << 63)
    assert peak.used_bytes < 256 * KIB


def test_a_size_below_what_the_blocks_give_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="does not decompress"):
        decompress(ZSTD, ZSTD_MAGIC + bytes.fromhex("20 04") + HELLO_BLOCK, max_bytes=MIB)


@pytest.mark.parametrize("window", ["00", "88", "f8"])
def test_a_window_is_no_larger_than_the_content_can_fill(window: str) -> None:
    # f8 is a window of 2 TiB: zstd's own stream refuses it, and takes the 128 MiB of 88.
    frame = ZSTD_MAGIC + bytes.fromhex(f"00 {window}") + HELLO_BLOCK

    assert decompress(ZSTD, frame, max_bytes=5) == b"hello"


def test_a_checksum_is_checked_also_under_a_smaller_window() -> None:
    good = bytes.fromhex("28b52ffd 04 88 c90000") + bytes.fromhex(
        "0500000068656c6c6f05000000776f726c6403000000666f6f ce1f7874"
    )

    assert len(decompress(ZSTD, good, max_bytes=MIB)) == 25
    with pytest.raises(Corrupt, match="does not decompress"):
        decompress(ZSTD, good[:-1] + b"\0", max_bytes=MIB)


@FRAMED
@pytest.mark.parametrize("write", [whole, streamed])
def test_a_block_is_one_frame(
    kind: Compression, write: Callable[[Compression, bytes], bytes]
) -> None:
    frame = write(kind, TEXT)

    for after in (b"\0", b"junk", frame, bytes.fromhex("502a4d1800000000")):
        with pytest.raises(Corrupt, match=f"{len(after)} bytes follow"):
            decompress(kind, frame + after, max_bytes=MIB)


@FRAMED
@pytest.mark.parametrize("write", [whole, streamed])
def test_every_cut_is_corrupt(
    kind: Compression, write: Callable[[Compression, bytes], bytes]
) -> None:
    frame = write(kind, TEXT * 20 + bytes(range(256)))

    for size in range(len(frame)):
        with pytest.raises(Corrupt):
            decompress(kind, frame[:size], max_bytes=MIB)


def test_skippable_frames_before_the_frame_are_passed_over() -> None:
    skipped = bytes.fromhex("502a4d1804000000") + b"skip" + bytes.fromhex("5f2a4d1800000000")

    assert decompress(ZSTD, skipped + whole(ZSTD, TEXT), max_bytes=MIB) == TEXT
    for nothing in (skipped, skipped[:6], bytes.fromhex("502a4d18ffffffff") + b"skip"):
        with pytest.raises(Corrupt, match="cut off"):
            decompress(ZSTD, nothing, max_bytes=MIB)


SKIPPED = bytes.fromhex("502a4d1803000000") + b"abc"


@pytest.mark.parametrize("write", [whole, streamed])
def test_several_zstd_frames_are_read_where_they_may_be(
    write: Callable[[Compression, bytes], bytes],
) -> None:
    parts = [TEXT[:3], b"", TEXT * 9, bytes(70_000)]
    frames = [write(ZSTD, part) for part in parts]
    for data in (b"".join(frames), SKIPPED + SKIPPED.join(frames) + SKIPPED):
        assert decompress(ZSTD, data, max_bytes=MIB, several=True) == b"".join(parts)
        with pytest.raises(Corrupt, match="content is one frame"):
            decompress(ZSTD, data, max_bytes=MIB)
        for cut in (len(data) - 1, len(data) - 6):
            with pytest.raises(Corrupt):
                decompress(ZSTD, data[:cut], max_bytes=MIB, several=True)
        with pytest.raises(Corrupt):
            decompress(ZSTD, data + b"x", max_bytes=MIB, several=True)
    size = len(b"".join(parts))
    assert len(decompress(ZSTD, b"".join(frames), max_bytes=size, several=True)) == size
    with pytest.raises(LimitExceeded):
        decompress(ZSTD, b"".join(frames), max_bytes=size - 1, several=True)


def test_skippable_frames_alone_hold_nothing_and_no_frame_at_all_is_damage() -> None:
    assert decompress(ZSTD, SKIPPED * 2, max_bytes=0, several=True) == b""
    with pytest.raises(Corrupt, match="cut off"):
        decompress(ZSTD, b"", max_bytes=MIB, several=True)


@pytest.mark.parametrize("frame", [SKIPPED, bytes.fromhex("28b52ffd2000010000")])
def test_frames_without_end_are_refused(frame: bytes) -> None:
    data = whole(ZSTD, TEXT) + frame * (ZSTD_FRAMES_MAX + 1)
    with pytest.raises(LimitExceeded, match="65,536"):
        decompress(ZSTD, data, max_bytes=MIB, several=True)


@pytest.mark.parametrize(
    ("kind", "frame", "reason"),
    [
        (ZSTD, "00000000", "no zstd frame"),
        (ZSTD, "28b52ffd28", "reserved bit"),
        (ZSTD, "28b52ffd 23 07000000 05 290000 68656c6c6f", "needs a dictionary"),
        (ZSTD, "28b52ffd 20 05 2f0000 68656c6c6f", "reserved kind"),
        (ZSTD, "28b52ffd 20 05 fbffff 68", "says 2,097,151 bytes: too many"),
        (LZ4, "28b52ffd", "no lz4 frame"),
        (LZ4, "04224d18 80", "version 2"),
        (LZ4, "04224d18 41", "needs a dictionary"),
        (LZ4, "04224d18 40 30", "block size 3"),
        (LZ4, "04224d18 40 40 c0 01000100", "says 65,537 bytes: too many"),
        (LZ4, "04224d18 48 40 ffffffffffffff7f 00 00000000", "can give 0 at most"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(kind: Compression, frame: str, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        decompress(kind, bytes.fromhex(frame), max_bytes=MIB)


@pytest.mark.parametrize("said", [4, 5])
def test_an_lz4_frame_holds_what_it_says(said: int) -> None:
    # The byte after the size is the header's own checksum: one of the 256 is right.
    start = bytes.fromhex("04224d18 68 40") + said.to_bytes(8, "little")
    blocks = (1 << 31 | 5).to_bytes(4, "little") + b"hello" + bytes(4)
    found = []
    for checksum in range(256):
        try:
            found.append(decompress(LZ4, start + bytes((checksum,)) + blocks, max_bytes=5))
        except Corrupt:
            continue

    assert found == ([b"hello"] if said == 5 else [])


def test_an_lz4_frame_s_checksum_belongs_to_it() -> None:
    blocks = (1 << 31 | 5).to_bytes(4, "little") + b"hello" + bytes(4)
    frame = bytes.fromhex("04224d18 64 40 a7") + blocks

    with pytest.raises(Corrupt, match="checksum at offset 20 is cut off"):
        decompress(LZ4, frame + b"123", max_bytes=5)
    with pytest.raises(Corrupt, match="does not decompress"):
        decompress(LZ4, frame + b"1234", max_bytes=5)
    with pytest.raises(Corrupt, match="1 bytes follow"):
        decompress(LZ4, frame + b"12345", max_bytes=5)


SEEDS = [
    (kind, write(kind, content))
    for kind in (ZSTD, LZ4)
    for write in (whole, streamed)
    for content in (b"", TEXT, TEXT * 50 + bytes(range(256)), bytes(200_000))
]


@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, 1 << 16),
    after=st.binary(max_size=4),
)
def test_changed_frames_give_bytes_or_documented_errors(
    seed: tuple[Compression, bytes],
    changes: list[tuple[int, int]],
    cut: int | None,
    after: bytes,
) -> None:
    kind, frame = seed
    changed = bytearray(frame)
    for place, value in changes:
        changed[place % len(changed)] = value
    data = bytes(changed[:cut]) + after

    for several in (False, kind is ZSTD):
        try:
            found = decompress(kind, data * (1 + several), max_bytes=MIB, several=several)
        except (Corrupt, LimitExceeded):
            continue
        assert len(found) <= MIB


@FRAMED
@given(data=st.binary(max_size=200))
def test_random_bytes_give_documented_errors(kind: Compression, data: bytes) -> None:
    magic = ZSTD_MAGIC if kind is ZSTD else bytes.fromhex("04224d18")
    for frame in (data, magic + data):
        try:
            decompress(kind, frame, max_bytes=MIB)
        except (Corrupt, LimitExceeded):
            continue
