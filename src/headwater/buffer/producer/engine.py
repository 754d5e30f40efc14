"""What stands behind a producer's fronts: it checks calls, keeps them, and sees them through.

The engine knows nothing of its fronts, so that a front which is dropped can say so while the
engine's tasks are still under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.conversion import check_nulls
from headwater.buffer.producer.accumulator import INLINE_COPY_BYTES, Accumulator
from headwater.buffer.producer.config import Settings, settings_for
from headwater.buffer.producer.dict_rows import table_of
from headwater.buffer.producer.draft import Draft
from headwater.buffer.producer.given import is_whole_text
from headwater.buffer.producer.handle import Handle
from headwater.buffer.producer.known_stream import (
    NOTHING,
    OPAQUE,
    KnownStream,
    Unrecorded,
    fit_parcel,
)
from headwater.buffer.producer.lane import Carrier, Lane
from headwater.buffer.producer.line import BufferFull, Line, Place
from headwater.buffer.producer.metrics import ProducerMetrics
from headwater.buffer.producer.parcel import Entries, Extras, Parcel, typed, valued
from headwater.buffer.producer.pieces import defaults_for
from headwater.buffer.queue.contract import Appender, ProducerState
from headwater.buffer.records import VALUE, without_untyped
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import deletion_error, explain_deletion
from headwater.buffer.types import is_untyped
from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused
from headwater.core.portal import call_in_child

PARTITIONS_AT_ONCE: Final = 32
"""Partitions that are opened, or closed, side by side."""
GOODBYE_S: Final = 5.0
"""For the goodbyes of all partitions together."""
INLINE_ARRANGE_BYTES: Final = 256 * limits.KIB
"""Calls up to this size are checked and split where they are, larger ones on a thread."""
FAILURES_KEPT: Final = 64
"""Failed batches that nobody has heard of, for flush() and close() to tell."""


class Engine:
    """One producer, without a face."""

    def __init__(
        self,
        stream: Stream,
        producer_id: str,
        settings: Settings,
        opened: list[tuple[Appender, ProducerState]],
        handle_type: Callable[..., Handle],
        *,
        resumable: bool,
    ) -> None:
        """`resumable`: a successor under the id goes on after the last accepted batch."""
        self.known = KnownStream(stream, self)
        self.producer_id = producer_id
        self.settings = settings
        self.metrics = ProducerMetrics([appender.counters for appender, _ in opened])
        self.accumulator = Accumulator(
            settings,
            stream.partitions,
            self._ship,
            short_way=stream.is_opaque,
            takes_keys=stream.config.format != "v1",
            handle_type=handle_type,
        )
        self.is_closed = False
        self.is_forked = False
        self.line = Line(self.accumulator)
        self._clock = runtime.current()
        self._failures: deque[Draft] = deque(maxlen=FAILURES_KEPT)
        self._doubted: dict[Draft, None] = {}
        """Told that their outcome is unknown, and still being tried."""
        self._closing = asyncio.Lock()
        self._is_v1 = stream.config.format == "v1"
        self._resumable = resumable
        self._carried: pa.Schema | None = None
        """Columns that came last and were carried as they are: nearly always the next ones too."""
        carrier = Carrier(
            settings,
            self.metrics,
            self,
            self.known,
            defaults_for(stream.name),
            packs_calls=self._is_v1,
            stops_at_loss=(resumable and not self._is_v1) or settings.on_failure == "stop",
        )
        self.lanes = [
            Lane(partition, appender, resumed, carrier)
            for partition, (appender, resumed) in enumerate(opened)
        ]
        call_in_child(self._begin_in_child)

    @classmethod
    async def open(
        cls,
        stream: Stream,
        producer_id: str | None,
        given: Mapping[str, Any],
        handle_type: Callable[..., Handle] = Handle,
    ) -> Engine:
        """Fence whoever has the id in any partition, and learn how far they came."""
        settings = settings_for(stream, given)
        chosen = runtime.new_ulid() if producer_id is None else _checked_id(producer_id)
        slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def one(partition: int) -> tuple[Appender, ProducerState]:
            appender = stream.appender(partition, chosen)
            async with slots, explain_deletion(stream):
                return appender, await appender.open()

        found = await asyncio.gather(
            *(one(partition) for partition in range(stream.partitions)), return_exceptions=True
        )
        opened = [outcome for outcome in found if not isinstance(outcome, BaseException)]
        for outcome in found:
            if isinstance(outcome, BaseException):
                doors = [appender for appender, _ in opened]
                await _say_goodbye(doors, for_good=producer_id is None)
                raise outcome
        resumable = producer_id is not None
        return cls(stream, chosen, settings, opened, handle_type, resumable=resumable)

    @property
    def stream(self) -> Stream:
        """The stream, with the columns that this producer knows of."""
        return self.known.stream

    def found_opaque(self) -> None:
        """The stream carries opaque values: small calls may take the short way."""
        self.accumulator.open_short_way()

    def check_open(self) -> None:
        """Raise why nothing is taken any more, if nothing is."""
        if self.accumulator.refusal is not None:
            raise self.accumulator.refusal.with_traceback(None)

    # Checking: plain functions, for any thread. `Unrecorded`: the stream's register comes first.

    def valued(
        self, entries: Entries, metadata: bytes | None, extras: Extras, partition: int | None
    ) -> Parcel:
        """A call of opaque values, checked."""
        self._check_partition(partition)
        stream = self.stream
        parcel = valued(entries, metadata, extras, partition, as_lists=stream.schema is None)
        if self._is_v1:
            _check_v1(parcel)
        if parcel.rows and not stream.is_opaque:
            if stream.schema is None:
                raise Unrecorded(stream, OPAQUE)
            fit_parcel(parcel, stream)
        return _checked(parcel)

    def typed(
        self,
        data: pa.RecordBatch | pa.Table,
        metadata: bytes | None,
        partition: int | None,
        *,
        is_ours: bool = False,
    ) -> Parcel:
        """A call of columns, checked. `is_ours`: nobody else can change their memory."""
        self._check_partition(partition)
        stream = self.stream
        may_drop = stream.config.shape is None or stream.config.is_inferred
        data = without_untyped(data, stream.schema, may_drop=may_drop)
        try:
            parcel = typed(data, metadata, partition, self._carried, is_ours=is_ours)
        except Refused as refusal:
            if any(is_untyped(field.type) for field in data.schema):
                # Another producer may have recorded a type by now.
                raise Unrecorded(stream, NOTHING, refusal) from refusal
            raise
        if self._is_v1:
            _check_v1(parcel)
        if not stream.config.schemas or stream.config.is_inferred:
            for batch in parcel.batches:
                check_nulls(batch)
        fit_parcel(parcel, stream)
        if parcel.batches and parcel.batches[0].schema.equals(data.schema, check_metadata=True):
            self._carried = data.schema
        return _checked(parcel)

    def takes_time(self, data: pa.RecordBatch | pa.Table) -> bool:
        """Whether `typed` looks at the values of a large call, or copies them."""
        if data.nbytes <= INLINE_ARRANGE_BYTES:
            return False
        return not isinstance(data, pa.RecordBatch) or (
            data.nbytes > INLINE_COPY_BYTES or data.schema != self._carried
        )

    def dicts(
        self, rows: Iterable[Mapping[str, Any]], metadata: bytes | None, partition: int | None
    ) -> Parcel:
        """A call of dicts, checked."""
        stream = self.stream
        try:
            table = table_of(rows, stream.schema, may_widen=stream.config.is_inferred)
        except Refused as refusal:
            raise Unrecorded(stream, NOTHING, refusal) from refusal
        return self.typed(table, metadata, partition, is_ours=True)

    async def settled(self, check: Callable[[], Parcel]) -> Parcel:
        """A call, checked; what is new to the stream is recorded before, or it is refused."""
        while True:
            try:
                return check()
            except Unrecorded as unrecorded:
                await self.known.record(unrecorded)

    def _check_partition(self, partition: int | None) -> None:
        count = self.stream.partitions
        if partition is None or (type(partition) is int and 0 <= partition < count):
            return
        raise Refused(
            f"partition is {partition!r}: stream {self.stream.name!r} has partitions 0 to "
            f"{count - 1}; None leaves the choice to the partitioner"
        )

    # Taking

    async def keep(self, parcel: Parcel, entries: Any, place: Place) -> Handle:
        """Keep a checked call when its turn has come; `BufferFull` if there is no room for it."""
        accumulator = self.accumulator
        if parcel.size_bytes > INLINE_ARRANGE_BYTES and accumulator.takes_time(parcel):
            await runtime.run_blocking(accumulator.arrange, parcel)
        else:
            accumulator.arrange(parcel)
        handle = None
        if place.is_first:
            handle = accumulator.take(parcel, self._clock.wall_ms(), in_line=True)
        if handle is None:
            handle = await self._wait_for_room(parcel, entries, place)
        if accumulator.stirred:
            accumulator.pump()
        return handle

    async def _wait_for_room(self, parcel: Parcel, entries: Any, place: Place) -> Handle:
        settings, accumulator = self.settings, self.accumulator

        def attempt() -> Handle | None:
            handle = accumulator.take(parcel, self._clock.wall_ms(), in_line=True)
            if handle is None:
                # What is gathered and not full goes at once: the room it takes is wanted.
                accumulator.seal_all()
            return handle

        def full() -> str:
            return (
                f"the buffer holds {accumulator.held_bytes:,} of {settings.buffer_bytes:,} bytes "
                f"and {accumulator.held_calls:,} of {settings.buffer_calls:,} calls that are not "
                f"accepted yet; this call has {parcel.size_bytes:,} bytes"
            )

        wait_ms = settings.max_block_ms
        timeout_s = None if wait_ms is None else wait_ms / 1000
        only_once = settings.on_full == "fail"
        try:
            handle = await self.line.stand(place, attempt, timeout_s, only_once=only_once)
        except TimeoutError:
            why = f"no room within {wait_ms:,} ms (max_block_ms): {full()}"
            if not place.is_first:
                why = f"the calls before this one were not kept within {wait_ms:,} ms; {full()}"
            raise BufferFull(why, entries=entries) from None
        if handle is None:
            raise BufferFull(f"{full()}. Try again later, or produce more slowly", entries=entries)
        return handle

    # Seeing through

    async def flush(self) -> None:
        """Send everything that was taken, and wait until all of it is accepted.

        Raises the first error of what it waited for, or of what failed before and nobody heard of;
        and each time while something is in doubt whose time is up.
        """
        if self.is_forked:
            raise _forked()
        accumulator = self.accumulator
        accumulator.seal_all()
        waited = list(accumulator.unsettled)
        for draft in waited:
            await draft.wait()
        self._failures.extend(accumulator.lost)
        accumulator.lost.clear()
        missed = [draft for draft in self._failures if not draft.heard]
        self._failures.clear()
        told = dict.fromkeys([*waited, *self._doubted, *missed])
        # What was in doubt may have landed since.
        failed = [draft for draft in told if draft.error is not None and draft.placed is None]
        if not failed:
            return
        for draft in failed:
            draft.heard = True
        # What may have landed is not to be taken for dropped, because something else was.
        error = next(
            (draft.error for draft in failed if isinstance(draft.error, OutcomeUnknown)),
            failed[0].error,
        )
        assert error is not None
        if len(failed) > 1:
            rows = sum(draft.rows for draft in failed)
            error.add_note(f"{len(failed)} batches with {rows} records failed; this is one of them")
        raise error.with_traceback(None)

    async def close(self) -> None:
        """Take nothing more, flush, and say goodbye; raises what `flush` raises, closed or not."""
        if self.is_forked:
            return
        self.accumulator.refuse(Refused("the producer is closed: open another one"))
        self.line.move()
        async with self._closing:
            if self.is_closed:
                return
            error = None
            try:
                await self.flush()
            except HeadwaterError as failed:
                error = failed
            doubted = sum(draft.rows for draft in self._doubted)
            if doubted and error is not None:
                error.add_note(f"{doubted} records in doubt are not tried any more: it is closed")
            await asyncio.gather(*(lane.end() for lane in self.lanes))
            doors = [lane.appender for lane in self.lanes]
            await _say_goodbye(doors, for_good=not self._resumable)
            self.is_closed = True
        if error is not None:
            raise error

    def _ship(self, draft: Draft) -> None:
        self.lanes[draft.partition].put(draft)

    def told(self, draft: Draft) -> None:
        """The draft's handles know what became of it."""
        self.accumulator.told(draft)
        if draft.error is None:
            return
        self._failures.append(draft)
        if isinstance(draft.error, OutcomeUnknown):
            self._doubted[draft] = None

    def release(self, draft: Draft) -> None:
        """The draft takes no memory any more."""
        self.accumulator.release(draft)
        if draft in self._doubted:
            del self._doubted[draft]
            # Somebody may have heard that it is still being tried, which is over.
            draft.heard = draft.placed is not None
        self.line.move()

    async def explain(self, error: HeadwaterError) -> HeadwaterError:
        """The error, or what is behind it: that the stream was deleted."""
        told = await deletion_error(self.stream, error)
        if told is not error:
            told.__cause__ = error
        return told

    def stop(self, error: HeadwaterError) -> None:
        """Nothing of this producer will be accepted any more."""
        self.accumulator.refuse(error)
        self.accumulator.seal_all()
        for lane in self.lanes:
            lane.stop(error)
        self.line.move()

    def break_off(self, cause: BaseException) -> None:
        """Take nothing more; what was taken before the hole is seen through."""
        again = f"under its id, {self.producer_id!r}, and go on from `resumed`"
        cure = again if self._resumable else "and go on after what was accepted"
        self.accumulator.refuse(
            Refused(
                f"the producer stopped where records were dropped: open it again {cure}. {cause}"
            )
        )
        self.accumulator.seal_all()
        self.line.move()

    def _begin_in_child(self) -> None:
        # The parent sends what is in the buffer; a second sender under its id would fence it.
        self.is_forked = True
        self.accumulator.reopen_lock()
        self.accumulator.refuse(_forked())


