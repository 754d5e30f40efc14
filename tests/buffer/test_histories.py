"""Histories of queues under every fault: a sample, and proof that they can fail.

Each planted bug is a mistake somebody would make, or one that was made. A history that does not
notice it proves nothing about the code that is right.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.native import appender
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.chunk_log import ChunkLog, CollectorRecord, StoredChunk
from headwater.buffer.queue.native.collector import NativeCollector, RetentionPass
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.orphans import OrphanPass
from headwater.buffer.queue.native.producers import SilencePass
from headwater.buffer.queue.native.tail import QueueTail
from headwater.buffer.queue.retention import RetentionRule
from headwater.core import limits, runtime
from headwater.core.errors import OutcomeUnknown
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from tests.planted import NOTICED, expect_noticed
from tests.torture.buffer_scenarios import (
    SCENARIOS,
    queue_clocks_history,
    queue_history,
    queue_outages_history,
)
from tests.torture.buffer_world import Parts

HISTORIES_TO_CATCH_A_BUG = 300
FIRST_SEEDS = {
    "lease-by-the-monotonic-clock": 209,
    "lease-by-the-wall-clock": 68,
    "floor-not-read-after-a-write": 46,
    "read-past-an-open-chunk": 130,
    "retention-by-its-own-clock": 613,
    "sweep-deletes-batches": 46,
    "mark-dropped-too-early": 30,
    "time-counted-twice": 145,
}
"""Where not to begin at 0: most histories are blind to the bug, or it shows as one without end."""
CAUGHT = (*NOTICED, LookupError)


async def no_marker(self: OrphanPass, to: str) -> int:
    """Age alone: what nobody refers to is deleted, and nobody is told."""
    return (await self._chunks.last()).chunk.number


class BlindAppender(NativeAppender):
    """Appends again after a conflict or an unknown outcome, without asking what became of it."""

    async def _settle(self, doubt: Any, todo: Any) -> bool:
        await self._tail.find()
        return True


class UselessAppender(NativeAppender):
    """Never says anything wrong, and never anything of use."""

    async def append(self, batches: Any) -> Any:
        await super().append(batches)
        raise OutcomeUnknown("who knows")


class BluntAppender(NativeAppender):
    """Lets an error that says that nothing changed take the place of what is not known."""

    async def append(self, batches: Any) -> Any:
        return await self._append(batches)


class UnfencedAppender(NativeAppender):
    """Does not look whether somebody opened under its id."""

    async def _check_fence(self, last: Chunk) -> None:
        return


class LowAppender(NativeAppender):
    """Appends what the collector's floor has passed."""

    def _refuse_below(self, floor: str, todo: Any) -> None:
        return


async def says_nothing(tail: QueueTail, **_: Any) -> Chunk:
    """An opening that is in the record and not in the queue."""
    return await tail.find()


async def never_dead(self: QueueTail, number: int) -> bool:
    """Believes that whatever could be written counts."""
    return False


def on_an_open_one(self: Chunk, *args: Any, **options: Any) -> Chunk:
    """Creates a chunk of its own on top of one that others still add to."""
    base = self if self.closed or options.get("owner") in self.owners else self.next_chunk()
    return _written(base, *args, **options)


_written = Chunk.written


async def forgets_to_fold(self: RetentionPass, expired: Any) -> None:
    """Deletes chunks before the marks know of them."""


def past_by_its_own_clock(self: RetentionRule, appended_ms: int, end_lsn: int) -> bool:
    """Believes its own clock, and not the store's."""
    retention_ms = self._retention.retention_ms
    return retention_ms is not None and appended_ms <= runtime.wall_ms() - retention_ms


def passes_pending(self: RetentionPass, held: StoredChunk, since_ms: int, queue: Any) -> int:
    """Takes the batches of a chunk for acknowledged when the first of them is."""
    chunk = held.chunk
    return len(chunk.entries) if chunk.first_sequence < self._rule._acked_sequence else 0


def over_when_silent(self: SilencePass, one: Any) -> bool:
    """Drops the mark of whoever was silent, without telling it to stop."""
    stands_at = max(one.anchor, one.mark.chunk if one.mark else 0)
    return bool(stands_at < self._floor and one.silent_looks > 0)


class ThoroughCollector(NativeCollector):
    """Takes with a leftover chunk the batches that it names."""

    async def _sweep(self, floor: int, report: Collected) -> None:
        async for meta in self._store.list(f"{self._chunks.prefix}/chunks"):
            number = self._chunks.number_of(meta.key)
            if number is not None and number < floor:
                held = await self._chunks.load(number)
                for entry in held.chunk.entries if held else ():
                    await self._store.delete(self._chunks.batch_key(entry.batch_id))
        await super()._sweep(floor, report)


