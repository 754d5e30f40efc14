"""Histories of whole streams under every fault: a sample, and proof that they can fail.

Each planted bug is a mistake somebody would make in a producer, a consumer or a follower, above a
queue that is right. What a queue could get wrong is planted in its own histories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headwater.buffer import collection, truncation
from headwater.buffer.consumer import ConsumedBatch, Consumer, Follower, UnreadableBatch
from headwater.buffer.consumer.delivery import Delivery
from headwater.buffer.consumer.progress import FollowerPosition
from headwater.buffer.producer import Handle, Producer
from headwater.buffer.producer.sender import PartitionSender
from headwater.buffer.queue.contract import NewBatch, QueueState
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk_log import CollectorRecord
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.queue.retention import QueuedBatch, Retention, RetentionRule
from headwater.buffer.queue.v1.appender import V1Appender
from headwater.buffer.stream import Stream
from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, Unavailable
from tests.planted import expect_noticed
from tests.torture.stack_scenarios import (
    SCENARIOS,
    clocks_history,
    native_history,
    outages_history,
    truncating_history,
    v1_history,
)
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 100
FIRST_TRUNCATING = {"floor-too-far": 100}
FIRST_NATIVE = {
    "accepted-past-a-hole": 18,
    "ack-before-dequeue": 5,
    "blind-re-append": 13,
    "commit-before-delivery": 21,
    "resumed-past-what-landed": 110,
}
FIRST_V1 = {"commit-before-delivery": 23}
"""Where not to begin at 0, since most histories are blind to the bug: only to be done sooner."""


async def acknowledges_first(self: Consumer, sequence: int) -> None:
    """Moves the frontier, and then asks the queue to dequeue."""
    self._advance(sequence)
    self._frontier.settle()
    await self._call(lambda: self._queue_consumer.dequeue(sequence))


async def moves_first(self: Delivery) -> ConsumedBatch | None:
    """Moves the cursor, and then fetches."""
    if not len(self._ahead):
        return None
    descriptor = self._ahead.pop()
    self.cursor = descriptor.sequence
    return await self.handle.fetch(descriptor)


async def looks_at_no_fence(self: Consumer) -> None:
    """Hands out what it has read ahead, whoever the owner is."""


async def closes_at_once(self: Consumer) -> None:
    """Leaves the last acknowledgements to the next owner."""


async def passes_over(self: Delivery, error: HeadwaterError) -> ConsumedBatch:
    """Delivers nothing in the place of a batch that cannot be read."""
    assert isinstance(error, UnreadableBatch)
    name, partition = self._stream.name, self._partition
    return ConsumedBatch(error.descriptor, stream=name, partition=partition)


async def commits_first(self: Follower) -> ConsumedBatch | None:
    """Keeps as processed what it is about to hand over."""
    batch = await _next_batch(self)
    if batch is not None:
        done = FollowerPosition(batch.sequence + 1, runtime.wall_ms())
        await self._register.update(lambda _: done)
    return batch


_next_batch = Follower.next_batch


async def appends_blindly(self: NativeAppender, doubt: Any, todo: Any) -> bool:
    """Appends again after an unknown outcome, without asking what became of it."""
    await self._tail.find()
    return True


async def appends_blindly_v1(self: V1Appender, base: Any) -> None:
    """The same on the published format."""
    self._unsettled.clear()


def drops_what_was_tried(self: PartitionSender, batch: Any) -> None:
    """Takes no answer for a no."""
    self._drop(batch, Unavailable("no answer"))


def goes_on(self: PartitionSender, index: int, error: BaseException) -> None:
    """Accepts what comes after records that were dropped."""


def marks_the_latest(self: PartitionSender, batch: Any, index: int) -> NewBatch:
    """Lets a successor resume from what is yet to land."""
    entry, latest = _attempt(self, batch, index), self._batches[-1]
    if not latest.ends_call:
        return entry
    return msgspec.structs.replace(entry, metadata=latest.last_metadata)


_attempt = PartitionSender._attempt


async def keeps_then_waits(self: Producer, *args: Any, **options: Any) -> Handle:
    """May be cancelled after it has kept the call."""
    handle = await _produce(self, *args, **options)
    await runtime.sleep(0.1)
    return handle


_produce = Producer.produce


def counts_from_its_batch(self: Handle) -> list[Any]:
    """Tells every call the LSNs of the first one in its batch."""
    return [
        part._replace(first_lsn=part.first_lsn - start, last_lsn=part.last_lsn - start)
        for part, (_, start, _) in zip(_accepted(self), self._ranges(), strict=False)
    ]


_accepted = Handle.accepted


async def settles_by_the_stores_clock(
    self: NativeCollector, chunk_floor: int
) -> tuple[CollectorRecord, int]:
    """Takes a floor for settled when the store wrote it long ago, by the store's clock."""
    scanned, now_ms = await _begin(self, chunk_floor)
    raised_ms = (await self._store.head(self._chunks.register.key)).modified_ms
    if now_ms - raised_ms > 1000 * (limits.FLOOR_SETTLE_S + 1):
        scanned = msgspec.structs.replace(scanned, settled_chunk=chunk_floor)
    return scanned, now_ms


