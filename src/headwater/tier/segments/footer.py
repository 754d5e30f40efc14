"""The end of a segment's object (description, seal, Parquet footer), and its receipt in the events.

    Parquet's body | "HWS1" | u32 footer bytes | u64 xxh3 of the footer | segment id 16
                   | xxh3-128 of the body 16 | Parquet's footer

The description is JSON in the Parquet metadata, under `headwater.segment`. A description that was
read is consistent: runs are dense from the first LSN to the last, terms do not fall, and row
groups have all rows once, in order.

The seal (48 bytes) detects a changed or truncated object. Parquet readers use offsets from the
end of the file and never see it. Parquet's own checksums cover only the contents of pages, so a
changed footer or page header would pass. Here the seal has the checksum of the footer, the footer
has those of the row groups, and the checksum of the body covers the rest, which only other
readers use.

`read_index` reads all of it: which row group holds which LSNs, and at which offset.

The metadata events of a segment carry a receipt of its object, 57 bytes after the publisher
epoch:

    u8 1 | u64 rows | u64 size | u32 footer bytes | u32 schema version
         | i64 first sequence | i64 last sequence | xxh3-128 of the whole object 16

Big-endian, as the events are. Both sequences are -1 if the records come from no queue; the
checksum is 0 if it is unknown.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headwater.core import limits
from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import (
    Epochs,
    SegmentId,
    SegmentMetadata,
    TopicIdPartition,
    stamp,
    unstamp,
)

FORMAT: Final = 1
METADATA_KEY: Final = b"headwater.segment"


class SegmentRun(msgspec.Struct, frozen=True, array_like=True):
    """LSNs one after the other whose records have one term and one schema, or are lost."""

    first_lsn: int
    last_lsn: int
    term: int
    schema: int | None
    """The number of their schema; None where they are lost."""
    lost: str | None = None
    """Why there are no records."""

    @property
    def rows(self) -> int:
        """How many rows of the segment are theirs."""
        return 0 if self.schema is None else self.last_lsn - self.first_lsn + 1


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    """What is read at once, and what it must be."""

    first_lsn: int
    last_lsn: int
    rows: int
    offset: int
    size_bytes: int
    xxh3: str
    """XXH3, 64 bits, of its bytes, in hexadecimal."""
    max_timestamp_ms: int
    """The latest time of its records."""


class Description(msgspec.Struct, frozen=True):
    """What a segment says of itself."""

    segment_format: int
    stream: str
    stream_id: uuid.UUID
    partition: int
    segment_id: uuid.UUID
    first_lsn: int
    last_lsn: int
    rows: int
    """Records; LSNs that are lost have none."""
    max_timestamp_ms: int
    schema_version: int
    """The newest version of the stream's schema when it was written; 0 if it declares none."""
    sequences: tuple[int, int] | None
    """The first and the last entry of the queue that its records came from."""
    runs: list[SegmentRun]
    row_groups: list[RowGroup]
    schemas: list[str]
    """Of the records as they were: Arrow schemas, serialised, in base64."""

    @property
    def identity(self) -> SegmentId:
        """Whose segment it is."""
        return SegmentId(
            TopicIdPartition(self.stream_id, self.stream, self.partition), self.segment_id
        )

    @property
    def epochs(self) -> Epochs:
        """Its terms, each with the LSN at which it begins."""
        found: dict[int, int] = {}
        for run in self.runs:
            found.setdefault(run.term, run.first_lsn)
        return tuple(found.items())

    def arrow_schemas(self) -> list[pa.Schema]:
        """Of the records as they were."""
        return [pa.ipc.read_schema(pa.py_buffer(b64decode(text))) for text in self.schemas]


def schema_text(schema: pa.Schema) -> str:
    """How a schema is written down."""
    return b64encode(schema.serialize().to_pybytes()).decode()


class _DescriptionFormat(msgspec.Struct, frozen=True):
    segment_format: int


def encode_description(description: Description) -> bytes:
    """The JSON of it."""
    return msgspec.json.encode(description)


def decode_description(data: bytes) -> Description:
    """Read it; `NotSupported` if a later version wrote it."""
    try:
        found = msgspec.json.decode(data, type=_DescriptionFormat).segment_format
        if found != FORMAT:
            raise NotSupported(
                f"a segment of format {found}; this version reads {FORMAT}. Upgrade Headwater."
            )
        description = msgspec.json.decode(data, type=Description)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"what the segment says of itself cannot be understood: {error}") from error
    wrong = next(_contradictions(description), None)
    if wrong is not None:
        raise Corrupt(f"what the segment says of itself does not add up: {wrong}")
    return description