class BelievingCollector(NativeCollector):
    """Takes a floor for settled when the store wrote it long ago, by the store's clock."""

    async def _begin(self, chunk_floor: int) -> tuple[CollectorRecord, int]:
        scanned, now_ms = await super()._begin(chunk_floor)
        raised_ms = (await self._store.head(self._chunks.register.key)).modified_ms
        if now_ms - raised_ms > 1000 * (limits.FLOOR_SETTLE_S + 1):
            scanned = msgspec.structs.replace(scanned, settled_chunk=chunk_floor)
        return scanned, now_ms


def counts_twice(self: SettlingClock, stored: SettlingFloor) -> SettlingFloor:
    """Adds what it saw pass to what others have counted meanwhile."""
    if stored.floor != self._seen.floor:
        return stored
    passed_ms = int((runtime.monotonic_s() - self._seen_s) * 1000)
    return SettlingFloor(stored.floor, stored.settling_ms + passed_ms)


def leased_by_the_wall_clock(self: Lease, seconds: float) -> bool:
    """Believes its wall clock alone."""
    return (runtime.wall_ms() - self.at_wall_ms) / 1000 < seconds


class UnfencedTaker(NativeConsumer):
    """Acknowledges whoever the owner is."""

    def _owned(self, now: Any) -> Any:
        return now


class UncheckedTaker(NativeConsumer):
    """Hands out what it read without looking whether it is still the owner."""

    async def check_fence(self) -> None:
        return


async def reads_past_an_open_one(self: ChunkLog, first: int, count: int) -> list[StoredChunk]:
    """Takes what was read together for what was there together."""
    found: list[StoredChunk] = []
    for number in range(first, first + count):
        held = await self.load(number)
        if held is None:
            break
        found.append(held)
    return found


def _replacing(owner: Any, name: str, instead: Any) -> Parts:
    return Parts(replaced=((owner, name, instead),))


PLANTED = {
    "age-only-gc": _replacing(OrphanPass, "_raise_batch_floor", no_marker),
    "blind-re-append": Parts(appender=BlindAppender),
    "never-an-answer": Parts(appender=UselessAppender),
    "openings-not-checked": Parts(appender=UnfencedAppender),
    "opening-not-written": _replacing(appender, "write_note", says_nothing),
    "batch-floor-not-checked": Parts(appender=LowAppender),
    "floor-not-read-after-a-write": _replacing(QueueTail, "is_dead", never_dead),
    "created-on-an-open-chunk": _replacing(Chunk, "written", on_an_open_one),
    "marks-not-folded": _replacing(RetentionPass, "_fold", forgets_to_fold),
    "retention-by-its-own-clock": _replacing(RetentionRule, "is_past", past_by_its_own_clock),
    "floor-passes-what-is-pending": _replacing(RetentionPass, "_passed", passes_pending),
    "mark-dropped-too-early": _replacing(SilencePass, "_is_over", over_when_silent),
    "sweep-deletes-batches": Parts(collector=ThoroughCollector),
    "dequeue-unfenced": Parts(queue_consumer=UnfencedTaker),
    "read-unfenced": Parts(queue_consumer=UncheckedTaker),
    "read-past-an-open-chunk": _replacing(ChunkLog, "run", reads_past_an_open_one),
}


CLOCKS = {
    "settled-by-the-stores-clock": Parts(collector=BelievingCollector),
    "time-counted-twice": _replacing(SettlingClock, "count", counts_twice),
    "lease-by-the-wall-clock": _replacing(Lease, "is_within", leased_by_the_wall_clock),
    # The monotonic clock stands still while the machine sleeps.
    "lease-by-the-monotonic-clock": _replacing(runtime, "boottime_s", runtime.monotonic_s),
}
"""Mistakes that show only where clocks are set."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 0)
    expect_noticed(
        lambda seed: queue_history(seed, PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=first,
        by=CAUGHT,
    )


@pytest.mark.planted
@pytest.mark.parametrize("bug", CLOCKS)
def test_a_bug_that_a_set_clock_shows_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: queue_clocks_history(seed, CLOCKS[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=FIRST_SEEDS.get(bug, 0),
        by=CAUGHT,
    )


@pytest.mark.planted
def test_a_look_that_hides_the_unknown_is_caught() -> None:
    expect_noticed(
        lambda seed: queue_outages_history(seed, Parts(appender=BluntAppender)),
        within=HISTORIES_TO_CATCH_A_BUG,
        by=CAUGHT,
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert queue_history(5) == queue_history(5)
    assert queue_history(5) != queue_history(6)
