"""Histories of the log in object storage: a sample of them, and proof that they can fail.

Each planted bug is a mistake somebody would make. A history that does not notice it proves
nothing about the code that is right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import xxhash

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from headwater.store import LogFloor
from headwater.store.numbered_log import CreateResult
from headwater.tier import TierCache
from headwater.tier.eventlog import compactor
from headwater.tier.eventlog.stored_events import (
    FloorRegister,
    PartitionFloor,
    SnapshotName,
    StoredEvents,
    store_snapshot,
    token_of,
)
from headwater.tier.eventlog.stored_log import PartitionFollower
from headwater.tier.snapshot import Snapshot, dump_all, encode_snapshot
from tests.planted import expect_noticed
from tests.torture.eventlog_scenarios import (
    SCENARIOS,
    clocks_history,
    eventlog_history,
    outages_history,
)
from tests.torture.surroundings import Replacement, replaced

HISTORIES_TO_CATCH_A_BUG = 150
FIRST_SEEDS = {"grace-counted-twice": 24}
"""Where not to begin at 0: what only a set clock shows is seldom seen."""

_after = StoredEvents.floor_after
_obsolete_keys = compactor._obsolete_keys


async def stores_after_the_floor_moved(
    events: StoredEvents, cache: TierCache, through_offset: int
) -> SnapshotName:
    """Names a snapshot that is only being written."""
    place = (events.log_id, events.partition_count, events.partition)
    data = encode_snapshot(Snapshot(*place, through_offset, dump_all(cache)))
    token = runtime.new_token().hex()
    key = events.keys.snapshot(through_offset, token)
    runtime.spawn(events.store.put(key, data), name="snapshot")
    return SnapshotName(token, len(data), xxhash.xxh3_64_hexdigest(data))


async def deletes_before_the_floor_moves(
    events: StoredEvents, cache: TierCache, through_offset: int
) -> SnapshotName:
    """Holds that a snapshot is enough, whether or not anybody is told of it."""
    name = await store_snapshot(events, cache, through_offset)
    for offset in range((await events.floors.read()).floor, through_offset + 1):
        await events.store.delete(events.key(offset))
    return name


async def publishes_again(
    self: StoredEvents, offset: int, token: bytes, unknown: OutcomeUnknown
) -> CreateResult:
    """Takes an event that is not there yet for one that will never be."""
    found = await self.get(offset)
    return CreateResult.TAKEN if found is None else CreateResult.LANDED


def counts_twice(self: SettlingClock, stored: SettlingFloor) -> SettlingFloor:
    """Adds what it saw pass to what others have counted meanwhile."""
    if stored.floor != self._seen.floor:
        return stored
    passed_ms = int((runtime.monotonic_s() - self._seen_s) * 1000)
    return SettlingFloor(stored.floor, stored.settling_ms + passed_ms)


def stood_by_the_wall_clock(self: SettlingClock, stored: SettlingFloor) -> SettlingFloor:
    """Believes its wall clock."""
    since_ms = vars(self).setdefault("since_ms", {}).setdefault(stored.floor, runtime.wall_ms())
    return SettlingFloor(stored.floor, max(stored.settling_ms, runtime.wall_ms() - since_ms))


async def settles_blindly(
    self: StoredEvents, offset: int, token: bytes, unknown: OutcomeUnknown
) -> CreateResult:
    """Lets the error of the look take the place of what is not known."""
    found = await self.get(offset)
    if found is None:
        return CreateResult.UNKNOWN
    return CreateResult.LANDED if token_of(found.data) == token else CreateResult.TAKEN


async def looks_blindly(self: StoredEvents, offset: int) -> LogFloor:
    """The same where the floor is to tell."""
    return await self.floor_after(offset)


async def moves_blindly(self: FloorRegister, floor: int, snapshot: SnapshotName) -> PartitionFloor:
    """Moves the floor to its own snapshot, however long that took."""
    fresh = msgspec.structs.replace(await self.read(), floor=floor, snapshot=snapshot)
    return (await self._register.update(lambda _: fresh)).value


async def judges_by_nothing(self: StoredEvents, offset: int) -> LogFloor:
    """Believes that what it can read or create is alive."""
    return (await _after(self, offset))._replace(counts_from=0)


async def sweeps_what_nobody_names(
    events: StoredEvents, floor: PartitionFloor
) -> AsyncIterator[str]:
    """Deletes every snapshot but the floor's, also one that is to become it."""
    async for key in _obsolete_keys(events, floor):
        yield key
    async for meta in events.store.list(events.folder, start_after=events.keys.before_snapshots):
        if floor.snapshot is None or not meta.key.endswith(floor.snapshot.token):
            yield meta.key


async def skips_to_the_floor(self: PartitionFollower, floor: PartitionFloor) -> None:
    """Goes on where events are, as if nothing had been before."""
    self._next = floor.floor


PLANTED: dict[str, Replacement] = {
    "floor-before-snapshot": (compactor, "store_snapshot", stores_after_the_floor_moved),
    "delete-before-floor": (compactor, "store_snapshot", deletes_before_the_floor_moves),
    "unknown-is-published-again": (StoredEvents, "_settle", publishes_again),
    "no-grace": (SettlingFloor, "is_settled", lambda self, seconds: True),
    "stale-compactor-lowers-the-floor": (FloorRegister, "move", moves_blindly),
    "dead-events-count": (StoredEvents, "floor_after", judges_by_nothing),
    "lease-never-ends": (Lease, "is_within", lambda self, seconds: True),
    "unnamed-snapshots-are-garbage": (compactor, "_obsolete_keys", sweeps_what_nobody_names),
    "snapshot-left-out": (PartitionFollower, "_deliver_snapshot", skips_to_the_floor),
}
CLOCKS: dict[str, Replacement] = {
    "grace-counted-twice": (SettlingClock, "count", counts_twice),
    "grace-by-the-wall-clock": (SettlingClock, "count", stood_by_the_wall_clock),
}
OUTAGES: dict[str, Replacement] = {
    "look-hides-the-unknown": (StoredEvents, "_settle", settles_blindly),
    "floor-hides-the-unknown": (StoredEvents, "_floor_after_create", looks_blindly),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    with replaced(PLANTED[bug]):
        expect_noticed(eventlog_history, within=HISTORIES_TO_CATCH_A_BUG, by=(AssertionError,))


@pytest.mark.planted
@pytest.mark.parametrize("bug", CLOCKS)
def test_a_bug_that_a_set_clock_shows_is_caught(bug: str) -> None:
    with replaced(CLOCKS[bug]):
        expect_noticed(
            clocks_history,
            within=HISTORIES_TO_CATCH_A_BUG,
            first=FIRST_SEEDS.get(bug, 0),
            by=(AssertionError,),
        )


@pytest.mark.planted
@pytest.mark.parametrize("bug", OUTAGES)
def test_a_bug_that_an_outage_shows_is_caught(bug: str) -> None:
    with replaced(OUTAGES[bug]):
        expect_noticed(outages_history, within=HISTORIES_TO_CATCH_A_BUG, by=(AssertionError,))


def test_the_same_seed_gives_the_same_history() -> None:
    assert eventlog_history(5) == eventlog_history(5)
    assert eventlog_history(5) != eventlog_history(6)
