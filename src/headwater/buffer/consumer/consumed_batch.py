"""The batch that a consumer gets, and the columns that readers see.

The columns of a reader are the same, in the same types, for every batch of a stream:

    the typed columns of the stream, declared or inferred, or `_value`
    `_key`, `_headers`, `_timestamp`, `_operation`       as in records.py, with defaults filled in
    `_lsn`, `_partition`, `_sequence`                    the position of the record

Only on request: `_ingestion_timestamp` and `_metadata` (of the record's produce call),
`_collection`, `_kind`, `_rid`, `_refresh_records`.

A batch with narrower types is widened, and numbers are cast where every value stays the same number
(conversion.py). Nothing else is cast: what does not fit is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.batch import Call, Calls
from headwater.buffer.consumer.dead_letter import LostRecords
from headwater.buffer.conversion import Inexact, all_nullable, common_type, exact_cast
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.v1.manifest_format import ManifestEntry, unpack_metadata
from headwater.buffer.records import (
    HEADERS,
    INGESTED,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
    Operation,
    from_values,
)
from headwater.core.errors import Refused


class CallMetadata(NamedTuple):
    """The metadata of one produce call. It applies from the record at `start_index`."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes | None


def calls_of(descriptor: Descriptor, rows: int) -> Calls:
    """The produce calls of a v1 batch, from its descriptor."""
    items = unpack_metadata(descriptor.calls)
    runs = ManifestEntry(descriptor.sequence, descriptor.location, items).metadata_runs(rows)
    calls = [Call(first, item.ingestion_time_ms, item.payload) for first, _, item in runs]
    if rows and (not runs or runs[0][0] > 0):
        # In the v1 format the first records may be without a call.
        calls.insert(0, Call(0, descriptor.min_ms, None))
    return Calls.of(calls)


class ConsumedBatch:
    """One batch of a partition, decoded.

    `records` has only the columns that the producer wrote, in their types; `table()` has all
    columns of the stream, in its types, and the reserved ones. A lost batch, and one that is in the
    queue twice, has no records: `lost` distinguishes them.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        records: pa.RecordBatch | None = None,
        calls: Calls | None = None,
        *,
        stream: str,
        partition: int,
        lost: LostRecords | None = None,
        recorded: RecordedSchema | None = None,
    ) -> None:
        self.descriptor: Descriptor = descriptor
        self.records: pa.RecordBatch = from_values([]) if records is None else records
        self.stream: str = stream
        self.partition: int = partition
        self.lost = lost
        self._calls = calls
        self._recorded = recorded or RecordedSchema()

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def __bool__(self) -> bool:
        return True  # also without records

    def __repr__(self) -> str:
        lost = ", lost" if self.lost else ""
        return (
            f"<batch {self.sequence} of {self.stream}/{self.partition}: {len(self):,} records, "
            f"LSNs {self.first_lsn}–{self.last_lsn}{lost}>"
        )

    @property
    def sequence(self) -> int:
        """The position of the batch in the queue, by which it is acknowledged."""
        return self.descriptor.sequence

    @property
    def location(self) -> str:
        """The key of the object that holds the batch."""
        return self.descriptor.location

    @property
    def first_lsn(self) -> int:
        return self.descriptor.first_lsn

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record, also of a lost batch; `first_lsn - 1` without records."""
        return self.descriptor.last_lsn

    @property
    def lsns(self) -> pa.Array:
        return pa.arange(self.first_lsn, self.first_lsn + len(self))

    @property
    def entries(self) -> list[bytes | None]:
        """The values as Python bytes."""
        if not len(self):
            return []
        if VALUE not in self.records.schema.names:
            raise Refused(
                f"the records of {self.stream!r} have typed columns "
                f"({', '.join(self.records.schema.names)}): use `records` or `table()`"
            )
        values: list[bytes | None] = self.records.column(VALUE).to_pylist()
        return values

    @property
    def metadata(self) -> list[CallMetadata]:
        """The metadata of the produce calls."""
        if self._calls is not None:
            columns = (column.to_pylist() for column in self._calls.columns.columns)
            return [CallMetadata(*row) for row in zip(*columns, strict=True)]
        return [
            CallMetadata(item.start_index, item.ingestion_time_ms, item.payload)
            for item in unpack_metadata(self.descriptor.calls)
        ]

    @functools.cached_property
    def calls(self) -> Calls:
        """The produce calls, each with the records it covers."""
        return calls_of(self.descriptor, len(self)) if self._calls is None else self._calls

    def from_lsn(self, lsn: int) -> ConsumedBatch:
        """The batch without its records before this LSN, which is one of the batch's."""
        skip = lsn - self.first_lsn
        if skip <= 0:
            return self
        # Of a lost batch there are no records to leave out, and the LSNs count all the same.
        calls = self.calls.after(skip) if len(self) else self._calls
        descriptor = msgspec.structs.replace(
            self.descriptor, first_lsn=lsn, rows=self.descriptor.rows - skip
        )
        return ConsumedBatch(
            descriptor,
            self.records.slice(skip),
            calls,
            stream=self.stream,
            partition=self.partition,
            lost=self.lost,
            recorded=self._recorded,
        )

    def table(self) -> pa.Table:
        """The records in the columns that `headwater.read` shows, with defaults filled in.

        The types are those that the stream has now, so that tables of consecutive batches can be
        concatenated.
        """
        columns = ReaderColumns(self._recorded.merged_with(self.records))
        return pa.Table.from_batches([columns.of(self)], schema=columns.schema)


