"""Compression of some content as a whole, and decompression with bounded memory.

Content is compressed into exactly one frame of a public format: zstd (RFC 8878) or LZ4's frame
format. A frame is a row of blocks. Before decompression, the headers of the frame are walked, which
takes one step per block and no memory. The walk finds

- where the frame ends, so that a second frame or trailing bytes are noticed;
- the content size, if the frame states it;
- the largest possible content size.

Always holds:

- a frame that states more than `max_bytes` is refused, and one that states more than its blocks can
  contain is corrupt, both before anything is allocated;
- a frame with a stated size takes that much memory;
- a frame without one is decompressed piece by piece and refused at the first piece past
  `max_bytes`: it takes twice its output so far, one copy of the input, and about 2 MiB (for LZ4,
  also twice the stated block size, at most 4 MiB);
- `decompress` raises only `Corrupt` and `LimitExceeded`.

Skippable zstd frames before the frame are skipped, as zstd does. The published v1 format also has
content of several zstd frames, with skippable ones anywhere: `several` reads them, each frame
within the rest of `max_bytes`, and needs twice the memory of their content.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from headwater.core.errors import Corrupt, LimitExceeded
from headwater.core.limits import KIB, MIB

if TYPE_CHECKING:
    import pyarrow as pa

_ZSTD_LEVEL: Final = 3
"""The level of the published v1 format."""
ZSTD_FRAMES_MAX: Final = 65_536
"""The limit of frames in a row: reading empty ones takes time."""

_PIECE_BYTES: Final = 256 * KIB

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC: Final = 0x184D2A50
_ZSTD_SKIPPABLE_MASK: Final = 0xFFFFFFF0
_ZSTD_BLOCK_MAX_BYTES: Final = 128 * KIB
_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED = 0, 1, 2
_ZSTD_SMALLEST_WINDOW_LOG: Final = 10

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCK_MAX_BYTES: Final = {4: 64 * KIB, 5: 256 * KIB, 6: 1 * MIB, 7: 4 * MIB}
_LZ4_RAW: Final = 1 << 31
_LZ4_RATIO_MAX: Final = 255

Buffer: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"


class Compression(enum.IntEnum):
    """How content is compressed. The published v1 format has NONE and ZSTD, with these codes.

    A new one is added to `compress` and `decompress` here, and to

    - the choices in `stream/config.py`, and what a v1 stream refuses there and in
      `producer/config.py`;
    - `_KNOWN` in `queue/v1/batch_format.py`, only if the published format has it;
    - the option `compression` in `spark/options.py`;
    - `docs/formats/batch.md`.
    """

    NONE = 0
    ZSTD = 1
    LZ4 = 2


def compress(kind: Compression, data: Buffer) -> pa.Buffer:
    """Compress into one frame."""
    import pyarrow as pa

    if kind is Compression.NONE:
        return pa.py_buffer(data)
    level = _ZSTD_LEVEL if kind is Compression.ZSTD else None
    return pa.Codec(kind.name.lower(), compression_level=level).compress(data)


def decompress(
    kind: Compression, data: Buffer, *, max_bytes: int, several: bool = False
) -> bytes | memoryview:
    """The content of one frame, if that is at most `max_bytes`. Copies nothing without need.

    `several`: the content of one or more zstd frames, one after the other.
    """
    view = memoryview(data).cast("B")
    match kind:
        case Compression.NONE:
            if len(view) > max_bytes:
                raise _too_large(len(view), max_bytes)
            return view
        case Compression.LZ4:
            frame = _lz4_frame(view)
        case Compression.ZSTD:
            start = _after_skippable(view, 0)
            if several and 0 < start == len(view):
                return b""
            frame = _zstd_frame(view, start)
            if several and frame.end < len(view):
                return _series(view, frame, max_bytes)
        case unknown:
            assert_never(unknown)
    if frame.end < len(view):
        raise Corrupt(
            f"{len(view) - frame.end:,} bytes follow the {kind.name.lower()} frame that ends at "
            f"offset {frame.end:,}: content is one frame"
        )
    return _content(kind, view, frame, max_bytes)


def _series(view: memoryview, first: _Frame, max_bytes: int) -> bytes:
    """The content of all zstd frames."""
    frame, frames, total = first, 1, 0
    pieces: list[bytes] = []
    while True:
        pieces.append(_content(Compression.ZSTD, view, frame, max_bytes - total))
        total += len(pieces[-1])
        start = _after_skippable(view, frame.end)
        if start == len(view):
            return b"".join(pieces)
        if frames == ZSTD_FRAMES_MAX:
            raise LimitExceeded(f"content of more than {ZSTD_FRAMES_MAX:,} zstd frames")
        frame, frames = _zstd_frame(view, start), frames + 1


def _content(kind: Compression, view: memoryview, frame: _Frame, max_bytes: int) -> bytes:
    size, name = frame.content_bytes, f"the {kind.name.lower()} frame at offset {frame.start:,}"
    if size is not None and size > frame.most_bytes:
        raise Corrupt(
            f"{name} says that it holds {size:,} bytes, and its blocks can give "
            f"{frame.most_bytes:,} at most"
        )
    if size is not None and size > max_bytes:
        raise _too_large(size, max_bytes)
    try:
        if kind is Compression.ZSTD and size is not None:
            import pyarrow as pa

            whole = view[frame.start : frame.end]
            return bytes(pa.Codec("zstd").decompress(whole, size, asbytes=True))
        return _in_pieces(kind, frame, view, max_bytes=max_bytes)
    except OSError as error:
        raise Corrupt(f"{name} does not decompress: {error}") from error


@dataclass(frozen=True, slots=True)
class _Frame:
    """The headers of a frame: its position, and the size of its content."""

    start: int
    blocks_start: int
    end: int
    content_bytes: int | None
    """The stated size of the content; None if the frame does not state it."""
    most_bytes: int
    """The largest content that its blocks can have."""
    window_bytes: int
    checksummed: bool


def _too_large(size_bytes: int, max_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"the content is {size_bytes:,} bytes or more; at most {max_bytes:,} are read. "
        "Raise the limit if you trust the source."
    )


def _in_pieces(kind: Compression, frame: _Frame, view: memoryview, *, max_bytes: int) -> bytes:
    import pyarrow as pa

    start: bytes | memoryview = view[frame.start : frame.blocks_start]
    if kind is Compression.ZSTD:
        start = _zstd_small_window(frame, start)
    source = pa.BufferReader(b"".join((start, view[frame.blocks_start : frame.end])))
    pieces: list[bytes] = []
    total = 0
    with pa.CompressedInputStream(source, kind.name.lower()) as stream:
        while piece := stream.read(_PIECE_BYTES):
            total += len(piece)
            if total > max_bytes:
                raise _too_large(total, max_bytes)
            pieces.append(piece)
    return b"".join(pieces)


def _zstd_small_window(frame: _Frame, start: bytes | memoryview) -> bytes | memoryview:
    """The header with no larger a window than the content can fill.

    zstd's stream takes the whole window (up to 128 MiB) on the word of one byte in the header,
    before it has seen a block. No match reaches back past the start of the content, so a window
    that holds all of it decompresses to the same bytes.
    """
    window_log = max((frame.most_bytes - 1).bit_length(), _ZSTD_SMALLEST_WINDOW_LOG)
    if 1 << window_log >= frame.window_bytes:
        return start
    descriptor = int(frame.checksummed) << 2
    window = (window_log - _ZSTD_SMALLEST_WINDOW_LOG) << 3
    return _ZSTD_MAGIC.to_bytes(4, "little") + bytes((descriptor, window))


def _number(view: memoryview, offset: int, size: int, what: str) -> int:
    if offset + size > len(view):
        raise Corrupt(f"{what} at offset {offset:,} is cut off: the data end at {len(view):,}")
    return int.from_bytes(view[offset : offset + size], "little")


def _after_skippable(view: memoryview, start: int) -> int:
    """The offset after skippable frames."""
    for _ in range(ZSTD_FRAMES_MAX):
        if start + 4 > len(view):
            return start
        magic = _number(view, start, 4, "a zstd frame's magic")
        if magic & _ZSTD_SKIPPABLE_MASK != _ZSTD_SKIPPABLE_MAGIC:
            return start
        end = start + 8 + _number(view, start + 4, 4, "the length of a skippable zstd frame")
        if end > len(view):
            raise Corrupt(
                f"the skippable zstd frame at offset {start:,} is cut off at {len(view):,}"
            )
        start = end
    raise LimitExceeded(f"more than {ZSTD_FRAMES_MAX:,} skippable zstd frames in a row")


def _zstd_frame(view: memoryview, start: int) -> _Frame:
    magic = _number(view, start, 4, "a zstd frame's magic")
    if magic != _ZSTD_MAGIC:
        raise Corrupt(f"no zstd frame at offset {start:,}: it starts with {magic:#010x}")
    descriptor = _number(view, start + 4, 1, "a zstd frame's descriptor")
    if descriptor & 0b1000:
        raise Corrupt(f"the zstd frame at offset {start:,} sets a reserved bit")
    single_segment = bool(descriptor & 0b10_0000)
    offset = start + 5
    window_bytes = 0
    if not single_segment:
        window = _number(view, offset, 1, "a zstd frame's window")
        window_bytes = ((8 + (window & 7)) << (_ZSTD_SMALLEST_WINDOW_LOG + (window >> 3))) >> 3
        offset += 1
    dictionary_size = (0, 1, 2, 4)[descriptor & 0b11]
    if _number(view, offset, dictionary_size, "a zstd frame's dictionary"):
        raise Corrupt(f"the zstd frame at offset {start:,} needs a dictionary, and there is none")
    offset += dictionary_size
    content_size = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    content_bytes = None
    if content_size:
        content_bytes = _number(view, offset, content_size, "a zstd frame's content size")
        content_bytes += 256 if content_size == 2 else 0
        offset += content_size
    if single_segment:
        window_bytes = content_bytes or 0
    checksummed = bool(descriptor & 0b100)
    end, most_bytes = _zstd_blocks(view, offset, min(window_bytes, _ZSTD_BLOCK_MAX_BYTES))
    if checksummed:
        _number(view, end, 4, "a zstd frame's checksum")
        end += 4
    return _Frame(start, offset, end, content_bytes, most_bytes, window_bytes, checksummed)


def _zstd_blocks(view: memoryview, offset: int, block_max_bytes: int) -> tuple[int, int]:
    """The end of the last block, and the largest content of all blocks."""
    most_bytes = 0
    last = False
    while not last:
        header = _number(view, offset, 3, "a zstd block's header")
        last, kind, size = bool(header & 1), header >> 1 & 0b11, header >> 3
        if kind not in (_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED):
            raise Corrupt(f"the zstd block at offset {offset:,} is of a reserved kind")
        if size > _ZSTD_BLOCK_MAX_BYTES:
            raise Corrupt(f"the zstd block at offset {offset:,} says {size:,} bytes: too many")
        most_bytes += block_max_bytes if kind == _ZSTD_COMPRESSED else size
        stored = 1 if kind == _ZSTD_RLE else size
        if offset + 3 + stored > len(view):
            raise Corrupt(f"the zstd block at offset {offset:,} is cut off at {len(view):,}")
        offset += 3 + stored
    return offset, most_bytes


def _lz4_frame(view: memoryview) -> _Frame:
    magic = _number(view, 0, 4, "an lz4 frame's magic")
    if magic != _LZ4_MAGIC:
        raise Corrupt(f"no lz4 frame at offset 0: it starts with {magic:#010x}")
    flags = _number(view, 4, 1, "an lz4 frame's flags")
    if flags >> 6 != 1:
        raise Corrupt(f"the lz4 frame at offset 0 is of version {flags >> 6}, not 1")
    if flags & 1:
        raise Corrupt("the lz4 frame at offset 0 needs a dictionary, and there is none")
    block_code = _number(view, 5, 1, "an lz4 frame's block size") >> 4 & 7
    block_max_bytes = _LZ4_BLOCK_MAX_BYTES.get(block_code)
    if block_max_bytes is None:
        raise Corrupt(f"the lz4 frame at offset 0 has the unknown block size {block_code}")
    content_bytes = None
    offset = 6
    if flags & 0b1000:
        content_bytes = _number(view, offset, 8, "an lz4 frame's content size")
        offset += 8
    offset += 1
    blocks_start, most_bytes = offset, 0
    block_trailer = 4 if flags & 0b1_0000 else 0
    while header := _number(view, offset, 4, "an lz4 block's header"):
        size = header & ~_LZ4_RAW
        if size > block_max_bytes:
            raise Corrupt(f"the lz4 block at offset {offset:,} says {size:,} bytes: too many")
        most_bytes += size if header & _LZ4_RAW else min(block_max_bytes, _LZ4_RATIO_MAX * size)
        offset += 4 + size + block_trailer
    end = offset + 4
    if flags & 0b100:
        _number(view, end, 4, "an lz4 frame's checksum")
        end += 4
    return _Frame(0, blocks_start, end, content_bytes, most_bytes, 0, False)
