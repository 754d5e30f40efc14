"""Reading everything that a stream retains: to verify it, and to replace inferred types.

A type may be replaced if every retained value fits the new one. Producers append with the schema
that they know, so a decision about the stored records must also hold for those that are still
appended. The steps, each a conditional write:

1. read what is retained. Most of the work is done here, before any producer is affected;
2. the stream's register gets a floor: the number of the next schema version. If a producer records
   another column meanwhile, it takes a higher number, and this ends at step 5;
3. the holds of sinks get the same floor, if there are none: what is committed and not appended was
   fitted to the current types. From here on a task with an older schema gets no hold;
4. the end of each partition's queue gets the floor, by a write on top of what was checked up to its
   last batch. From here on no batch of an older schema is appended: its producer gets an error,
   and waits for the new schema;
5. the register gets the schema under that number, if the number is still free.

If this fails early, it writes the current columns under the number. If that fails because the
process died, the first producer that waited long enough does it. Checking the queues only before or
after the schema change would not be enough: a batch appended in between would make the stream
unreadable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.consumer import ConsumedBatch, FetchHandle, UnreadableBatch
from headwater.buffer.consumer.consumed_batch import ReaderColumns
from headwater.buffer.conversion import Inexact, all_nullable, exact_cast, first_null, is_strict
from headwater.buffer.queue.contract import BatchTrimmed, Descriptor
from headwater.buffer.stream import Stream, handle
from headwater.buffer.stream.config import (
    RetypeNeeded,
    StreamConfig,
    StreamRegister,
)
from headwater.buffer.stream.policy import with_alteration
from headwater.buffer.stream.schema import schema_version, withdraw_replacement
from headwater.buffer.stream.streams import borrow_stream, check_alterable
from headwater.buffer.transaction.holds import Holds, holds_register
from headwater.buffer.types import field_text
from headwater.core import runtime
from headwater.core.errors import Contended, Damaged, HeadwaterError, NotFound, Refused
from headwater.store import Store

READ_AT_ONCE: Final = 8
"""Batches that are fetched and checked concurrently."""

Visit = Callable[[ConsumedBatch | UnreadableBatch], Awaitable[None]]


class RetainedBatches:
    """The batches of one partition, in order of their sequences, each visited once."""

    def __init__(self, stream: Stream, partition: int, visit: Visit) -> None:
        self.partition = partition
        self._visit = visit
        self._queue_reader = stream.queue_reader(partition)
        self._handle = FetchHandle.of(stream, partition)
        self._last: int | None = None
        """The last visited batch."""
        self.next_lsn: int | None = None
        """The LSN after it; None before the first."""

    async def through(self, end: int) -> None:
        """Visit every retained batch before this sequence that was not visited yet."""
        while (-1 if self._last is None else self._last) + 1 < end:
            try:
                batches = await self._queue_reader.after(self._last, READ_AT_ONCE)
            except BatchTrimmed as trimmed:
                self._last = trimmed.floor_sequence - 1
                continue
            if not batches:
                return
            await runtime.gather_each(self._one, batches, at_once=READ_AT_ONCE)
            self._last, self.next_lsn = batches[-1].sequence, batches[-1].last_lsn + 1

    async def _one(self, descriptor: Descriptor) -> None:
        try:
            await self._visit(await self._handle.fetch(descriptor))
        except UnreadableBatch as error:
            floor = await self._queue_reader.floor()
            if descriptor.sequence >= floor.sequence:  # else deleted meanwhile
                await self._visit(error)


class BadBatch(msgspec.Struct, frozen=True):
    """Damage of one batch, or of the queue."""

    partition: int
    sequence: int | None
    """None: the queue cannot be read from here on."""
    first_lsn: int | None
    """For a queue: where the unreadable part begins; None if unknown."""
    last_lsn: int | None
    location: str
    cause: str


class Verified(msgspec.Struct):
    """The result of verifying a stream."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    bad: list[BadBatch] = []


async def verify_stream(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    partition: int | None = None,
    progress: Callable[[Verified], None] = lambda _: None,
) -> Verified:
    """Read every retained batch, verify its checksum, and bring it into the stream's columns.

    Changes nothing and fences nothing. Damage is listed in the result; an unreachable store raises.
    `progress` is called after each batch.
    """
    async with borrow_stream(source, name) as stream:
        return await _verify(stream, partition, progress)