LSN: Final = "_lsn"
PARTITION: Final = "_partition"
SEQUENCE: Final = "_sequence"
METADATA: Final = "_metadata"

PLACED: Final[dict[str, pa.DataType]] = {
    LSN: pa.int64(),
    PARTITION: pa.int32(),
    SEQUENCE: pa.int64(),
}
SHOWN: Final = (KEY, HEADERS, TIMESTAMP, OPERATION, *PLACED)
ON_REQUEST: Final = (INGESTED, METADATA, "_collection", "_kind", "_rid", "_refresh_records")
_TYPES: Final = {**RESERVED, **PLACED, INGESTED: RESERVED[TIMESTAMP], METADATA: pa.binary()}

_DEFAULTS: Final[dict[str, Callable[[ConsumedBatch], pa.Array]]] = {
    TIMESTAMP: lambda batch: batch.calls.per_record(len(batch))[0],
    INGESTED: lambda batch: batch.calls.per_record(len(batch))[0],
    OPERATION: lambda batch: pa.repeat(pa.scalar(int(Operation.INSERT), pa.int8()), len(batch)),
    "_collection": lambda batch: pa.repeat(pa.scalar(batch.stream), len(batch)),
    "_kind": lambda batch: pa.repeat(pa.scalar("entity"), len(batch)),
    "_rid": lambda batch: pa.repeat(pa.scalar(0, pa.int64()), len(batch)),
    METADATA: lambda batch: batch.calls.per_record(len(batch))[1],
    LSN: lambda batch: batch.lsns,
    PARTITION: lambda batch: pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch)),
    SEQUENCE: lambda batch: pa.repeat(pa.scalar(batch.sequence, pa.int64()), len(batch)),
}


