"""The columns that a reader sees: the same, in the same types, for every batch of a stream.

    the typed columns of the stream, declared or inferred, or `_value`
    `_key`, `_headers`, `_timestamp`, `_operation`       as the record model has them, never absent
    `_lsn`, `_partition`, `_sequence`                    where the record stands

Only when they are asked for: `_ingestion_timestamp` and `_metadata` (of the record's produce call),
`_collection`, `_kind`, `_rid`, `_refresh_records`.

A batch that was written in narrower types is widened, and numbers are taken over where each of them
stays the number that it is (widening.py). Nothing else is cast: what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import (
    HEADERS,
    INGESTED,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
    Operation,
)
from headwater.buffer.widening import Inexact, common_type, exact_cast, relaxed
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.consumer.consumed import ConsumedBatch

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


class RecordedColumns:
    """The stream's columns as whoever hands out its batches knows them; None of opaque values."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema

    def with_those_of(self, records: pa.RecordBatch) -> pa.Schema | None:
        """They, in types that also hold those of a batch, which may have been written later."""
        known = {} if self.schema is None else {field.name: field.type for field in self.schema}
        for field in records.schema:
            if not field.name.startswith("_"):
                before = known.get(field.name, field.type)
                # No type holds both where an inferred one was replaced: then as it was written.
                known[field.name] = common_type(relaxed(before), field.type) or field.type
        return pa.schema(list(known.items())) if known else None


class Columns:
    """One fixed set of columns, and how a batch is brought into it."""

    def __init__(
        self,
        typed: pa.Schema | None,
        chosen: Sequence[str] | None = None,
        *,
        version: int = 0,
        shows_all: bool | None = None,
    ) -> None:
        """`typed` is the stream's schema, None for opaque values; `chosen` picks and orders.

        `version`: of that schema; columns of batches that were written under a later one are left
        out. `shows_all`: a batch with any other values is refused; so it is where nothing is
        chosen.
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
            self._check_nothing_vanishes(batch, present)
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

    def _check_nothing_vanishes(self, batch: ConsumedBatch, present: set[str]) -> None:
        """Values must not be left out because a batch carries them in another shape."""
        shown = set(self.schema.names)
        values = {name for name in present if name == VALUE or not name.startswith("_")}
        hidden = sorted(values - shown)
        if not self._shows_all and not self._is_null_instead(hidden):
            return
        known = sorted(shown - _TYPES.keys())
        # The stream's columns are recorded before they are written: these came later.
        is_later = batch.descriptor.schema_version > self._version
        if not hidden or (known and is_later and VALUE not in hidden):
            return
        if not self._shows_all:
            why = "null would be shown. Open it again, or name the columns that the stream has"
        elif is_later or not known:
            why = "open it again, the stream carried nothing when it was opened"
        else:
            why = "they are not among the stream's columns. Name the columns to be read"
        raise Refused(
            f"batch {batch.sequence} of {batch.stream!r} has {', '.join(hidden)}, and its reader "
            f"shows {', '.join(known or [VALUE])}: {why}"
        )

    def _is_null_instead(self, hidden: list[str]) -> bool:
        """Whether null would be shown for values that are there in the other shape."""
        is_opaque = VALUE in hidden
        return self._asks_typed if is_opaque else self._asks_opaque and bool(hidden)


def _listed(chosen: Any) -> list[str]:
    """The names of columns; a single one may stand for itself."""
    if isinstance(chosen, str):
        return [chosen]
    names: list[Any] = list(chosen) if isinstance(chosen, Iterable) else [chosen]
    if not all(isinstance(name, str) for name in names):
        raise Refused(f"columns are given by their names, in a list, not as {chosen!r}")
    return names
