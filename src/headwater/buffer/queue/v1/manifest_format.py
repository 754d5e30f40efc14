"""The published queue manifest, version 1: every pending batch, in one object.

    manifest = entry* | u32 entry_count | u64 next_sequence | u64 epoch | u16 version = 1
    entry    = u32 length | u64 sequence | u16 n | location, n bytes of UTF-8 | u32 items | item*
    item     = u32 start_index | i64 ingestion_time_ms | u32 n | payload, n bytes

Decoding checks every byte and stores the bytes: an entry becomes an object when it is accessed. A
manifest has one metadata item per produce call; as Python objects these would take eight times
their bytes, at every poll. Appending and dequeuing also splice bytes.

A metadata item applies from its start index to the next item's, so adjacent calls with equal
content share one item. Otherwise a producer with one record per call would add 16 bytes for every
record, and every append would move them again.

Always holds:

- counts and lengths are checked against the remaining bytes before they are used;
- beside the bytes themselves, decoding takes at most half their size and 1 MiB;
- encoding a decoded manifest gives the same bytes, also after lenient reading;
- after strict reading: each sequence is one above the previous one, and the last one is one below
  `next_sequence`; start indexes of an entry do not fall, and there are no extra bytes. The format
  does not forbid gaps between sequences, but no writer leaves one: a gap means lost entries;
- readers raise only `Corrupt` and `NotSupported`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar, overload

import msgspec

from headwater.buffer.compression import Buffer
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.batch import Calls


VERSION: Final = 1
_FOOTER: Final = struct.Struct("<IQQH")
FOOTER_BYTES: Final = _FOOTER.size
_ENTRY: Final = struct.Struct("<IQH")
_LENGTH_BYTES: Final = 4
_COUNT: Final = struct.Struct("<I")
_ITEM: Final = struct.Struct("<IqI")
# The size of an empty entry: sequence, length of the location and count of items.
_ENTRY_LEAST: Final = 14

_U16_MAX: Final = (1 << 16) - 1
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1

T = TypeVar("T")


class Packed(Sequence[T], Generic[T]):
    """Items that are decoded when they are accessed; equal to any sequence of equal items."""

    __slots__ = ("_data", "_parse", "_starts")

    def __init__(self, data: bytes, starts: array[int], parse: Callable[[bytes, int], T]) -> None:
        """`starts` has the offset in `data` of every item, and the end of the last one."""
        self._data = data
        self._starts = starts
        self._parse = parse

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if not isinstance(index, slice):
            return self._parse(self._data, self._starts[range(len(self))[index]])
        chosen = range(len(self))[index]
        if chosen.step != 1:
            return tuple(self[number] for number in chosen)
        last = max(chosen.start, chosen.stop)
        return Packed(self._data, self._starts[chosen.start : last + 1], self._parse)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self):,} packed items in {len(self.packed_bytes):,} bytes>"

    @property
    def packed_bytes(self) -> memoryview:
        return memoryview(self._data)[self._starts[0] : self._starts[-1]]

    def followed_by(self, other: Packed[T]) -> Packed[T]:
        """The concatenation, without decoding any item."""
        data = b"".join((self.packed_bytes, other.packed_bytes))
        starts = array("Q", (start - self._starts[0] for start in self._starts))
        shift = starts[-1] - other._starts[0]
        starts.extend(start + shift for start in other._starts[1:])
        return Packed(data, starts, self._parse)


class MetadataItem(msgspec.Struct, frozen=True):
    """The metadata of one produce call. It applies from the record at `start_index`."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes = b""


class ManifestEntry(msgspec.Struct, frozen=True):
    """One pending batch: its place in the queue, its object, and its metadata."""

    sequence: int
    location: str
    metadata: Sequence[MetadataItem] = ()

    def metadata_runs(self, record_count: int) -> list[tuple[int, int, MetadataItem]]:
        """For each item its first record, the record after its last, and the item.

        In order and without overlaps. Records before the first run have no metadata; an item
        that holds for no record has no run.
        """
        runs: list[tuple[int, int, MetadataItem]] = []
        end = record_count
        for item in reversed(self.metadata):
            if item.start_index < end:
                runs.append((item.start_index, end, item))
                end = item.start_index
        return runs[::-1]