_begin = NativeCollector._begin


async def gives_up_the_batch_with_the_offset(
    stream: Stream, partition: int, lsn: int, state: QueueState
) -> tuple[int, int]:
    """Rounds up: the log begins after the batch with the record."""
    sequence, first_lsn = await _batch_at(stream, partition, lsn, state)
    found = await stream.queue_reader(partition).after(sequence - 1, 1) if first_lsn < lsn else []
    return (sequence + 1, found[0].last_lsn + 1) if found else (sequence, first_lsn)


_batch_at = truncation._batch_at


def releases_the_first_that_is_kept(self: RetentionRule, batch: QueuedBatch) -> bool:
    """Lets the batch go with which the log is to begin."""
    before = self._retention.before_sequence
    return _releases(self, batch) or 0 < before == batch.sequence


_releases = RetentionRule.releases


async def forgets_the_required_group(stream: Stream, partition: int) -> Retention:
    """Reads the settings alone."""
    return msgspec.structs.replace(await _retention_of(stream, partition), below_lsn=None)


async def reads_the_end(stream: Stream, partition: int, group: str) -> int:
    """Takes a group for one that has processed everything."""
    return (await stream.queue_reader(partition).state()).next_lsn


_retention_of = collection.retention_of


TRUNCATING: dict[str, Replacement] = {
    "truncated-with-its-batch": (truncation, "_batch_at", gives_up_the_batch_with_the_offset),
    "floor-too-far": (RetentionRule, "releases", releases_the_first_that_is_kept),
}
EITHER: dict[str, Replacement] = {
    "ack-before-dequeue": (Consumer, "_dequeue", acknowledges_first),
    "cursor-before-fetch": (Delivery, "next_batch", moves_first),
    "read-unfenced": (Consumer, "_check_fence", looks_at_no_fence),
    "closed-unflushed": (Consumer, "_flush", closes_at_once),
    "bad-batch-passed-over": (Delivery, "_bad", passes_over),
    "commit-before-delivery": (Follower, "next_batch", commits_first),
    "unknown-is-a-failure": (PartitionSender, "_expire", drops_what_was_tried),
    "cancelled-call-kept": (Producer, "produce", keeps_then_waits),
    "lsn-of-the-batch": (Handle, "accepted", counts_from_its_batch),
}
NATIVE: dict[str, Replacement] = EITHER | {
    "required-group-forgotten": (collection, "retention_of", forgets_the_required_group),
    "required-group-not-read": (collection, "_position_of", reads_the_end),
    "blind-re-append": (NativeAppender, "_settle", appends_blindly),
    "accepted-past-a-hole": (PartitionSender, "_drop_from", goes_on),
    "resumed-past-what-landed": (PartitionSender, "_attempt", marks_the_latest),
}
V1: dict[str, Replacement] = EITHER | {
    "blind-re-append": (V1Appender, "_settle", appends_blindly_v1),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", NATIVE)
def test_a_bug_planted_above_a_native_queue_is_caught(bug: str) -> None:
    _expect_caught(native_history, NATIVE[bug], first=FIRST_NATIVE.get(bug, 0))


@pytest.mark.planted
@pytest.mark.parametrize("bug", V1)
def test_a_bug_planted_above_a_v1_queue_is_caught(bug: str) -> None:
    _expect_caught(v1_history, V1[bug], first=FIRST_V1.get(bug, 0))


@pytest.mark.planted
@pytest.mark.parametrize("bug", TRUNCATING)
def test_a_bug_planted_in_truncation_is_caught(bug: str) -> None:
    _expect_caught(truncating_history, TRUNCATING[bug], first=FIRST_TRUNCATING.get(bug, 0))


@pytest.mark.planted
def test_a_floor_that_settles_by_the_stores_clock_is_caught() -> None:
    bug = (NativeCollector, "_begin", settles_by_the_stores_clock)
    _expect_caught(clocks_history, bug, first=0)


@pytest.mark.planted
def test_an_outage_that_makes_no_answer_a_no_is_caught() -> None:
    _expect_caught(outages_history, NATIVE["unknown-is-a-failure"], first=0)


def test_the_same_seed_gives_the_same_history() -> None:
    assert native_history(5) == native_history(5)
    assert native_history(5) != native_history(6)


def _expect_caught(history: Callable[..., str], bug: Replacement, *, first: int) -> None:
    expect_noticed(lambda seed: history(seed, bug), within=HISTORIES_TO_CATCH_A_BUG, first=first)
