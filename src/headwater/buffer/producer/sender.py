"""The sender: uploads sealed batches and appends them to the queues of their partitions.

For each partition it encodes and uploads several batches at a time, and appends them in the order
of sealing: one append at a time, of all uploaded batches up to the first that is not. The result
goes to the batch, where its handles read it.

Always holds:

- a producer sequence belongs to the first batch that was part of an append under it: that append
  may have landed, whatever the answer was, unless the queue says that it did not and will not
  (`OlderSchema`). Such a batch is *attempted*. It stays at the front of its partition until it has
  landed, and nothing overtakes it. When its time is up, its handles get `OutcomeUnknown`, and it is
  still tried, unless the queue can no longer show it (`Unsettled`): then the others continue
  without it;
- a batch that was never attempted can be dropped, and leaves no gap;
- a producer with a `producer_id`, or with `on_failure="stop"`, accepts nothing after a dropped
  batch: a successor that resumes after the last accepted batch would skip the dropped one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final

from headwater.buffer.producer.accumulator import RecordAccumulator, forked
from headwater.buffer.producer.config import ProducerMetrics, Settings
from headwater.buffer.producer.record_batch import OpenBatch, ProducerBatch
from headwater.buffer.producer.record_columns import defaults_for
from headwater.buffer.producer.serializer import RecordSerializer
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
"""Batches in one append, not counting those that were part of an earlier one."""
INLINE_ENCODE_BYTES: Final = 64 * limits.KIB  # larger batches are encoded in a thread
PARTITIONS_AT_ONCE: Final = 32  # opened, or closed, concurrently
CLOSE_TIMEOUT_S: Final = 5.0  # for the appenders of all partitions together
FAILURES_KEPT: Final = 64
"""Failed batches whose errors flush() and close() raise, if no handle has raised them."""
# Only the delivery timeout ends the retries, and for what was attempted not even that.
_PATIENT: Final = RetryPolicy(attempts=1 << 62, deadline_s=float("inf"))


class Sender:
    """Sends the batches of one producer. For the event loop it was made on."""

    def __init__(
        self,
        settings: Settings,
        accumulator: RecordAccumulator,
        serializer: RecordSerializer,
        opened: Sequence[tuple[Appender, ProducerState]],
        producer_id: str,
        *,
        resumable: bool,
    ) -> None:
        """`resumable`: a successor under the id continues after the last accepted batch."""
        self.settings = settings
        self.accumulator = accumulator
        self.serializer = serializer
        self.producer_id = producer_id
        self.metrics = ProducerMetrics([appender.counters for appender, _ in opened])
        # An id that is new for each producer would be a new series for each.
        name = producer_id if resumable else ""
        self.metrics.register(stream=serializer.stream.name, producer=name)
        self.is_closed = False
        self.is_v1 = serializer.stream.config.format == "v1"
        self.drops_after_loss = (resumable and not self.is_v1) or settings.on_failure == "stop"
        self.defaults = defaults_for(serializer.stream.name)
        self.upload_limit = asyncio.Semaphore(settings.max_in_flight)
        """Uploads at once, of all partitions together."""
        self.schema_floor = 0
        """Batches that were fitted to an older version of the schema are not appended any more."""
        self.partitions = [
            PartitionSender(self, partition, appender, resumed)
            for partition, (appender, resumed) in enumerate(opened)
        ]
        self._resumable = resumable
        self.loop = asyncio.get_running_loop()
        self._closing = asyncio.Lock()
        self._failures: deque[ProducerBatch] = deque(maxlen=FAILURES_KEPT)
        self._in_doubt: dict[ProducerBatch, None] = {}
        """Reported as unknown, and still being tried."""

    def wakeup(self) -> None:
        """Set timers for batches that were begun, and send those that were sealed."""
        drained = self.accumulator.drain()
        now_s, linger_s = runtime.monotonic_s(), self.settings.linger_ms / 1000
        for batch in drained.begun:
            if not batch.is_sealed:
                wait_s = max(0.0, batch.first_s + linger_s - now_s)
                batch.timer = self.loop.call_later(wait_s, self._seal, batch)
        for unrouted in drained.routed:
            unrouted.cancel_timer()
            unrouted.wake()
        for full in drained.sealed:
            full.cancel_timer()
            self.partitions[full.partition].send(full)
        self._failures.extend(drained.lost)

    def _seal(self, batch: OpenBatch) -> None:
        self.accumulator.seal(batch)
        self.wakeup()

    async def flush(self) -> None:
        """Send everything that was appended, and wait until all of it is accepted.

        Raises the first error of what it waited for, or of earlier batches whose error was not
        raised yet; and, each time, while the outcome of something is unknown.
        """
        if self.accumulator.is_forked:
            raise forked()
        self.seal_all()
        waited = list(self.accumulator.batches.incomplete)
        for batch in waited:
            await batch.wait()
        unreported = [batch for batch in self._failures if not batch.is_reported]
        self._failures.clear()
        candidates = dict.fromkeys([*waited, *self._in_doubt, *unreported])
        # What was in doubt may have landed since.
        failed = [one for one in candidates if one.error is not None and one.placed is None]
        if not failed:
            return
        for batch in failed:
            batch.is_reported = True
        # What may have landed must not be taken for dropped because something else was.
        errors = [batch.error for batch in failed if batch.error is not None]
        error = next((one for one in errors if isinstance(one, OutcomeUnknown)), errors[0])
        if len(failed) > 1:
            rows = sum(batch.rows for batch in failed)
            error.add_note(f"{len(failed)} batches with {rows} records failed; this is one of them")
        raise error.with_traceback(None)

    async def close(self) -> None:
        """Take nothing more, flush, and close the appenders; raises what `flush` raises."""
        if self.accumulator.is_forked:
            return
        self.accumulator.refuse(Refused("the producer is closed: open another one"))
        async with self._closing:
            if self.is_closed:
                return
            error = None
            try:
                await self.flush()
            except HeadwaterError as failed:
                error = failed
            in_doubt = sum(batch.rows for batch in self._in_doubt)
            if in_doubt and error is not None:
                error.add_note(f"{in_doubt} records in doubt are not tried any more: it is closed")
            await asyncio.gather(*(one.end() for one in self.partitions))
            appenders = [one.appender for one in self.partitions]
            await close_appenders(appenders, for_good=not self._resumable)
            self.is_closed = True
        if error is not None:
            raise error

    def seal_all(self) -> None:
        self.accumulator.seal_all()
        self.wakeup()

    def stop(self, error: HeadwaterError) -> None:
        """Fail everything: nothing of this producer will be accepted any more."""
        self.accumulator.refuse(error)
        self.seal_all()
        for partition in self.partitions:
            partition.stop(error)

    def refuse_after_loss(self, cause: BaseException) -> None:
        """Take nothing more; the batches before the loss are still sent."""
        again = f"under its id, {self.producer_id!r}, and continue from `resumed`"
        cure = again if self._resumable else "and continue after what was accepted"
        why = f"the producer stopped where records were dropped: open it again {cure}. {cause}"
        self.accumulator.refuse(Refused(why))
        self.seal_all()

    def report(self, batch: ProducerBatch) -> None:
        """The batch has a result, or an unknown outcome."""
        self.accumulator.batches.incomplete.pop(batch, None)
        if batch.error is not None:
            self._failures.append(batch)
            if isinstance(batch.error, OutcomeUnknown):
                self._in_doubt[batch] = None

    def release(self, batch: ProducerBatch) -> None:
        """The batch has a result, and is not tried any more."""
        batch.cancel()
        self.report(batch)
        if batch in self._in_doubt:
            del self._in_doubt[batch]
            # The error that was raised says that it is still being tried: that is over.
            batch.is_reported = batch.placed is not None
        self.accumulator.release(batch)


class PartitionSender:
    """Appends the batches of one partition to its queue."""

    def __init__(
        self, sender: Sender, partition: int, appender: Appender, resumed: ProducerState
    ) -> None:
        self.partition = partition
        self.resumed = resumed
        self.appender = appender
        self._sender = sender
        self._batches: deque[ProducerBatch] = deque()
        self._next_sequence = resumed.producer_sequence + 1
        """The producer sequence of the first batch."""
        self._resume_metadata = self._landed_metadata = resumed.metadata
        self._appending: asyncio.Task[None] | None = None
        self._refusal: HeadwaterError | None = None
        """Why no further batch is taken; after a loss, those before it are still sent."""

    def send(self, batch: ProducerBatch) -> None:
        if self._refusal is not None:
            self._fail(batch, self._refusal)
            return
        self._batches.append(batch)
        self._start_upload(batch)
        timeout_s = self._sender.settings.delivery_timeout_ms / 1000
        left_s = max(0.0, batch.first_s + timeout_s - runtime.monotonic_s())
        batch.timer = self._sender.loop.call_later(left_s, self._expire, batch)

    # Encoding and uploading

    def _start_upload(self, batch: ProducerBatch, above: str | None = None) -> None:
        name = f"upload-{self.partition}"
        batch.upload = runtime.spawn(self._prepare(batch, above), name=name)

    async def _prepare(self, batch: ProducerBatch, above: str | None) -> None:
        """Encode and upload, as often as it takes, until the batch can be appended."""
        batch.batch_id = runtime.new_ulid(above=above)
        pauses = _PATIENT.start()
        while True:
            try:
                async with self._sender.upload_limit:
                    await self._upload(batch)
                break
            except Exception as error:
                # An upload that may have landed is repeated without harm: same name, same bytes.
                # If its sequence is taken, nothing can be appended before it: it has to succeed.
                is_transient = isinstance(error, Unavailable | OutcomeUnknown)
                if not is_transient and not batch.is_attempted:
                    self._drop(batch, error)
                    return
                batch.cause = error
            await pauses.pause(throttled=isinstance(batch.cause, Throttled))
        batch.is_uploaded = True
        self._append_soon()

    async def _upload(self, batch: ProducerBatch) -> None:
        is_small = batch.size_bytes <= INLINE_ENCODE_BYTES
        data = self._encode(batch) if is_small else await runtime.run_blocking(self._encode, batch)
        is_inline = len(data) <= self.appender.inline_max_bytes
        if not is_inline:
            await self.appender.upload(batch.batch_id, data)
        assert batch.content is not None
        batch.encoded_bytes = len(data)
        batch.inline = bytes(data) if is_inline else None
        if self._sender.is_v1:
            batch.packed_calls = pack_calls(batch.content.calls)

    def _encode(self, batch: ProducerBatch) -> EncodedBytes:
        sender = self._sender
        if batch.content is None:
            is_older = 0 < batch.schema_version < sender.schema_floor
            deferred = self.appender.takes_deferred and not is_older
            content = batch.build(sender.defaults, deferred=deferred)
            if is_older:
                stream = sender.serializer.stream
                content = content._replace(records=stream.refit(content.records))
                batch.schema_version = stream.schema_version
            batch.content = content
            batch.times = content.times()
        content = batch.content._replace(batch_id=batch.batch_id)
        return self.appender.encode(content, sender.settings.compression)

    # Appending

    def _append_soon(self) -> None:
        if self._appending is None and self._group():
            self._appending = runtime.spawn(self._append(), name=f"append-{self.partition}")

    def _group(self) -> list[ProducerBatch]:
        """The batches of the next append: all attempted ones, and those ready behind them."""
        group: list[ProducerBatch] = []
        for batch in self._batches:
            if not batch.is_uploaded:
                # An attempted one is being uploaded again, under a higher id. Until then nothing is
                # appended: an append repeats all attempted batches, in the same order.
                return [] if batch.is_attempted else group
            if len(group) >= GROUP_MAX and not batch.is_attempted:
                break
            group.append(batch)
        return group

    async def _append(self) -> None:
        """Append group after group, for as long as there is one."""
        sender, pauses = self._sender, _PATIENT.start()
        try:
            while group := self._group():
                entries = [self._attempt(batch, index) for index, batch in enumerate(group)]
                try:
                    placed = await self.appender.append(entries)
                except BelowFloor as error:
                    self._upload_again(group, error)
                except Unsettled as error:
                    self._leave_out(group, error)
                except OlderSchema as error:
                    await self._fit_again(group, entries, error)
                except (Fenced, Damaged, Bug, NotFound) as error:
                    sender.stop(await sender.serializer.explain(error))
                    return
                except (Unavailable, OutcomeUnknown, Refused) as error:
                    # What was refused may be allowed again: nothing can be left out before that.
                    for batch in group:
                        batch.cause = error
                    await pauses.pause(throttled=isinstance(error, Throttled))
                else:
                    self._land(group, placed)
                    pauses = _PATIENT.start()
        except Exception as error:
            bug = Bug(f"partition {self.partition}: appending broke: {error!r}")
            bug.__cause__ = error
            sender.stop(bug)
        finally:
            # No batch became ready since the last look at the group: there was no await.
            self._appending = None

    def _attempt(self, batch: ProducerBatch, index: int) -> NewBatch:
        """The entry of a batch, which is attempted from here on: it keeps its sequence."""
        if not batch.is_attempted:
            batch.is_attempted = True
            batch.producer_sequence = self._next_sequence + index
            if batch.ends_call:
                self._resume_metadata = batch.last_metadata
            batch.resume_metadata = self._resume_metadata
        return batch.entry()

    def _land(self, group: list[ProducerBatch], placed: list[AppendedBatch]) -> None:
        metrics, now_s = self._sender.metrics, runtime.monotonic_s()
        for batch, place in zip(group, placed, strict=True):
            self._batches.popleft()
            self._next_sequence += 1
            self._landed_metadata = batch.resume_metadata
            metrics.batches_flushed += 1
            metrics.entries_flushed += batch.rows
            metrics.bytes_flushed += batch.size_bytes
            metrics.bytes_written += batch.encoded_bytes
            metrics.flush_duration_seconds.observe(now_s - batch.sealed_s)
            batch.accept(place)
            self._sender.release(batch)

    def _upload_again(self, group: list[ProducerBatch], refusal: BelowFloor) -> None:
        """Give batches whose id the collector has passed another one, which their bytes contain."""
        below = [batch for batch in group if batch.batch_id <= refusal.floor]
        if not below:
            raise Bug(f"none of {len(group)} batches is below the floor that refused them")
        for batch in below:
            batch.is_uploaded = False
            batch.cause = refusal
            self._start_upload(batch, refusal.floor)

    def _leave_out(self, group: list[ProducerBatch], error: Unsettled) -> None:
        """Continue without attempted batches: they have landed, or never will."""
        unsettled = [batch for batch in group if batch.batch_id in error.batch_ids]
        if not unsettled:
            raise Bug(f"none of {len(group)} batches is unsettled")
        for batch in unsettled:
            self._batches.remove(batch)
            self._next_sequence += 1
            unknown = OutcomeUnknown(f"{batch.rows} records may be accepted or not: {error}")
            self._fail(batch, unknown)

    async def _fit_again(
        self, group: list[ProducerBatch], entries: list[NewBatch], refusal: OlderSchema
    ) -> None:
        """Fit what was refused to the schema that has replaced its own.

        What landed is accepted. Nothing else did, nor will: it is as if it had not been attempted,
        and what does not fit any more is dropped.
        """
        landed = [one for one in entries if one.producer_sequence <= refusal.landed]
        if landed:
            self._land(group[: len(landed)], await self.appender.append(landed))
        self._resume_metadata = self._landed_metadata
        sender = self._sender
        sender.schema_floor = max(sender.schema_floor, refusal.floor)
        older: list[ProducerBatch] = []
        for batch in self._batches:
            batch.is_attempted = False
            if batch.is_uploaded and 0 < batch.schema_version < sender.schema_floor:
                batch.is_uploaded, batch.content, batch.cause = False, None, refusal
                older.append(batch)
        try:
            await sender.serializer.learn_schema(sender.schema_floor)
        except HeadwaterError as error:
            sender.stop(await sender.serializer.explain(error))
            return
        for batch in older:
            if batch in self._batches:
                self._start_upload(batch, batch.batch_id)

    # Giving up

    def _expire(self, batch: ProducerBatch) -> None:
        """The delivery timeout."""
        timeout_ms = self._sender.settings.delivery_timeout_ms
        why = f": {batch.cause}" if batch.cause is not None else ""
        if batch.is_attempted:
            unknown = OutcomeUnknown(
                f"{batch.rows} records may or may not be accepted: no answer within "
                f"{timeout_ms:,} ms{why}. They are still being tried"
            )
            batch.fail(unknown)
            self._sender.report(batch)
        else:
            late = (
                f"{batch.rows} records were not accepted within {timeout_ms:,} ms and are dropped"
            )
            self._drop(batch, Unavailable(f"{late}{why}"))

    def _drop(self, batch: ProducerBatch, error: BaseException) -> None:
        """Leave out a batch that was never attempted; the next one gets its sequence."""
        index = self._batches.index(batch)
        self._batches.remove(batch)
        self._fail(batch, error)
        if self._sender.drops_after_loss:
            self._drop_from(index, error)
        self._append_soon()

    def _drop_from(self, index: int, error: BaseException) -> None:
        """Drop the batches from this index on: none of them was attempted either."""
        if self._refusal is None:
            self._refusal = Unavailable(
                "not accepted, and dropped: records before these were dropped. Open the producer "
                f"again and continue after what was accepted. {error}"
            )
            self._refusal.__cause__ = error
        behind = [self._batches.pop() for _ in range(len(self._batches) - index)]
        for batch in reversed(behind):
            self._fail(batch, self._refusal)
        self._sender.refuse_after_loss(error)

    def stop(self, error: HeadwaterError) -> None:
        """Fail every batch, also those that come later."""
        self._refusal = self._refusal or error
        if self._appending is not None and self._appending is not asyncio.current_task():
            self._appending.cancel()
        while self._batches:
            self._fail(self._batches.popleft(), error)

    async def end(self) -> None:
        """Stop, and wait for the append that is under way."""
        appending = self._appending
        self.stop(Unavailable("the producer was closed"))
        if appending is not None:
            await asyncio.wait([appending])

    def _fail(self, batch: ProducerBatch, error: BaseException) -> None:
        batch.fail(error)
        self._sender.release(batch)


async def close_appenders(appenders: Sequence[Appender], *, for_good: bool) -> None:
    """Close them all, within a time for all.

    It saves a successor a search, or the collector a wait; correctness never needs it.
    """
    until_s = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_S

    async def one(appender: Appender) -> None:
        # Each is at least begun, for what closing does before its first request.
        with contextlib.suppress(HeadwaterError, TimeoutError):
            async with asyncio.timeout_at(until_s):
                await appender.close(for_good=for_good)

    await runtime.gather_each(one, appenders, at_once=PARTITIONS_AT_ONCE)
