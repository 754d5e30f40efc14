"""One partition's way into its queue: encode, upload, append, in order.

Drafts arrive sealed. Several are encoded and uploaded at a time; they are appended in the order in
which they were sealed, one append at a time, and whatever is uploaded as an unbroken row when an
append begins goes with it.

Always holds:

- a producer sequence belongs to the first draft that was part of an append under it, for ever:
  that append may have landed, whatever was answered, unless the queue says that it did not and
  will not (`OlderSchema`). Such a draft is *attempted*; it stands at the
  front of the lane until it has landed, and nothing overtakes it. Its handles are told
  `OutcomeUnknown` when their time is up; the lane goes on with it all the same, unless the queue
  says that nothing can tell any more (`Unsettled`): then it is left out;
- a draft that was never attempted can be dropped, and leaves no gap;
- of a producer that can be resumed, or that is to stop at a failure, nothing is accepted that comes
  after what was dropped: a successor that goes on after the last accepted batch would skip it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

import pyarrow as pa

from headwater.buffer.batch import Batch, BatchTimes
from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.draft import Draft
from headwater.buffer.producer.known_stream import KnownStream
from headwater.buffer.producer.metrics import ProducerMetrics
from headwater.buffer.queue.contract import (
    AppendedBatch,
    Appender,
    BelowFloor,
    EncodedBytes,
    NewBatch,
    OlderSchema,
    ProducerState,
    Unsettled,
)
from headwater.buffer.queue.v1.manifest_format import pack_calls
from headwater.core import limits, runtime
from headwater.core.errors import (
    Bug,
    Damaged,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.core.retry import RetryPolicy

GROUP_MAX: Final = 256
"""Batches in one append, but for those that were part of an earlier one."""
INLINE_ENCODE_BYTES: Final = 64 * limits.KIB
"""Drafts up to this size are encoded where they are, larger ones on a thread."""
# Only the delivery timeout ends the retries, and for what was attempted not even that.
_PATIENT: Final = RetryPolicy(attempts=1 << 62, deadline_s=float("inf"))


class Desk(Protocol):
    """Whom a lane reports to."""

    def told(self, draft: Draft) -> None:
        """The draft's handles know what became of it."""

    def release(self, draft: Draft) -> None:
        """The draft takes no memory any more."""

    async def explain(self, error: HeadwaterError) -> HeadwaterError:
        """The error, or what is behind it."""

    def stop(self, error: HeadwaterError) -> None:
        """Nothing of this producer will be accepted any more."""

    def break_off(self, cause: BaseException) -> None:
        """Records were dropped: nothing that is not in a lane by now will be accepted."""