class Manifest(msgspec.Struct, frozen=True):
    """A manifest: pending batches in order, the next sequence, and the consumer's epoch."""

    entries: Sequence[ManifestEntry] = ()
    next_sequence: int = 0
    epoch: int = 0

    def appended(self, batches: Iterable[tuple[str, Sequence[MetadataItem]]]) -> Manifest:
        """A manifest with these locations appended, with their metadata."""
        added = tuple(
            ManifestEntry(sequence, location, metadata)
            for sequence, (location, metadata) in enumerate(batches, start=self.next_sequence)
        )
        entries = _packed(self.entries).followed_by(_packed(added))
        return Manifest(entries, self.next_sequence + len(added), self.epoch)

    def dequeued(self, through_sequence: int) -> Manifest:
        """A manifest without the leading entries up to this sequence."""
        removed = 0
        while removed < len(self.entries) and self.entries[removed].sequence <= through_sequence:
            removed += 1
        return Manifest(self.entries[removed:], self.next_sequence, self.epoch)

    def with_epoch(self, epoch: int) -> Manifest:
        return msgspec.structs.replace(self, epoch=epoch)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest, byte for byte as the reference does."""
    count = len(manifest.entries)
    for name, value, largest in (
        ("entries", count, _U32_MAX),
        ("next_sequence", manifest.next_sequence, _U64_MAX),
        ("epoch", manifest.epoch, _U64_MAX),
    ):
        _check_fits(name, value, largest)
    packed = _packed(manifest.entries)
    # What was read is written back as it was.
    if count and packed is not manifest.entries:
        last = manifest.entries[-1].sequence
        if last + 1 != manifest.next_sequence:
            raise Refused(
                f"the last entry's sequence {last:,} is not the one before next_sequence "
                f"{manifest.next_sequence:,}"
            )
    footer = _FOOTER.pack(count, manifest.next_sequence, manifest.epoch, VERSION)
    return b"".join((packed.packed_bytes, footer))


def decode_manifest(data: Buffer, *, lenient: bool = False) -> Manifest:
    """The manifest in these bytes.

    `lenient` accepts what the reference accepts and no writer known writes: bytes without a
    meaning inside an entry, and sequences (gaps as well) and start indexes in any order.
    """
    stored = bytes(data)
    if len(stored) < FOOTER_BYTES:
        raise Corrupt(f"a manifest of {len(stored)} bytes: its footer alone takes {FOOTER_BYTES}")
    end = len(stored) - FOOTER_BYTES
    count, next_sequence, epoch, version = _FOOTER.unpack_from(stored, end)
    if version != VERSION:
        raise NotSupported(
            f"manifest version {version} at offset {len(stored) - 2:,}: known is {VERSION}. If the "
            "manifest is not damaged, a newer writer wrote it: upgrade Headwater to a version that "
            "reads its format."
        )
    if count > end // (_LENGTH_BYTES + _ENTRY_LEAST):
        raise Corrupt(f"entry_count at offset {end:,} is {count:,}: {end:,} bytes hold fewer")
    starts = array("Q", (0,))
    offset, last = 0, -1
    for _ in range(count):
        sequence, after = _check_entry(stored, offset, end, lenient=lenient)
        if not lenient and last >= 0 and sequence != last + 1:
            raise Corrupt(
                f"the entry at offset {offset:,} has sequence {sequence:,}, and the one before it "
                f"{last:,}: entries were lost or reordered"
            )
        offset, last = after, sequence
        starts.append(offset)
    if offset != end:
        raise Corrupt(f"{end - offset:,} bytes at offset {offset:,} follow the last entry")
    if count and not lenient and last + 1 != next_sequence:
        raise Corrupt(
            f"the last entry has sequence {last:,}, and next_sequence is {next_sequence:,}, not "
            "the one after it: entries were lost, or were not meant to be there"
        )
    return Manifest(Packed(stored, starts, _parse_entry), next_sequence, epoch)


def _check_entry(data: bytes, offset: int, end: int, *, lenient: bool) -> tuple[int, int]:
    """Check the entry at `offset`, and return its sequence and its end."""
    least = _LENGTH_BYTES + _ENTRY_LEAST
    if offset + least > end:
        raise Corrupt(f"the entry at offset {offset:,} is cut off: the entries end at {end:,}")
    length, sequence, location_size = _ENTRY.unpack_from(data, offset)
    after = offset + _LENGTH_BYTES + length
    if after > end:
        raise Corrupt(
            f"the entry at offset {offset:,} says {length:,} bytes: the entries end at {end:,}"
        )
    if length < _ENTRY_LEAST + location_size:
        raise Corrupt(
            f"the entry at offset {offset:,} says {length:,} bytes, and {location_size:,} for its "
            "location: they do not fit"
        )
    location_start = offset + _ENTRY.size
    count_start = location_start + location_size
    try:
        data[location_start:count_start].decode("utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt(f"the location at offset {location_start:,} is not UTF-8: {error}") from None
    (count,) = _COUNT.unpack_from(data, count_start)
    items_start = count_start + _COUNT.size
    if count > (after - items_start) // _ITEM.size:
        raise Corrupt(
            f"metadata_count at offset {count_start:,} is {count:,}: the "
            f"{after - items_start:,} bytes up to the entry's end hold fewer"
        )
    items_end = _check_items(data, items_start, after, count, lenient=lenient)
    if items_end < after and not lenient:
        raise Corrupt(
            f"{after - items_end:,} bytes at offset {items_end:,} follow the last metadata item of "
            f"the entry at offset {offset:,}"
        )
    return sequence, after


def _check_items(data: bytes, offset: int, end: int, count: int, *, lenient: bool) -> int:
    """Where the last of `count` items ends."""
    last = 0
    for _ in range(count):
        payload_start = offset + _ITEM.size
        if payload_start > end:
            raise Corrupt(f"the metadata item at offset {offset:,} passes its entry's end {end:,}")
        start_index, _, size = _ITEM.unpack_from(data, offset)
        if size > end - payload_start:
            raise Corrupt(
                f"the metadata item at offset {offset:,} says {size:,} bytes of payload, and "
                f"{end - payload_start:,} are left of its entry"
            )
        if start_index < last and not lenient:
            raise Corrupt(
                f"the metadata item at offset {offset:,} starts at record {start_index:,}, and the "
                f"one before it at {last:,}"
            )
        last = start_index
        offset = payload_start + size
    return offset


def _parse_entry(data: bytes, offset: int) -> ManifestEntry:
    _, sequence, location_size = _ENTRY.unpack_from(data, offset)
    location_start = offset + _ENTRY.size
    count_start = location_start + location_size
    (count,) = _COUNT.unpack_from(data, count_start)
    starts = array("Q", (count_start + _COUNT.size,))
    position = starts[0]
    for _ in range(count):
        position += _ITEM.size + _ITEM.unpack_from(data, position)[2]
        starts.append(position)
    location = data[location_start:count_start].decode("utf-8")
    return ManifestEntry(sequence, location, Packed(data, starts, _parse_item))


def _parse_item(data: bytes, offset: int) -> MetadataItem:
    start_index, ingestion_time_ms, size = _ITEM.unpack_from(data, offset)
    payload_start = offset + _ITEM.size
    return MetadataItem(start_index, ingestion_time_ms, data[payload_start : payload_start + size])


def unpack_metadata(items: Buffer) -> Packed[MetadataItem]:
    """The metadata items that `Packed.packed_bytes` of an entry's metadata gave."""
    stored = bytes(items)
    starts = array("Q", (0,))
    while starts[-1] < len(stored):
        payload_start = starts[-1] + _ITEM.size
        size = _ITEM.unpack_from(stored, starts[-1])[2] if payload_start <= len(stored) else 0
        if payload_start + size > len(stored):
            raise Corrupt(
                f"the metadata item at offset {starts[-1]:,} is cut off at {len(stored):,}"
            )
        starts.append(payload_start + size)
    return Packed(stored, starts, _parse_item)


