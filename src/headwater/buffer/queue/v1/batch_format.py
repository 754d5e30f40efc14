"""The published batch format, version 1, and the counts of batches.

    batch  = block | u8 compression | u32 record_count | u16 version = 1
    block  = (u32 length | bytes)*, compressed as one whole if the footer says so; written as one
             zstd frame, and read also as several

The position of a record follows from the lengths of all records before it, so reading a batch
follows a chain: the only loop over records in Headwater. It is kept short by guessing and then
verifying the guess without a loop: that all records have the same length, or that no length needs
more than its lowest byte. If every length that a guess stepped over matches, the guess has followed
the chain; if not, the lengths are read one by one.

Always holds:

- lengths and counts are checked before anything is allocated: `record_count` against what the block
  can hold, each length against the rest of the block, and the size of the block against `max_bytes`
  before it is decompressed;
- beside the block itself, at most three times its size and 1 MiB are allocated;
- errors are checked in this order: too short, compression, version, decompression, record count,
  truncated length, truncated data, bytes after the last record;
- readers raise only `Corrupt`, `NotSupported` and `LimitExceeded`.

The manifest names batches without their sizes. A ranged read of a batch's footer returns the number
of its records, and the size of the object.
"""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.buffer.compression import Buffer, Compression, compress, decompress
from headwater.core import limits
from headwater.core.errors import BadKey, Corrupt, LimitExceeded, NotSupported, Refused
from headwater.core.limits import BATCH_MAX_BYTES
from headwater.store import ByteRange, Store

if TYPE_CHECKING:
    import pyarrow as pa


VERSION: Final = 1
_FOOTER: Final = struct.Struct("<BIH")
FOOTER_BYTES: Final = _FOOTER.size
_LENGTH_BYTES: Final = 4
_OFFSET_MAX: Final = (1 << 31) - 1  # Arrow's offsets are signed 32-bit numbers
# Records per guess. What a wrong guess wastes, and the memory of the loop, are bounded by it.
_STRIDE_RECORDS: Final = 8192
_KNOWN: Final = (Compression.NONE, Compression.ZSTD)


class V1Footer(NamedTuple):
    """The last seven bytes of a batch."""

    record_count: int
    compression: Compression


def encode_batch(
    records: Sequence[bytes] | pa.BinaryArray,
    compression: Compression = Compression.NONE,
    *,
    max_bytes: int = BATCH_MAX_BYTES,
) -> bytes:
    """The bytes of one batch, as the reference writes them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if compression not in _KNOWN:
        raise Refused(f"a v1 batch cannot be compressed with {compression.name}: none or zstd")
    values = records if isinstance(records, pa.Array) else pa.array(records, pa.binary())
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    if values.null_count:
        raise Refused(f"{values.null_count:,} of {len(values):,} records are null: v1 has no nulls")
    lengths = pc.binary_length(values)
    size_bytes = (pc.sum(lengths).as_py() or 0) + _LENGTH_BYTES * len(values)
    if size_bytes > min(max_bytes, _OFFSET_MAX):
        raise LimitExceeded(
            f"a batch of {size_bytes:,} bytes; at most {min(max_bytes, _OFFSET_MAX):,} would be "
            "read back. Split it."
        )
    block = _interleave(lengths, values, size_bytes)
    footer = _FOOTER.pack(compression, len(values), VERSION)
    return b"".join((compress(compression, block), footer))


def _interleave(lengths: pa.Int32Array, values: pa.BinaryArray, size_bytes: int) -> pa.Buffer:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(values):
        return pa.py_buffer(b"")
    bits = lengths.buffers()[1].slice(lengths.offset * _LENGTH_BYTES)
    prefixes = pa.Array.from_buffers(pa.binary(_LENGTH_BYTES), len(lengths), [None, bits])
    joined = pc.binary_join_element_wise(prefixes.cast(pa.binary()), values, b"")
    return joined.buffers()[2].slice(0, size_bytes)


def read_footer(tail: Buffer) -> V1Footer:
    """The footer; `tail` ends where the batch ends."""
    view = memoryview(tail).cast("B")
    if len(view) < FOOTER_BYTES:
        raise Corrupt(f"a batch of {len(view)} bytes: its footer alone takes {FOOTER_BYTES}")
    code, record_count, version = _FOOTER.unpack_from(view, len(view) - FOOTER_BYTES)
    if code not in _KNOWN:
        raise NotSupported(
            f"compression code {code} at offset {len(view) - FOOTER_BYTES:,} of a v1 batch: known "
            "are 0 (none) and 1 (zstd). If the batch is not damaged, a newer writer wrote it: "
            "upgrade Headwater to a version that reads its format."
        )
    if version != VERSION:
        raise NotSupported(
            f"batch version {version} at offset {len(view) - 2:,}: known is {VERSION}. If the "
            "batch is not damaged, a newer writer wrote it: upgrade Headwater to a version that "
            "reads its format."
        )
    return V1Footer(record_count, Compression(code))


def decode_batch(
    data: Buffer, *, lenient: bool = False, max_bytes: int = BATCH_MAX_BYTES
) -> pa.BinaryArray:
    """The records of one batch. `lenient` ignores bytes after the last record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    view = memoryview(data).cast("B")
    record_count, compression = read_footer(view)
    footer_start = len(view) - FOOTER_BYTES
    if compression is Compression.NONE and isinstance(data, bytes):
        # Not copied: the chain stops at the footer.
        block, end = data, footer_start
        _check_size(end, max_bytes)
    else:
        packed = view[:footer_start]
        block = bytes(decompress(compression, packed, max_bytes=max_bytes, several=True))
        end = len(block)
    _check_size(end, _OFFSET_MAX)
    if record_count > end // _LENGTH_BYTES:
        raise Corrupt(
            f"record_count is {record_count:,}, and a block of {end:,} bytes holds at most "
            f"{end // _LENGTH_BYTES:,} records"
        )
    offsets = _follow(block, end, record_count)
    if offsets[-1] < end and not lenient:
        raise Corrupt(
            f"{end - offsets[-1]:,} bytes follow the last of {record_count:,} records at offset "
            f"{offsets[-1]:,} of the block"
        )
    if not record_count:
        return pa.array([], pa.binary())
    framed = _framed(block, offsets, 0, record_count)
    return pc.binary_replace_slice(framed, 0, _LENGTH_BYTES, b"")


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise LimitExceeded(f"a batch of {size_bytes:,} bytes; at most {max_bytes:,} are read")


