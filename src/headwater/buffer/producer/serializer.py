"""The serializer: checks calls against the stream's schema, and puts them into its columns.

A call is checked without a request, against the config that the producer has. If it does not fit,
the stream's register is read: another producer may have changed it, and new columns are recorded
there before the call is appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.arrow_stream import check_valid
from headwater.buffer.conversion import check_nulls
from headwater.buffer.producer.accumulator import INLINE_COPY_BYTES
from headwater.buffer.producer.call import Entries, OptionalColumns, ProduceCall, valued
from headwater.buffer.producer.rows import table_of
from headwater.buffer.records import RESERVED, VALUE, from_arrow, without_untyped
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.stream.handle import deletion_error
from headwater.buffer.stream.schema import await_schema
from headwater.buffer.types import is_untyped
from headwater.core import limits
from headwater.core.errors import (
    Conflict,
    Denied,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

INLINE_ARRANGE_BYTES: Final = 256 * limits.KIB
"""Calls up to this size are checked and split by the caller, larger ones in a thread."""
_OPAQUE: Final = pa.schema([(VALUE, RESERVED[VALUE])])
_NOTHING: Final = pa.schema([])
"""Of records without anything to record."""


class UnrecordedColumns(Exception):
    """A call does not fit the stream's config, which may have changed, or may be changed."""

    def __init__(self, stream: Stream, records: pa.Schema, refusal: Refused | None = None) -> None:
        super().__init__(f"not recorded of {stream.name!r}: {', '.join(records.names)}")
        self.stream = stream
        """With the config that the call was checked against."""
        self.records = records
        self.refusal = refusal
        """The caller's error if the register says the same."""


