"""Replacing the type of a column that was inferred, if every retained value fits the other one.

Producers know an older schema, and append without asking. So what is decided from the records that
are there has to hold for those that come. The steps, each a conditional write:

1. read what is retained. Most of the work is done here, before anybody is disturbed;
2. the stream's register gets a floor: the number that the next schema is to have. A producer that
   records another column meanwhile takes a later number, and this ends at step 5;
3. the holds of sinks get the same floor, if there is none: what is committed and not appended yet
   was fitted to the types of now. From here on a task of an older schema gets no hold;
4. the end of each partition's queue gets it, by a write on top of what was read and checked to its
   last batch. From here on no batch of an older schema is appended there: its producer is told to
   learn the schema, and waits for it;
5. the register gets the schema under that number, if nobody took it.

Whatever ends this early puts the columns as they are under the number; and if that cannot be done,
because this process died, the first producer that waited too long does it. Decided from a look at
the queues before or after the schema alone, a batch that was appended in between would make the
stream unreadable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.buffer.consumer import ConsumedBatch, UnreadableBatch
from headwater.buffer.nulls import first_null, is_strict
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.retained import RetainedBatches
from headwater.buffer.stream import Stream, queues
from headwater.buffer.stream.changes import Replaces, check_alterable
from headwater.buffer.stream.config import StreamConfig, changed
from headwater.buffer.stream.recording import withdrawing
from headwater.buffer.stream.register import StreamRegister
from headwater.buffer.stream.schema import schema_version
from headwater.buffer.transaction.holds import Holds, holds_register
from headwater.buffer.type_text import field_text
from headwater.buffer.widening import Inexact, exact_cast, relaxed
from headwater.core import runtime
from headwater.core.errors import Contended, HeadwaterError, Refused


async def replace_types(
    stream: Stream, replaces: Replaces, given: Mapping[str, Any]
) -> StreamConfig:
    """Put `replaces.schema` in the place of the columns that `stream` has, with other settings."""
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is kept by nodes, and its history is in the tier, which is "
            f"not read here: the type of {replaces} stays. Create another stream, and copy"
        )
    checks = [_Check(stream, one, replaces.columns) for one in range(stream.partitions)]
    for check in checks:
        await check.through((await stream.looker(check.partition).state()).next_sequence)
    register = StreamRegister(stream.store, stream.name)
    latest = stream.config.schemas[-1]

    def begin(now: StreamConfig) -> StreamConfig:
        if now.schemas[-1:] != [latest] or now.partitions != stream.partitions:
            raise _overtaken(stream)
        return msgspec.structs.replace(now, schema_floor=now.next_schema_version)

    floor = (await register.update_live(stream.id, begin)).schema_floor
    added_ms = runtime.wall_ms()

    def end(now: StreamConfig) -> StreamConfig:
        check_alterable(now, given)
        is_mine = now.schema_floor == floor and now.schemas[-1] == latest
        if not is_mine or now.partitions != stream.partitions:
            raise _overtaken(stream)
        declared = schema_version(floor, replaces.schema, added_ms=added_ms)
        return changed(now, {**given, "schemas": [*now.schemas, declared]})

    try:
        await _refuse_older_sinks(stream, floor)
        for check in checks:
            await queues.raise_schema_floor(
                stream.store, stream.config, check.partition, floor, check.through
            )
        return await register.update_live(stream.id, end)
    except BaseException:
        withdraw = functools.partial(withdrawing, floor=floor, added_ms=added_ms)
        with contextlib.suppress(HeadwaterError):
            await register.update_live(stream.id, withdraw)
        raise


async def _refuse_older_sinks(stream: Stream, floor: int) -> None:
    def rise(now: Holds | None) -> Holds:
        now = now or Holds()
        if now.holds:
            names = sorted({hold.application for hold in now.holds.values()})
            raise Refused(
                f"stream {stream.name!r}: {len(now.holds)} transactions of sinks are open "
                f"({', '.join(names[:3])}), with rows in the types of now. Stop those queries; "
                "what a stopped one left open, `headwater gc` ends when its timeout is over"
            )
        return msgspec.structs.replace(now, schema_floor=max(now.schema_floor, floor))

    await holds_register(stream).update(rise)


class _Check:
    """The values of some columns of one partition, against the types that they are to have."""

    def __init__(self, stream: Stream, partition: int, columns: Sequence[pa.Field]) -> None:
        self.partition = partition
        self._stream = stream
        self._columns = columns
        self.through = RetainedBatches(stream, partition, self._visit).through
        """Check every retained batch before a sequence; `Refused` names a value."""

    async def _visit(self, batch: ConsumedBatch | UnreadableBatch) -> None:
        if isinstance(batch, UnreadableBatch):
            raise batch
        for field in self._columns:
            if field.name in batch.records.schema.names:
                self._check_column(batch.records.column(field.name), field, batch.descriptor)

    def _check_column(self, column: pa.Array, field: pa.Field, descriptor: Descriptor) -> None:
        try:
            found = exact_cast(column, relaxed(field.type))
        except Inexact as inexact:
            row, error = _first_inexact(column, relaxed(field.type), inexact)
            raise self._refused(field, descriptor, row, column[row].as_py(), error) from error
        if is_strict(field.type):
            null = first_null(found, field, pa.repeat(False, len(found)))
            if null is not None:
                raise self._refused(field, descriptor, null, column[null].as_py(), "null within")

    def _refused(
        self, field: pa.Field, descriptor: Descriptor, row: int, value: object, why: object
    ) -> Refused:
        return Refused(
            f"stream {self._stream.name!r}: column {field.name!r} stays as it is, because not "
            f"every retained value is {field_text(field)}: record {descriptor.first_lsn + row} of "
            f"partition {self.partition} has {value!r} ({why}). Choose a type that holds it, or "
            "wait until the retention has passed it"
        )


def _first_inexact(column: pa.Array, kind: pa.DataType, error: Inexact) -> tuple[int, Inexact]:
    """The first row that does not fit, by halving, and why; `error` is that of all rows."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            exact_cast(column.slice(low, middle - low), kind)
            low = middle
        except Inexact as found:
            high, error = middle, found
    return low, error


def _overtaken(stream: Stream) -> Contended:
    return Contended(
        f"stream {stream.name!r} got other columns or partitions meanwhile: nothing was replaced. "
        "Alter it again"
    )