def _framed(block: bytes, offsets: array[int], first: int, count: int) -> pa.BinaryArray:
    """Records from `first` on, each with its length before it, over the block's own bytes."""
    import pyarrow as pa

    places = pa.py_buffer(offsets).slice(first * offsets.itemsize)
    return pa.Array.from_buffers(pa.binary(), count, [None, places, pa.py_buffer(block)])


def _follow(block: bytes, end: int, record_count: int) -> array[int]:
    """The offset of each record, and the end of the last one."""
    offsets = array("i", (0,))
    if record_count and end % record_count == 0:
        size = end // record_count
        if size - _LENGTH_BYTES == int.from_bytes(block[:_LENGTH_BYTES], "little"):
            even = array("i", range(0, end + 1, size))
            starts = range(0, record_count, _STRIDE_RECORDS)
            strides = ((first, min(_STRIDE_RECORDS, record_count - first)) for first in starts)
            if all(_is_chain(block, even, first, count) for first, count in strides):
                return even
    narrow = True
    while (done := len(offsets) - 1) < record_count:
        count = min(_STRIDE_RECORDS, record_count - done)
        if narrow:
            guess = _low_bytes(block, offsets[done], count)
            if len(guess) == count and guess[-1] <= end:
                offsets.fromlist(guess)
                narrow = _is_chain(block, offsets, done, count)
                if narrow:
                    continue
                del offsets[done + 1 :]
            narrow = False
        offsets.fromlist(_one_by_one(block, end, offsets[done], done, count))
    return offsets


def _low_bytes(block: bytes, position: int, count: int) -> list[int]:
    """The ends of the records if no length is above 255; fewer than `count` at the block's end."""
    ends: list[int] = []
    append = ends.append
    try:
        for _ in repeat(None, count):
            position += block[position] + _LENGTH_BYTES
            append(position)
    except IndexError:
        return ends
    return ends


def _is_chain(block: bytes, offsets: array[int], first: int, count: int) -> bool:
    """Whether every offset is the previous one plus the length stored there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    framed = _framed(block, offsets, first, count)
    prefixes = pc.binary_slice(framed, 0, _LENGTH_BYTES)
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, prefixes.buffers()[2]])
    steps = pc.subtract(pc.binary_length(framed), pa.scalar(_LENGTH_BYTES, pa.int32()))
    return bool(lengths.equals(steps))


def _one_by_one(block: bytes, end: int, position: int, done: int, count: int) -> list[int]:
    """The ends of `count` records, with each length checked against the rest of the block."""
    unpack = struct.Struct("<I").unpack_from
    ends: list[int] = []
    append = ends.append
    last = end - _LENGTH_BYTES
    for _ in repeat(None, count):
        if position > last:
            raise Corrupt(
                f"the length of record {done + len(ends):,} at offset {position:,} of the block "
                f"is cut off at {end:,}"
            )
        start = position
        position += unpack(block, position)[0] + _LENGTH_BYTES
        if position > end:
            raise Corrupt(
                f"record {done + len(ends):,} at offset {start:,} of the block is cut off: it "
                f"says {position - start - _LENGTH_BYTES:,} bytes, and "
                f"{end - start - _LENGTH_BYTES:,} are left"
            )
        append(position)
    return ends


class BatchCount(NamedTuple):
    """The number of records in a batch, and the size and time of its object."""

    rows: int
    size_bytes: int
    modified_ms: int


class BatchCounts:
    """A cache of counts, by location."""

    def __init__(self, store: Store, capacity: int = limits.V1_COUNTS_CACHED) -> None:
        self._store = store
        self._capacity = capacity
        self._known: OrderedDict[str, BatchCount] = OrderedDict()

    def add(self, location: str, count: BatchCount) -> None:
        """Add a count. Batches never change."""
        self._known[location] = count
        self._known.move_to_end(location)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    async def of(self, location: str) -> BatchCount:
        """The count of one batch; raises what `read_footer` raises."""
        count = self._known.get(location)
        if count is None:
            count = await self._read(location)
        self.add(location, count)
        return count

    async def _read(self, location: str) -> BatchCount:

        try:
            stored = await self._store.get(location, ByteRange(-FOOTER_BYTES), foreign=True)
        except BadKey as error:
            # Another implementation may write any text. An escaped one would name another object.
            raise BadKey(f"the batch at location {location!r} cannot be read: {error}") from None
        rows, compression = read_footer(stored.data)
        block_bytes = limits.BATCH_MAX_BYTES
        if compression is Compression.NONE:
            block_bytes = min(stored.meta.size_bytes - FOOTER_BYTES, block_bytes)
        if rows * _LENGTH_BYTES > block_bytes:
            raise Corrupt(
                f"{location}: record_count is {rows:,}, and {stored.meta.size_bytes:,} bytes hold "
                "fewer"
            )
        return BatchCount(rows, stored.meta.size_bytes, stored.meta.modified_ms)