async def _verify(
    stream: Stream, partition: int | None, progress: Callable[[Verified], None]
) -> Verified:
    result = Verified()
    columns = ReaderColumns(stream.schema, version=stream.schema_version)
    if partition is not None:
        stream.check_partition(partition)

    async def visit(batch: ConsumedBatch | UnreadableBatch) -> None:
        result.batches += 1
        cause = None
        if isinstance(batch, UnreadableBatch):
            cause = batch.cause
        else:
            result.records += len(batch)
            result.size_bytes += batch.descriptor.size_bytes
            try:
                columns.of(batch)
            except Refused as error:
                cause = str(error)
        if cause is not None:
            one = batch.descriptor
            bad = BadBatch(number, one.sequence, one.first_lsn, one.last_lsn, one.location, cause)
            result.bad.append(bad)
        progress(result)

    for number in range(stream.partitions) if partition is None else [partition]:
        batches = RetainedBatches(stream, number, visit)
        try:
            state = (await stream.queue_reader(number).state()).checked()
            batches.next_lsn = state.floor_lsn
            await batches.through(state.next_sequence)
        except (Damaged, NotFound) as error:
            cause = f"{type(error).__name__}: {error}"
            result.bad.append(BadBatch(number, None, batches.next_lsn, None, "", cause))
    return result


async def replace_types(
    stream: Stream, replaces: RetypeNeeded, settings: Mapping[str, Any]
) -> StreamConfig:
    """Replace the stream's columns by `replaces.schema`, and change these settings."""
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is consumed by nodes, and its history is in the tier, which "
            f"is not read here: the type of {replaces} stays. Create another stream, and copy"
        )
    checks = [
        RetainedBatches(
            stream, one, functools.partial(_check_values, stream, replaces.columns, one)
        )
        for one in range(stream.partitions)
    ]
    for check in checks:
        await check.through((await stream.queue_reader(check.partition).state()).next_sequence)
    register = StreamRegister(stream.store, stream.name)
    latest = stream.config.schemas[-1]

    def begin(now: StreamConfig) -> StreamConfig:
        if now.schemas[-1:] != [latest] or now.partitions != stream.partitions:
            raise _replaced_meanwhile(stream)
        return msgspec.structs.replace(now, schema_floor=now.next_schema_version)

    floor = (await register.update_live(stream.id, begin)).schema_floor
    added_ms = runtime.wall_ms()

    def end(now: StreamConfig) -> StreamConfig:
        check_alterable(now, settings)
        is_mine = now.schema_floor == floor and now.schemas[-1] == latest
        if not is_mine or now.partitions != stream.partitions:
            raise _replaced_meanwhile(stream)
        declared = schema_version(floor, replaces.schema, added_ms=added_ms)
        return with_alteration(now, {**settings, "schemas": [*now.schemas, declared]})

    try:
        await _refuse_older_sinks(stream, floor)
        for check in checks:
            await handle.raise_schema_floor(
                stream.store, stream.config, check.partition, floor, check.through
            )
        return await register.update_live(stream.id, end)
    except BaseException:
        withdraw = functools.partial(withdraw_replacement, floor=floor, added_ms=added_ms)
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
                f"({', '.join(names[:3])}), with rows in the current types. Stop those queries; "
                "`headwater gc` ends the transactions of stopped ones after their timeout"
            )
        return msgspec.structs.replace(now, schema_floor=max(now.schema_floor, floor))

    await holds_register(stream).update(rise)


async def _check_values(
    stream: Stream,
    columns: Sequence[pa.Field],
    partition: int,
    batch: ConsumedBatch | UnreadableBatch,
) -> None:
    """`Refused` names a value of these columns that does not fit their new types."""
    if isinstance(batch, UnreadableBatch):
        raise batch
    for field in columns:
        if field.name not in batch.records.schema.names:
            continue
        column = batch.records.column(field.name)
        misfit = _first_misfit(column, field)
        if misfit is not None:
            row, why = misfit
            raise Refused(
                f"stream {stream.name!r}: column {field.name!r} stays as it is, because not every "
                f"retained value is {field_text(field)}: record {batch.first_lsn + row} of "
                f"partition {partition} has {column[row].as_py()!r} ({why}). Choose a type that "
                "holds it, or wait until retention has deleted the record"
            )


def _first_misfit(column: pa.Array, field: pa.Field) -> tuple[int, str] | None:
    """The first row that the type of `field` cannot hold, and why."""
    kind = all_nullable(field.type)
    try:
        cast = exact_cast(column, kind)
    except Inexact as inexact:
        row, error = _first_inexact(column, kind, inexact)
        return row, str(error)
    if not is_strict(field.type):
        return None
    null = first_null(cast, field, pa.repeat(False, len(cast)))
    return None if null is None else (null, "null within")


def _first_inexact(column: pa.Array, kind: pa.DataType, error: Inexact) -> tuple[int, Inexact]:
    """The first row that does not fit, by binary search, and its error."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            exact_cast(column.slice(low, middle - low), kind)
            low = middle
        except Inexact as inexact:
            high, error = middle, inexact
    return low, error


def _replaced_meanwhile(stream: Stream) -> Contended:
    return Contended(
        f"stream {stream.name!r} got other columns or partitions meanwhile: nothing was replaced. "
        "Alter it again"
    )