async def _say_goodbye(appenders: list[Appender], *, for_good: bool) -> None:
    """Close them all, within a time for all.

    It spares a successor a search, or the collector the wait for one, and no more.
    """
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    until_s = asyncio.get_running_loop().time() + GOODBYE_S

    async def one(appender: Appender) -> None:
        async with slots:
            # Each is at least begun, for what closing does before it asks the store.
            with contextlib.suppress(HeadwaterError, TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await appender.close(for_good=for_good)

    await asyncio.gather(*(one(appender) for appender in appenders))


def _checked_id(producer_id: Any) -> str:
    if not isinstance(producer_id, str):
        raise Refused(f"producer_id is {producer_id!r}: it is text, such as 'binlog-7'")
    if not is_whole_text(producer_id):
        raise Refused(f"producer_id is {producer_id!r}: half a character is no text")
    return producer_id


def _forked() -> Refused:
    return Refused("this producer was opened before the process forked: open one in the child")


def _checked(parcel: Parcel) -> Parcel:
    if not parcel.rows and parcel.metadata is not None:
        raise Refused("metadata without a record: there is nothing to carry them")
    return parcel


def _check_v1(parcel: Parcel) -> None:
    lists = (parcel.keys, parcel.headers, parcel.timestamps, parcel.operations)
    columns = {name for batch in parcel.batches for name in batch.schema.names}
    if any(column is not None for column in lists) or columns - {VALUE}:
        raise Refused(
            "a stream in the published v1 format carries values and metadata alone: no keys, "
            "headers, timestamps, operations nor columns"
        )
    nulls = any(batch.column(VALUE).null_count for batch in parcel.batches)
    if nulls or (parcel.values is not None and None in parcel.values):
        raise Refused(
            "a stream in the published v1 format has no null values: give b'' or leave out"
        )
