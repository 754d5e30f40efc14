"""A column of bytes whose values stand apart until somebody writes them: one by one, or in chunks.

To put the values of a batch together takes fresh memory of the batch's size, which costs more than
the copy: every page of it is cleared first. Written piece by piece, one small piece of memory
serves for all, and is still in the processor's cache when it is checksummed and written.

In the meantime a record batch has a stand-in for the column: an array of the same length, offsets
and size, whose bytes nobody may read. Arrow frames it as it would frame the column itself.
"""

from __future__ import annotations

import functools
import mmap
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import limits

PIECE_BYTES: Final = limits.MIB
"""What is put together at a time: from this size on Python lets others run while it copies."""

_ZERO: Final = bytes(4)


@functools.cache
def _nowhere() -> pa.Buffer:
    """Addresses without memory behind them: nothing is ever read or written there."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, limits.BATCH_MAX_BYTES, flags=flags, prot=mmap.PROT_READ))


class Apart(Protocol):
    """What stands apart."""

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        ...

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes, in order."""
        ...


class Chunks:
    """A column of bytes or text in several arrays, of one type."""

    __slots__ = ("_chunks", "_datas", "_length", "_starts")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self._chunks = chunks
        self._datas: list[memoryview] = []
        self._starts: list[int] = []
        for chunk in chunks:
            _, offsets, data = chunk.buffers()
            places = memoryview(offsets).cast("i")
            start, end = places[chunk.offset], places[chunk.offset + len(chunk)]
            self._starts.append(start)
            # An array's memory may hold more than its values.
            self._datas.append(memoryview(data or b"").cast("B")[start:end])
        self._length = sum(map(len, self._datas))

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        return self._length

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, chunk by chunk."""
        return iter(self._datas)

    def stand_in(self) -> pa.Array:
        """The column as far as its frame goes."""
        ends, before = [pa.array([0], pa.int32())], 0
        for chunk, start, data in zip(self._chunks, self._starts, self._datas, strict=True):
            offsets = pa.Array.from_buffers(
                pa.int32(), len(chunk), [None, chunk.buffers()[1]], offset=chunk.offset + 1
            )
            ends.append(pc.add(offsets, pa.scalar(before - start, pa.int32())))
            before += len(data)
        known = None
        if any(chunk.null_count for chunk in self._chunks):
            known = pa.concat_arrays([chunk.is_valid() for chunk in self._chunks]).buffers()[1]
        return pa.Array.from_buffers(
            self._chunks[0].type,
            sum(map(len, self._chunks)),
            [known, pa.concat_arrays(ends).buffers()[1], _nowhere().slice(0, len(self))],
        )


class Loose:
    """Values of one column, in order, none of them null."""

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: Sequence[bytes], sizes: array[int] | None = None) -> None:
        """`sizes` are those of the values, if they are known. `TypeError` if a value is None."""
        self._values = values
        found = array("i", map(len, values)) if sizes is None else sizes
        lengths = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(found)])
        ends = pc.cumulative_sum(lengths).buffers()[1]
        self._offsets = memoryview(_ZERO + memoryview(ends).cast("B")).cast("i")

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        return self._offsets[-1]

    def stand_in(self) -> pa.Array:
        """The column as far as its frame goes."""
        return self._column(_nowhere().slice(0, len(self)))

    def column(self) -> pa.Array:
        """The column itself."""
        return self._column(pa.py_buffer(b"".join(self._values)))

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, put together a piece at a time."""
        start, values, offsets = 0, self._values, self._offsets
        while start < len(values):
            end = min(bisect_left(offsets, offsets[start] + PIECE_BYTES), len(values))
            yield b"".join(values[start:end])
            start = end

    def _column(self, data: pa.Buffer) -> pa.Array:
        buffers = [None, pa.py_buffer(self._offsets), data]
        return pa.Array.from_buffers(pa.binary(), len(self._values), buffers)


def is_stand_in(buffer: pa.Buffer) -> bool:
    """Whether these are the bytes that nobody may read."""
    return bool(buffer.address == _nowhere().address)