class Carrier:
    """What all lanes of a producer share."""

    def __init__(
        self,
        settings: Settings,
        metrics: ProducerMetrics,
        desk: Desk,
        known: KnownStream,
        defaults: Mapping[str, pa.Scalar],
        *,
        packs_calls: bool,
        stops_at_loss: bool,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.desk = desk
        self.known = known
        self.defaults = defaults
        self.packs_calls = packs_calls
        self.stops_at_loss = stops_at_loss
        self.schema_floor = 0
        """What was fitted to an older version of the schema is not appended any more."""
        self.slots = asyncio.Semaphore(settings.max_in_flight)


class _Flight:
    """A sealed draft under way."""

    __slots__ = (
        "attempted",
        "batch",
        "batch_id",
        "cause",
        "draft",
        "expiry",
        "inline",
        "is_ready",
        "metadata",
        "packed",
        "size_bytes",
        "task",
        "times",
    )

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.batch_id = ""
        self.batch: Batch | None = None
        self.size_bytes = 0
        self.times = BatchTimes(0, 0, None, None)
        self.inline: bytes | None = None
        self.packed = b""
        self.metadata: bytes | None = None
        """What a successor resumes from once this has landed."""
        self.is_ready = False
        """Whether it is uploaded, or rides in its entry: it can be appended."""
        self.attempted = False
        self.cause: BaseException | None = None
        """Why it is not accepted yet."""
        self.task: asyncio.Task[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None


class Lane:
    """Carries the drafts of one partition into its queue."""

    def __init__(
        self, partition: int, appender: Appender, resumed: ProducerState, carrier: Carrier
    ) -> None:
        self.partition = partition
        self.resumed = resumed
        self.appender = appender
        self._carrier = carrier
        self._flights: deque[_Flight] = deque()
        self._next_sequence = resumed.producer_sequence + 1
        """The producer sequence of the first in the lane."""
        self._resume_metadata = self._landed_metadata = resumed.metadata
        self._appending: asyncio.Task[None] | None = None
        self._stopped: HeadwaterError | None = None
        self._broken: HeadwaterError | None = None
        """Why nothing more is taken, while what was taken before is seen through."""

    def put(self, draft: Draft) -> None:
        """Take over a sealed draft."""
        refusal = self._stopped or self._broken
        if refusal is not None:
            draft.fail(refusal)
            self._carrier.desk.told(draft)
            self._carrier.desk.release(draft)
            return
        flight = _Flight(draft)
        self._flights.append(flight)
        flight.task = runtime.spawn(self._prepare(flight), name=f"upload-{self.partition}")
        timeout_s = self._carrier.settings.delivery_timeout_ms / 1000
        waited_s = runtime.monotonic_s() - draft.first_s
        loop = asyncio.get_running_loop()
        flight.expiry = loop.call_later(max(0.0, timeout_s - waited_s), self._expire, flight)

    # Encoding and uploading

    async def _prepare(self, flight: _Flight, above: str | None = None) -> None:
        """Encode and upload, as often as it takes, until the flight can be appended."""
        flight.batch_id = runtime.new_ulid(above=above)
        pauses = _PATIENT.start()
        while True:
            try:
                async with self._carrier.slots:
                    await self._upload(flight)
                break
            except (Unavailable, OutcomeUnknown) as error:
                # An upload that may have landed is repeated without harm: same name, same bytes.
                flight.cause = error
            except Exception as error:
                if not flight.attempted:
                    self._drop(flight, error)
                    return
                # Its sequence is taken: nothing can go on before it, so it has to work some time.
                flight.cause = error
            await pauses.pause(throttled=isinstance(flight.cause, Throttled))
        flight.is_ready = True
        self._append_soon()

    async def _upload(self, flight: _Flight) -> None:
        small = flight.draft.size_bytes <= INLINE_ENCODE_BYTES
        if small:
            data = self._encode(flight)
        else:
            data = await runtime.run_blocking(self._encode, flight)
        inline = len(data) <= self.appender.inline_max_bytes
        if not inline:
            await self.appender.upload(flight.batch_id, data)
        assert flight.batch is not None
        flight.size_bytes = len(data)
        flight.inline = bytes(data) if inline else None
        if self._carrier.packs_calls:
            flight.packed = pack_calls(flight.batch.calls)

    def _encode(self, flight: _Flight) -> EncodedBytes:
        draft = flight.draft
        if flight.batch is None:
            is_older = 0 < draft.schema_version < self._carrier.schema_floor
            loose = self.appender.takes_loose and not is_older
            built = draft.build(flight.batch_id, self._carrier.defaults, loose=loose)
            if is_older:
                records, draft.schema_version = self._carrier.known.refit(built.records)
                built = built._replace(records=records)
            flight.batch = built
            flight.times = built.times()
        batch = flight.batch._replace(batch_id=flight.batch_id)
        return self.appender.encode(batch, self._carrier.settings.compression)

    # Appending

    def _append_soon(self) -> None:
        if self._appending is None and self._stopped is None and self._group():
            self._appending = runtime.spawn(self._append(), name=f"append-{self.partition}")

    def _group(self) -> list[_Flight]:
        """What the next append carries: all that were attempted, and what follows and is ready."""
        group: list[_Flight] = []
        for flight in self._flights:
            if not flight.is_ready:
                return [] if flight.attempted else group
            if len(group) >= GROUP_MAX and not flight.attempted:
                break
            group.append(flight)
        return group

    async def _append(self) -> None:
        """Append group after group, for as long as there is one."""
        pauses = _PATIENT.start()
        try:
            while group := self._group():
                entries = [self._entry(flight, place) for place, flight in enumerate(group)]
                try:
                    placed = await self.appender.append(entries)
                except BelowFloor as error:
                    self._send_again(group, error)
                except Unsettled as error:
                    self._leave_out(group, error)
                except OlderSchema as error:
                    await self._fit_again(group, entries, error)
                except (Fenced, Damaged, Bug, NotFound) as error:
                    self._carrier.desk.stop(await self._carrier.desk.explain(error))
                    return
                except (Unavailable, OutcomeUnknown, Refused) as error:
                    # What was refused may be allowed again: nothing can be left out before that.
                    for flight in group:
                        flight.cause = error
                    await pauses.pause(throttled=isinstance(error, Throttled))
                else:
                    self._land(group, placed)
                    pauses = _PATIENT.start()
        except Exception as error:
            bug = Bug(f"partition {self.partition}: appending broke: {error!r}")
            bug.__cause__ = error
            self._carrier.desk.stop(bug)
        finally:
            # Nothing can have become ready since the last group was asked for: there was no await.
            self._appending = None

    def _entry(self, flight: _Flight, place: int) -> NewBatch:
        draft = flight.draft
        if not flight.attempted:
            flight.attempted = True
            draft.producer_sequence = self._next_sequence + place
            if not isinstance(draft.complete, bool):
                self._resume_metadata = draft.complete
            flight.metadata = self._resume_metadata
        return NewBatch(
            batch_id=flight.batch_id,
            producer_sequence=draft.producer_sequence,
            rows=draft.rows,
            size_bytes=flight.size_bytes,
            **flight.times._asdict(),
            metadata=flight.metadata,
            schema_version=draft.schema_version,
            inline=flight.inline,
            calls=flight.packed,
        )

    def _land(self, group: list[_Flight], placed: list[AppendedBatch]) -> None:
        carrier = self._carrier
        now_s = runtime.monotonic_s()
        for flight, place in zip(group, placed, strict=True):
            self._flights.popleft()
            self._next_sequence += 1
            draft, metrics = flight.draft, carrier.metrics
            metrics.batches_flushed += 1
            metrics.entries_flushed += draft.rows
            metrics.bytes_flushed += draft.size_bytes
            metrics.bytes_written += flight.size_bytes
            metrics.flush_duration_seconds.observe(now_s - draft.sealed_s)
            self._landed_metadata = flight.metadata
            self._let_go(flight)
            draft.accept(place)
            carrier.desk.told(draft)
            carrier.desk.release(draft)

    def _send_again(self, group: list[_Flight], refusal: BelowFloor) -> None:
        """Give those whose id the collector has passed another one. The id stands in the bytes."""
        passed = [flight for flight in group if flight.batch_id <= refusal.floor]
        if not passed:
            raise Bug(f"none of {len(group)} batches is below the floor that refused them")
        for flight in passed:
            flight.is_ready = False
            flight.cause = refusal
            flight.task = runtime.spawn(
                self._prepare(flight, refusal.floor), name=f"upload-{self.partition}"
            )

    def _leave_out(self, group: list[_Flight], error: Unsettled) -> None:
        """Go on without attempted drafts: they have landed, or never will."""
        unsettled = [flight for flight in group if flight.batch_id in error.batch_ids]
        if not unsettled:
            raise Bug(f"none of {len(group)} batches is unsettled")
        for flight in unsettled:
            self._flights.remove(flight)
            self._next_sequence += 1
            rows = flight.draft.rows
            self._fail(flight, OutcomeUnknown(f"{rows} records may be accepted or not: {error}"))

    async def _fit_again(
        self, group: list[_Flight], entries: list[NewBatch], refusal: OlderSchema
    ) -> None:
        """Fit what was refused to the schema that has taken the place of its own.

        What landed is told so. Nothing else did, nor will: it is as if it had not been attempted,
        and what does not fit any more is dropped.
        """
        landed = [one for one in entries if one.producer_sequence <= refusal.landed]
        if landed:
            self._land(group[: len(landed)], await self.appender.append(landed))
        self._resume_metadata = self._landed_metadata
        carrier = self._carrier
        carrier.schema_floor = max(carrier.schema_floor, refusal.floor)
        older: list[_Flight] = []
        for flight in self._flights:
            flight.attempted = False
            if flight.is_ready and 0 < flight.draft.schema_version < carrier.schema_floor:
                flight.is_ready, flight.batch, flight.cause = False, None, refusal
                older.append(flight)
        try:
            await carrier.known.learn_schema(carrier.schema_floor)
        except HeadwaterError as error:
            carrier.desk.stop(await carrier.desk.explain(error))
            return
        for flight in older:
            if flight in self._flights:
                flight.task = runtime.spawn(
                    self._prepare(flight, flight.batch_id), name=f"upload-{self.partition}"
                )

    # Giving up

    def _expire(self, flight: _Flight) -> None:
        """The delivery timeout: tell the handles what is known."""
        timeout_ms = self._carrier.settings.delivery_timeout_ms
        why = f": {flight.cause}" if flight.cause is not None else ""
        rows = flight.draft.rows
        if flight.attempted:
            flight.draft.fail(
                OutcomeUnknown(
                    f"{rows} records may or may not be accepted: no answer within {timeout_ms:,} "
                    f"ms{why}. They are still being tried"
                )
            )
            self._carrier.desk.told(flight.draft)
        else:
            error = Unavailable(
                f"{rows} records were not accepted within {timeout_ms:,} ms and are dropped{why}"
            )
            self._drop(flight, error)

    def _drop(self, flight: _Flight, error: BaseException) -> None:
        """Leave out a draft that was never attempted; the next one gets its sequence."""
        place = self._flights.index(flight)
        self._flights.remove(flight)
        self._fail(flight, error)
        if self._carrier.stops_at_loss:
            self._break_off(place, error)
        self._append_soon()

    def _break_off(self, place: int, error: BaseException) -> None:
        """Leave out everything from this place on: none of it was attempted either."""
        if self._broken is None:
            self._broken = Unavailable(
                "not accepted, and dropped: records before these were dropped. Open the producer "
                f"again and go on after what was accepted. {error}"
            )
            self._broken.__cause__ = error
        behind = [self._flights.pop() for _ in range(len(self._flights) - place)]
        for flight in reversed(behind):
            self._fail(flight, self._broken)
        self._carrier.desk.break_off(error)

    def stop(self, error: HeadwaterError) -> None:
        """Fail everything, and whatever comes later."""
        self._stopped = self._stopped or error
        if self._appending is not None and self._appending is not asyncio.current_task():
            self._appending.cancel()
        while self._flights:
            self._fail(self._flights.popleft(), error)

    async def end(self) -> None:
        """Let go of what may still be under way."""
        appending = self._appending
        self.stop(Unavailable("the producer was closed"))
        if appending is not None:
            await asyncio.wait([appending])

    def _fail(self, flight: _Flight, error: BaseException) -> None:
        self._let_go(flight)
        flight.draft.fail(error)
        self._carrier.desk.told(flight.draft)
        self._carrier.desk.release(flight.draft)

    def _let_go(self, flight: _Flight) -> None:
        if flight.expiry is not None:
            flight.expiry.cancel()
        if flight.task is not None and flight.task is not asyncio.current_task():
            flight.task.cancel()
        flight.batch = None