def _contradictions(said: Description) -> Iterator[str]:
    at, term, rows = said.first_lsn, 0, 0
    for run in said.runs:
        if run.first_lsn != at or run.last_lsn < at:
            yield f"a run of LSNs {run.first_lsn} to {run.last_lsn} where {at} comes next"
        if run.term < term:
            yield f"term {run.term} after {term}"
        if run.schema is not None and not 0 <= run.schema < len(said.schemas):
            yield f"schema {run.schema} of {len(said.schemas)}"
        at, term, rows = run.last_lsn + 1, run.term, rows + run.rows
    if at != said.last_lsn + 1 or at == said.first_lsn:
        yield f"runs through LSN {at - 1} of {said.last_lsn}"
    if rows != said.rows:
        yield f"runs of {rows} rows, not {said.rows}"
    yield from _misplaced(said.row_groups, rows)


def _misplaced(row_groups: Sequence[RowGroup], rows: int) -> Iterator[str]:
    end, lsn = 0, 0
    for group in row_groups:
        if group.offset < end or group.size_bytes < 1 or group.rows < 1:
            yield f"a row group of {group.rows} rows, {group.size_bytes} bytes at {group.offset}"
        if group.first_lsn <= lsn or group.last_lsn < group.first_lsn:
            yield f"a row group of LSNs {group.first_lsn} to {group.last_lsn} after {lsn}"
        end, lsn, rows = group.offset + group.size_bytes, group.last_lsn, rows - group.rows
    if rows:
        yield f"row groups with {-rows} rows too many"


MAGIC: Final = b"HWS1"
PARQUET_MAGIC: Final = b"PAR1"
_SEAL: Final = struct.Struct("<4sIQ16s16s")
SEAL_BYTES: Final = _SEAL.size
_FOOTER_END: Final = struct.Struct("<I4s")
FOOTER_END_BYTES: Final = _FOOTER_END.size


class SegmentSeal(NamedTuple):
    """The end of a segment, checked."""

    segment_id: uuid.UUID
    footer: memoryview
    body_xxh3: bytes
    body_bytes: int


def seal(segment_id: uuid.UUID, footer: bytes, body_xxh3: bytes) -> bytes:
    """What stands between body and footer."""
    return _SEAL.pack(
        MAGIC, len(footer), xxhash.xxh3_64_intdigest(footer), segment_id.bytes, body_xxh3
    )


def footer_bytes(end: bytes | memoryview) -> int:
    """How many bytes the footer of a Parquet file has, by its last bytes."""
    if len(end) < _FOOTER_END.size:
        raise Corrupt(f"no segment: it has {len(end)} bytes")
    size, magic = _FOOTER_END.unpack(end[-_FOOTER_END.size :])
    if magic != PARQUET_MAGIC:
        raise Corrupt(
            f"no segment, or one that was cut off: it ends with {bytes(magic)!r}, not "
            f"{PARQUET_MAGIC!r}"
        )
    return int(size) + _FOOTER_END.size


def is_sealed(data: bytes) -> bool:
    """Whether a Parquet file has a seal, be it whole or not."""
    try:
        at = len(data) - footer_bytes(data) - SEAL_BYTES
    except Corrupt:
        return False
    return at >= 0 and data[at : at + len(MAGIC)] == MAGIC


def read_seal(end: memoryview, size_bytes: int) -> SegmentSeal:
    """Check the last bytes of an object of so many; they must hold seal and footer."""
    length = footer_bytes(end)
    if length + SEAL_BYTES > len(end):
        raise Corrupt(f"a footer of {length} bytes does not fit into a segment of {size_bytes}")
    footer = end[len(end) - length :]
    at = len(end) - length - SEAL_BYTES
    magic, said, checksum, segment_id, body_xxh3 = _SEAL.unpack_from(end, at)
    if magic != MAGIC:
        raise Corrupt(
            f"no segment of Headwater, or a damaged one: {bytes(magic)!r} stands before its "
            f"footer, not {MAGIC!r}"
        )
    if said != length or xxhash.xxh3_64_intdigest(footer) != checksum:
        raise Corrupt("the checksum of the segment's footer does not match")
    body_bytes = size_bytes - length - SEAL_BYTES
    return SegmentSeal(uuid.UUID(bytes=segment_id), footer, body_xxh3, body_bytes)


VERSION: Final = 1
_RECEIPT: Final = struct.Struct(">BQQIIqq16s")
_NO_SEQUENCES: Final = (-1, -1)
UNKNOWN_XXH3: Final = bytes(16)
"""Of an object that nobody has read whole: what was not published is taken from its footer."""


class Receipt(NamedTuple):
    """What is known of an object without reading it."""

    rows: int
    size_bytes: int
    footer_bytes: int
    schema_version: int
    sequences: tuple[int, int] | None
    xxh3: bytes
    """XXH3, 128 bits, of the whole object."""

    def stamped(self, publisher_epoch: int) -> bytes:
        """The custom metadata of an event about it."""
        first, last = self.sequences or _NO_SEQUENCES
        payload = _RECEIPT.pack(
            VERSION,
            self.rows,
            self.size_bytes,
            self.footer_bytes,
            self.schema_version,
            first,
            last,
            self.xxh3,
        )
        return stamp(publisher_epoch, payload)