def _packed(entries: Sequence[ManifestEntry]) -> Packed[ManifestEntry]:
    if isinstance(entries, Packed):
        return entries
    last = -1
    parts: list[bytes] = []
    starts = array("Q", (0,))
    for entry in entries:
        parts.append(_encode_entry(entry))
        if last >= 0 and entry.sequence != last + 1:
            raise Refused(f"an entry's sequence {entry.sequence:,} does not follow {last:,}")
        last = entry.sequence
        starts.append(starts[-1] + len(parts[-1]))
    return Packed(b"".join(parts), starts, _parse_entry)


def _encode_entry(entry: ManifestEntry) -> bytes:
    try:
        location = entry.location.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"the location {entry.location!r} has no UTF-8: {error}") from None
    items = _encode_items(entry.metadata)
    length = _ENTRY_LEAST + len(location) + len(items)
    _check_fits("an entry's sequence", entry.sequence, _U64_MAX)
    _check_fits("the size of a location", len(location), _U16_MAX)
    _check_fits("the count of metadata items", len(entry.metadata), _U32_MAX)
    _check_fits("the size of an entry", length, _U32_MAX)
    header = _ENTRY.pack(length, entry.sequence, len(location))
    return b"".join((header, location, _COUNT.pack(len(entry.metadata)), items))


def _encode_items(metadata: Sequence[MetadataItem]) -> bytes | memoryview:
    if isinstance(metadata, Packed):
        return metadata.packed_bytes
    parts: list[bytes] = []
    last = 0
    for item in metadata:
        if item.start_index < last:
            raise Refused(f"start_index {item.start_index:,} comes after {last:,}")
        last = item.start_index
        _check_fits("start_index", item.start_index, _U32_MAX)
        _check_fits("the size of a payload", len(item.payload), _U32_MAX)
        if not -(1 << 63) <= item.ingestion_time_ms < 1 << 63:
            raise LimitExceeded(f"ingestion_time_ms is {item.ingestion_time_ms}: not 64 bits")
        parts.append(_ITEM.pack(item.start_index, item.ingestion_time_ms, len(item.payload)))
        parts.append(item.payload)
    return b"".join(parts)


def _check_fits(name: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise LimitExceeded(f"{name}: {value:,} is not from 0 to {largest:,}")


_BYTES_MAX: Final = (1 << 31) - 1


def pack_calls(calls: Calls) -> bytes:
    """The packed items of these calls, for `NewBatch.calls`.

    A call without metadata has an empty payload: the v1 format has no nulls.
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


def items_of(entry: ManifestEntry) -> memoryview:
    """The packed items of an entry that was decoded from bytes."""
    assert isinstance(entry.metadata, Packed)
    return entry.metadata.packed_bytes


def time_range_ms(items: bytes | memoryview) -> tuple[int, int] | None:
    """The earliest and the latest ingestion time of packed items; None without items."""
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
