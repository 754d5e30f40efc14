"""What a segment says of itself, in its Parquet metadata under `headwater.segment`, as JSON.

Always holds of one that was read: runs are dense from the first LSN to the last, terms do not
fall, and row groups have all rows and none twice, in order; whatever else is `Corrupt`.
"""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import Epochs
from headwater.tier.identity import SegmentId, TopicIdPartition

FORMAT: Final = 1
METADATA_KEY: Final = b"headwater.segment"


class Run(msgspec.Struct, frozen=True, array_like=True):
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
    runs: list[Run]
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


class _Format(msgspec.Struct, frozen=True):
    segment_format: int


def encode_description(description: Description) -> bytes:
    """The JSON of it."""
    return msgspec.json.encode(description)


def decode_description(data: bytes) -> Description:
    """Read it; `NotSupported` if a later version wrote it."""
    try:
        found = msgspec.json.decode(data, type=_Format).segment_format
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