def receipt_of(segment: SegmentMetadata) -> Receipt | None:
    """What the events said of a segment's object; None if they said nothing."""
    epoch, payload = unstamp(segment.custom_metadata)
    return None if epoch is None else read_receipt(payload)


def read_receipt(payload: bytes) -> Receipt | None:
    """From custom metadata after the publisher's epoch; None if there is nothing."""
    if not payload:
        return None
    if payload[0] != VERSION:
        raise NotSupported(
            f"a segment's metadata of version {payload[0]}; this version reads {VERSION}. Upgrade "
            "Headwater."
        )
    if len(payload) != _RECEIPT.size:
        raise Corrupt(f"a segment's metadata have {_RECEIPT.size} bytes, not {len(payload)}")
    _, rows, size_bytes, footer_bytes, version, first, last, xxh3 = _RECEIPT.unpack(payload)
    sequences = (first, last) if (first, last) != _NO_SEQUENCES else None
    return Receipt(rows, size_bytes, footer_bytes, version, sequences, xxh3)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndex:
    """Where the records of a segment stand."""

    description: Description
    seal: SegmentSeal
    parquet: pq.FileMetaData
    schemas: list[pa.Schema]
    """Of the records as they were."""
    size_bytes: int

    run_starts: list[int]
    """The first LSN of each run."""
    run_rows: list[int]
    """Where each run begins among all rows."""

    def row_groups(self, first_lsn: int, end_lsn: int) -> list[int]:
        """The numbers of the row groups with records of [first_lsn, end_lsn)."""
        return [
            number
            for number, group in enumerate(self.description.row_groups)
            if max(group.first_lsn, first_lsn) < min(group.last_lsn + 1, end_lsn)
        ]

    def side_by_side(self, numbers: Sequence[int]) -> list[list[int]]:
        """Row groups that are fetched together, up to TIER_FETCH_BYTES."""
        groups = self.description.row_groups
        batches: list[list[int]] = []
        for number in numbers:
            end = groups[number].offset + groups[number].size_bytes
            if batches and end - groups[batches[-1][0]].offset <= limits.TIER_FETCH_BYTES:
                batches[-1].append(number)
            else:
                batches.append([number])
        return batches

    def stretches(self, first_lsn: int, end_lsn: int) -> list[range]:
        """[first_lsn, end_lsn) cut where row groups begin.

        LSNs without records belong to what comes before them.
        """
        begins = [group.first_lsn for group in self.description.row_groups]
        cuts = [first_lsn, *(lsn for lsn in begins if first_lsn < lsn < end_lsn), end_lsn]
        return [range(low, high) for low, high in itertools.pairwise(cuts)]

    def runs(self, first_lsn: int, end_lsn: int) -> Iterator[tuple[SegmentRun, int]]:
        """The runs that reach into [first_lsn, end_lsn), each with its first row in the segment."""
        runs = self.description.runs
        at = max(0, bisect_right(self.run_starts, first_lsn) - 1)
        while at < len(runs) and runs[at].first_lsn < end_lsn:
            if runs[at].last_lsn >= first_lsn and first_lsn < end_lsn:
                yield runs[at], self.run_rows[at]
            at += 1

    def first_row(self, row_group: int) -> int:
        """Where a row group begins among all rows."""
        return sum(group.rows for group in self.description.row_groups[:row_group])


def read_index(end: memoryview, size_bytes: int) -> SegmentIndex:
    """The index in the last bytes of an object of so many bytes in all."""
    sealed = read_seal(end, size_bytes)
    try:
        parquet = pq.read_metadata(pa.BufferReader(pa.py_buffer(sealed.footer)))
        said = (parquet.metadata or {})[METADATA_KEY]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"the footer is not that of a segment: {error}") from error
    description = decode_description(said)
    if description.segment_id != sealed.segment_id:
        raise Corrupt(
            f"the seal is that of segment {sealed.segment_id}, and the footer that of "
            f"{description.segment_id}"
        )
    _check_against(description, parquet, sealed.body_bytes)
    try:
        schemas = description.arrow_schemas()
    except (pa.ArrowException, ValueError) as error:
        raise Corrupt(f"a schema of the segment cannot be read: {error}") from error
    return SegmentIndex(
        description,
        sealed,
        parquet,
        schemas,
        size_bytes,
        run_starts=[run.first_lsn for run in description.runs],
        run_rows=[0, *itertools.accumulate(run.rows for run in description.runs)],
    )


def _check_against(said: Description, parquet: pq.FileMetaData, body_bytes: int) -> None:
    groups = said.row_groups
    if parquet.num_row_groups != len(groups) or any(
        parquet.row_group(number).num_rows != group.rows for number, group in enumerate(groups)
    ):
        raise Corrupt("the segment has other row groups than it says")
    if groups and groups[-1].offset + groups[-1].size_bytes > body_bytes:
        raise Corrupt("the segment's row groups do not fit into it")
