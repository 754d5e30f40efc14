"""The metadata items of a manifest entry, from the produce calls of a batch and back.

An item holds from its start index to the next item's, so adjacent calls that say the same share
one: the item of the first of them. A producer that writes one record per call would otherwise put
16 bytes into the manifest for every record, and every append would move them again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headwater.buffer.v1_manifest import Entry, Packed
from headwater.core.errors import LimitExceeded

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.calls import Calls

_ITEM: Final = struct.Struct("<IqI")
_BYTES_MAX: Final = (1 << 31) - 1


def pack_calls(calls: Calls) -> bytes:
    """The items of these calls, as a manifest entry has them: what `NewBatch.calls` takes.

    A call without metadata has an empty payload: the published format knows no other nothing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(calls):
        return b""
    starts, times_ms, metadata = calls.columns.columns
    payloads = pc.fill_null(metadata, b"")
    if len(calls) > 1:
        differs = pc.or_(
            pc.not_equal(times_ms[1:], times_ms[:-1]), pc.not_equal(payloads[1:], payloads[:-1])
        )
        first = pa.concat_arrays([pa.array([True]), differs])
        starts, times_ms, payloads = (
            column.filter(first) for column in (starts, times_ms, payloads)
        )
    sizes = pc.binary_length(payloads)
    size_bytes = _ITEM.size * len(starts) + (pc.sum(sizes).as_py() or 0)
    if size_bytes > _BYTES_MAX:
        raise LimitExceeded(
            f"{size_bytes:,} bytes of metadata in one batch: at most {_BYTES_MAX:,}"
        )
    columns = [_raw(starts, 4), _raw(times_ms, 8), _raw(sizes, 4), payloads]
    joined = pc.binary_join_element_wise(*columns, b"")
    return bytes(memoryview(joined.buffers()[2])[:size_bytes])


def items_of(entry: Entry) -> memoryview:
    """The packed items of an entry that was decoded from bytes."""
    assert isinstance(entry.metadata, Packed)
    return entry.metadata.packed_bytes


def time_range_ms(items: bytes | memoryview) -> tuple[int, int] | None:
    """The earliest and the latest ingestion time that packed items name; None without items."""
    if not len(items):
        return None
    unpack, head_bytes = _ITEM.unpack_from, _ITEM.size
    low_ms = high_ms = unpack(items, 0)[1]
    offset = 0
    while offset < len(items):
        _, time_ms, size = unpack(items, offset)
        low_ms, high_ms = min(low_ms, time_ms), max(high_ms, time_ms)
        offset += head_bytes + size
    return low_ms, high_ms


def _raw(column: pa.Array, width: int) -> pa.Array:
    """A column of numbers as the bytes they are stored in."""
    import pyarrow as pa

    bits = column.buffers()[1].slice(column.offset * width)
    return pa.Array.from_buffers(pa.binary(width), len(column), [None, bits]).cast(pa.binary())