class RecordedSchema:
    """The stream's columns, as known when a batch is delivered; None for opaque values."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema

    def merged_with(self, records: pa.RecordBatch) -> pa.Schema | None:
        """The columns in types that also hold those of a batch, which may be newer."""
        types = {} if self.schema is None else {field.name: field.type for field in self.schema}
        for field in records.schema:
            if not field.name.startswith("_"):
                before = types.get(field.name, field.type)
                # After an inferred type was replaced there is no common type: the batch's counts.
                types[field.name] = common_type(all_nullable(before), field.type) or field.type
        return pa.schema(list(types.items())) if types else None


class ReaderColumns:
    """A fixed set of columns, into which every batch is brought."""

    def __init__(
        self,
        typed: pa.Schema | None,
        chosen: Sequence[str] | None = None,
        *,
        version: int = 0,
        shows_all: bool | None = None,
    ) -> None:
        """`typed` is the stream's schema, None for opaque values; `chosen` selects and orders.

        `version` is that schema's version: columns of later versions are left out. `shows_all`
        refuses batches with values in other columns; it is the default if nothing is chosen.
        """
        opaque = pa.field(VALUE, pa.binary())
        value = list(typed) if typed else [opaque]
        offered = {f.name: pa.field(f.name, f.type) for f in (*value, opaque)}
        offered |= {name: pa.field(name, _TYPES[name]) for name in (*SHOWN, *ON_REQUEST)}
        names = _listed(chosen) if chosen is not None else [*(f.name for f in value), *SHOWN]
        unknown = [name for name in names if name not in offered]
        if unknown:
            raise Refused(f"no column {unknown[0]!r}; there are {', '.join(offered)}")
        if len(set(names)) < len(names) or not names:
            raise Refused(f"columns {', '.join(names) or '()'}: name one or more, each once")
        self.schema = pa.schema([offered[name] for name in names])
        self._shows_all = chosen is None if shows_all is None else shows_all
        self._asks_opaque = VALUE in names
        self._asks_typed = any(name not in _TYPES for name in names)
        self._version = version

    def of(self, batch: ConsumedBatch) -> pa.RecordBatch:
        """The records of a batch in these columns."""
        present = set(batch.records.schema.names)
        if len(batch):
            self._check_all_shown(batch, present)
        arrays = [self._column(batch, field, field.name in present) for field in self.schema]
        return pa.record_batch(arrays, schema=self.schema)

    def _column(self, batch: ConsumedBatch, field: pa.Field, present: bool) -> pa.Array:
        default = _DEFAULTS.get(field.name)
        if not present:
            return default(batch) if default else pa.nulls(len(batch), field.type)
        column = batch.records.column(field.name)
        if default is not None and column.null_count:
            column = pc.coalesce(column, default(batch))
        if column.type == field.type:
            return column
        try:
            return exact_cast(column, field.type)
        except Inexact as error:
            raise Refused(
                f"column {field.name!r} of batch {batch.sequence} is {column.type}, which does not "
                f"fit {field.type}, the type of the column when this reader was opened; if the "
                f"stream has another by now, open it again ({error})"
            ) from error

    def _check_all_shown(self, batch: ConsumedBatch, present: set[str]) -> None:
        """Refuse a batch whose values these columns would not show."""
        shown = set(self.schema.names)
        values = {name for name in present if name == VALUE or not name.startswith("_")}
        hidden = sorted(values - shown)
        if not self._shows_all and not self._is_null_instead(hidden):
            return
        typed = sorted(shown - _TYPES.keys())
        # Columns are recorded before they are written, so these are of a later version.
        is_later = batch.descriptor.schema_version > self._version
        if not hidden or (typed and is_later and VALUE not in hidden):
            return
        if not self._shows_all:
            why = "it would show null. Open it again, or name the columns that the stream has"
        elif is_later or not typed:
            why = "open it again, the stream had no columns when it was opened"
        else:
            why = "they are not columns of the stream. Name the columns to be read"
        raise Refused(
            f"batch {batch.sequence} of {batch.stream!r} has {', '.join(hidden)}, and its reader "
            f"shows {', '.join(typed or [VALUE])}: {why}"
        )

    def _is_null_instead(self, hidden: list[str]) -> bool:
        """Whether null would be shown for values that the batch has in the other shape."""
        is_opaque = VALUE in hidden
        return self._asks_typed if is_opaque else self._asks_opaque and bool(hidden)


def _listed(chosen: Any) -> list[str]:
    if isinstance(chosen, str):
        return [chosen]
    names: list[Any] = list(chosen) if isinstance(chosen, Iterable) else [chosen]
    if not all(isinstance(name, str) for name in names):
        raise Refused(f"columns are a list of names, not {chosen!r}")
    return names