class RecordSerializer:
    """Fits calls to one stream. All but `record` and `learn_schema` are for any thread."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        """With the config that was last read or written."""
        self._is_v1 = stream.config.format == "v1"
        self._carried: pa.Schema | None = None
        """The schema of the last columns that fitted as they were: usually of the next, too."""

    def values(
        self,
        entries: Entries,
        metadata: bytes | None,
        columns: OptionalColumns,
        partition: int | None,
    ) -> ProduceCall:
        """A call of opaque values. `UnrecordedColumns`: `record` them and check again."""
        self._check_partition(partition)
        stream = self.stream
        call = valued(entries, metadata, columns, partition, as_lists=stream.schema is None)
        self._check(call)
        if call.rows and not stream.is_opaque:
            if stream.schema is None:
                raise UnrecordedColumns(stream, _OPAQUE)
            _fit(call, stream)
        return call

    def columns(
        self,
        data: pa.RecordBatch | pa.Table,
        metadata: bytes | None,
        partition: int | None,
        *,
        is_ours: bool = False,
    ) -> ProduceCall:
        """A call of columns, likewise. `is_ours`: no caller can change their memory."""
        self._check_partition(partition)
        stream = self.stream
        may_drop = stream.config.shape is None or stream.config.is_inferred
        data = without_untyped(data, stream.schema, may_drop=may_drop)
        if data.num_rows and not data.num_columns:
            raise Refused(f"{data.num_rows:,} rows without any column: nothing can carry them")
        call = ProduceCall(metadata, partition)
        call.is_ours = is_ours
        try:
            if self._is_carried(data):
                check_valid(data)
                call.take_batches([data])
            else:
                call.take_batches(from_arrow(data))
        except Refused as refusal:
            if any(is_untyped(field.type) for field in data.schema):
                # Another producer may have recorded a type by now.
                raise UnrecordedColumns(stream, _NOTHING, refusal) from refusal
            raise
        self._check(call)
        if not stream.config.schemas or stream.config.is_inferred:
            for batch in call.batches:
                check_nulls(batch)
        _fit(call, stream)
        if call.batches and call.batches[0].schema.equals(data.schema, check_metadata=True):
            self._carried = data.schema
        return call

    def rows(
        self, rows: list[Mapping[str, Any]], metadata: bytes | None, partition: int | None
    ) -> ProduceCall:
        """A call of dicts, likewise."""
        stream = self.stream
        try:
            table = table_of(rows, stream.schema, may_widen=stream.config.is_inferred)
        except Refused as refusal:
            raise UnrecordedColumns(stream, _NOTHING, refusal) from refusal
        return self.columns(table, metadata, partition, is_ours=True)

    def takes_time(self, data: pa.RecordBatch | pa.Table) -> bool:
        """Whether `columns` reads the values of a large call, or copies them."""
        if data.nbytes <= INLINE_ARRANGE_BYTES:
            return False
        return data.nbytes > INLINE_COPY_BYTES or not self._is_carried(data)

    def _is_carried(self, data: pa.RecordBatch | pa.Table) -> bool:
        """Whether `data` are in the columns of the stream."""
        return (
            self._carried is not None
            and isinstance(data, pa.RecordBatch)
            and data.schema.equals(self._carried, check_metadata=True)
        )

    async def record(self, unrecorded: UnrecordedColumns) -> None:
        """Record the columns of a call in the stream's register, and read those of others.

        Raises the refusal of the call if neither changes anything.
        """
        before = self.stream.config
        try:
            after = (await self.stream.recording(unrecorded.records)).config
        except Conflict as error:
            raise await self.explain(NotFound(str(error))) from error
        except Denied as error:
            raise Denied(
                f"stream {self.stream.name!r}: a call has columns that are not recorded, and its "
                f"stream.json may not be written from here; nothing of the call was appended. "
                f"Declare its columns: {self.stream.alter_command} ({error})"
            ) from error
        except (Unavailable, OutcomeUnknown) as error:
            # Even if the columns were recorded, no record was appended: the call can be repeated.
            raise Unavailable(
                f"stream {self.stream.name!r}: its columns could not be recorded, so nothing of "
                f"this call was appended; produce it again ({error})"
            ) from error
        is_same = (after.shape, after.schemas) == (before.shape, before.schemas)
        if is_same and unrecorded.refusal is not None:
            raise unrecorded.refusal
        self._learn(after)

    async def learn_schema(self, floor: int) -> None:
        """Read the stream's schema once it has this version; wait for it, or withdraw it."""
        if self.stream.schema_version < floor:
            before = self.stream.config
            self._learn(await await_schema(self.stream.store, before, floor, is_patient=True))

    async def explain(self, error: HeadwaterError) -> HeadwaterError:
        """The error, or `NotFound` in its place if the stream was deleted."""
        reason = await deletion_error(self.stream, error)
        if reason is not error:
            reason.__cause__ = error
        return reason

    def _learn(self, now: StreamConfig) -> None:
        # No other setting: a producer has as many partitions as it was opened with.
        config = msgspec.structs.replace(self.stream.config, shape=now.shape, schemas=now.schemas)
        self.stream = self.stream.with_config(config)

    def _check(self, call: ProduceCall) -> None:
        if self._is_v1:
            _check_v1(call)
        if not call.rows and call.metadata is not None:
            raise Refused("metadata without a record: there is nothing to carry them")

    def _check_partition(self, partition: int | None) -> None:
        count = self.stream.partitions
        if partition is None or (type(partition) is int and 0 <= partition < count):
            return
        raise Refused(
            f"partition is {partition!r}: stream {self.stream.name!r} has partitions 0 to "
            f"{count - 1}; None leaves the choice to the partitioner"
        )


def _fit(call: ProduceCall, stream: Stream) -> None:
    try:
        call.batches = [stream.fit(batch) for batch in call.batches]
    except Refused as refusal:
        raise UnrecordedColumns(stream, call.batches[0].schema, refusal) from refusal
    call.schema_version = stream.schema_version


def _check_v1(call: ProduceCall) -> None:
    lists = call.lists
    columns = {name for batch in call.batches for name in batch.schema.names}
    if columns - {VALUE} or (lists is not None and lists.columns):
        raise Refused(
            "a stream in the published v1 format carries values and metadata alone: no keys, "
            "headers, timestamps, operations nor columns"
        )
    nulls = any(batch.column(VALUE).null_count for batch in call.batches)
    if nulls or (lists is not None and None in lists.values):
        raise Refused(
            "a stream in the published v1 format has no null values: use b'', or leave them out"
        )
