"""A range of a log, from the log itself and from the tier, as if it were one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, NotFound, Refused, RolledBack, Trimmed, Unavailable
from headwater.log.record import Group, range_hash
from headwater.log.spool.frame import SpoolCorrupt
from headwater.store import MemoryBackend, Store
from headwater.testing import Faults, FaultyStore, MemoryWal, Simulation, simulate
from headwater.tier import CoverPiece, SegmentMetadata, cover
from headwater.tier.reader import LogReader
from headwater.tier.segments import ObjectCache, ObjectStorage, SegmentConfig
from tests.store.scripted import Scripted, stalls, virtual
from tests.tier.segments.given import by_lsn, encoded, lost, lsns, orders, told


class Place:
    """A log of which the beginning is in the tier."""

    def __init__(self, store: Store | None = None, *, cache: bool = True) -> None:
        self.wal = MemoryWal()
        self.groups: list[Group] = []
        self.finished: list[SegmentMetadata] = []
        self.copies = 0
        self.storage = ObjectStorage(
            store or Store(MemoryBackend()), ObjectCache() if cache else None
        )
        self.asked: Callable[[], None] = lambda: None
        """What happens when the cover is asked for."""
        self.start_lsn: int | None = 1

    def write(self, count: int, *, term: int = 1, is_lost: bool = False) -> None:
        first = self.wal.current_lsn() + 1
        made = (
            lost(first, first + count - 1, term=term)
            if is_lost
            else orders(first, count, term=term)
        )
        self.groups.append(self.wal.append_group(made))

    async def tier(self, first_lsn: int, last_lsn: int, *, rows: int = 3) -> SegmentMetadata:
        """Copy a range."""
        parts = [
            part for one in self.groups if (part := one.between(first_lsn, last_lsn)) is not None
        ]
        self.copies += 1
        segment = encoded(parts, number=self.copies, config=SegmentConfig(row_group_rows=rows))
        await self.storage.copy(segment)
        self.finished.append(told(segment))
        return self.finished[-1]

    async def covering(self, first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        self.asked()
        return cover(self.finished, first_lsn, end_lsn)

    async def log_start(self) -> int | None:
        return self.start_lsn

    def reader(self, *, local: bool = True, parallel: int = 4) -> LogReader:
        wal = self.wal if local else None
        return LogReader(self.storage, self.covering, self.log_start, wal, parallel=parallel)

    async def read(self, first_lsn: int, end_lsn: int, **options: bool) -> list[Group]:
        return [group async for group in self.reader(**options).read(first_lsn, end_lsn)]

    def wanted(self, first_lsn: int, end_lsn: int) -> list[Group]:
        parts = (group.between(first_lsn, end_lsn - 1) for group in self.groups)
        return [part for part in parts if part is not None]


async def half_tiered(store: Store | None = None) -> Place:
    """LSNs 1 to 30, of which 1 to 24 are in the tier and 13 to 30 in the log."""
    place = Place(store)
    for count in (5, 7, 3):
        place.write(count)
    place.write(4, is_lost=True)
    for count in (6, 5):
        place.write(count, term=2)
    await place.tier(1, 10)
    await place.tier(11, 24)
    await place.wal.prune_through(12)
    return place


@virtual
async def test_every_range_is_read_as_if_it_were_one_log() -> None:
    place = await half_tiered()
    for first in range(1, 31):
        for end in range(first, 32, 3):
            found = await place.read(first, end)
            assert lsns(found) == list(range(first, end))
            assert by_lsn(found) == by_lsn(place.wanted(first, end))


@virtual
async def test_what_the_log_still_has_costs_no_request() -> None:
    backend = Scripted()
    place = await half_tiered(Store(backend))
    backend.calls.clear()
    assert lsns(await place.read(13, 31)) == list(range(13, 31))
    assert not backend.calls


@virtual
async def test_without_a_log_all_comes_from_the_tier() -> None:
    place = await half_tiered()
    assert lsns(await place.read(1, 25, local=False)) == list(range(1, 25))
    with pytest.raises(Refused, match="25 to 30"):
        await place.read(1, 31, local=False)


@virtual
async def test_where_segments_overlap_every_lsn_is_read_once() -> None:
    place = await half_tiered()
    await place.tier(4, 14)
    await place.tier(1, 6)
    found = await place.read(1, 31)
    assert lsns(found) == list(range(1, 31))
    assert range_hash(found) == range_hash(place.groups)


@virtual
async def test_a_log_that_is_pruned_meanwhile_goes_on_from_the_tier() -> None:
    place = await half_tiered()
    seen: list[Group] = []
    async for group in place.reader().read(13, 31):
        seen.append(group)
        if len(seen) == 1:
            await place.tier(25, 30)
            await place.wal.prune_through(30)
    assert lsns(seen) == list(range(13, 31))


@pytest.mark.parametrize("pruned_lsn", [20, 30], ids=["in its middle", "to its end"])
@virtual
async def test_a_reader_in_the_log_goes_on_in_the_tier_wherever_the_log_is_pruned_to(
    pruned_lsn: int,
) -> None:
    place = await half_tiered()
    await place.tier(25, 30)
    read_since, reads = place.wal.read_since, 0

    async def in_small_parts(lsn: int, **limits: int) -> Sequence[Group]:
        nonlocal reads
        reads += 1
        if reads == 2:
            await place.wal.prune_through(pruned_lsn)
        return await read_since(lsn, max_records=min(3, limits["max_records"]), max_bytes=1 << 20)

    place.wal.read_since = in_small_parts  # type: ignore[method-assign]
    assert lsns(await place.read(13, 31)) == list(range(13, 31))


@virtual
async def test_a_log_that_ends_below_what_the_tier_has_is_gone_on_with_from_there() -> None:
    place = await half_tiered()
    await place.tier(25, 28)
    behind = MemoryWal()
    for group in place.wanted(1, 16):
        behind.append_group(group)
    for wal in (behind, MemoryWal(), MemoryWal(first_lsn=9)):
        place.wal = wal
        assert lsns(await place.read(1, 29)) == list(range(1, 29))
        with pytest.raises(Refused, match=f"ends at LSN {wal.current_lsn()}: 29 is not written"):
            await place.read(1, 30)


class Damaged(MemoryWal):
    """A log of which some LSNs cannot be read."""

    def __init__(self, groups: Sequence[Group], damaged: range) -> None:
        super().__init__(first_lsn=groups[0].first_lsn)
        self.damaged = damaged
        for group in groups:
            self.append_group(group)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        if lsn + 1 in self.damaged:
            raise SpoolCorrupt("a flipped bit", path="log", offset=7, lsn=lsn + 1)
        if lsn + 1 < self.damaged.start:
            max_records = min(max_records, self.damaged.start - lsn - 1)
        return await super().read_since(lsn, max_records=max_records, max_bytes=max_bytes)


@virtual
async def test_where_the_log_is_damaged_the_tier_has_it_and_the_log_goes_on_behind_it() -> None:
    backend = Scripted()
    place = await half_tiered(Store(backend))
    place.wal = Damaged(place.wanted(13, 31), range(15, 20))
    backend.calls.clear()
    assert lsns(await place.read(13, 31)) == list(range(13, 31))
    assert by_lsn(await place.read(13, 31)) == by_lsn(place.wanted(13, 31))
    assert lsns(await place.read(20, 31)) == list(range(20, 31))


@virtual
async def test_damage_where_the_tier_has_nothing_is_told_as_what_it_is() -> None:
    place = await half_tiered()
    place.wal = Damaged(place.wanted(13, 31), range(26, 28))
    seen: list[Group] = []

    async def read() -> None:
        async for group in place.reader().read(1, 31):
            seen.append(group)

    with pytest.raises(SpoolCorrupt, match="a flipped bit"):
        await read()
    assert lsns(seen) == list(range(1, 26))
    place.start_lsn = 29
    with pytest.raises(Trimmed) as trimmed:
        await place.read(26, 31)
    assert trimmed.value.floor_lsn == 29


@virtual
async def test_a_log_that_is_pruned_before_it_is_read_goes_on_from_the_tier() -> None:
    place = await half_tiered()
    await place.tier(25, 28)
    pruned: list[object] = []

    def prune() -> None:
        if not pruned:
            pruned.append(runtime.spawn(place.wal.prune_through(28), name="prune"))

    place.asked = prune
    assert lsns(await place.read(1, 31)) == list(range(1, 31))


@virtual
async def test_what_is_copied_and_pruned_after_the_cover_was_asked_for_is_not_taken_for_lost() -> (
    None
):
    place = await half_tiered()

    async def copied_afterwards(first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        found = cover(place.finished, first_lsn, end_lsn)
        if place.wal.oldest_lsn() == 13:
            await place.tier(25, 28)
            await place.wal.prune_through(28)
        return found

    place.covering = copied_afterwards  # type: ignore[method-assign]
    assert lsns(await place.read(1, 31)) == list(range(1, 31))


@virtual
async def test_a_segment_that_is_merged_and_deleted_meanwhile_is_read_from_the_new_one() -> None:
    place = await half_tiered()
    seen: list[Group] = []
    async for group in place.reader(parallel=1).read(1, 31):
        seen.append(group)
        if len(seen) == 1:
            merged = await place.tier(1, 24)
            for old in place.finished[:2]:
                await place.storage.delete(old.segment_id)
            place.finished[:] = [merged]
    assert lsns(seen) == list(range(1, 31))


@virtual
async def test_a_segment_that_is_gone_though_the_cover_has_it_is_an_error() -> None:
    place = await half_tiered()
    await place.storage.delete(place.finished[1].segment_id)
    seen: list[Group] = []

    async def read() -> None:
        async for group in place.reader().read(1, 31):
            seen.append(group)

    with pytest.raises(NotFound):
        await read()
    assert lsns(seen) == list(range(1, 11))


@virtual
async def test_what_is_not_written_yet_is_refused() -> None:
    place = await half_tiered()
    with pytest.raises(Refused, match="ends at LSN 30"):
        await place.read(20, 40)
    with pytest.raises(Refused, match="at least 1"):
        place.reader(parallel=0)


@pytest.mark.parametrize("local", [True, False], ids=["with a log", "from the tier alone"])
@virtual
async def test_what_was_given_up_is_trimmed_and_one_begins_at_the_log_start(local: bool) -> None:
    place = await half_tiered()
    place.finished[:] = place.finished[1:]
    place.start_lsn = 12
    with pytest.raises(Trimmed) as trimmed:
        await place.read(3, 20, local=local)
    assert trimmed.value.floor_lsn == 12
    with pytest.raises(Trimmed) as trimmed:
        await place.read(3, 8, local=local)
    assert trimmed.value.floor_lsn == 12
    assert lsns(await place.read(12, 20, local=local)) == list(range(12, 20))


@virtual
async def test_what_is_given_up_while_the_cover_is_asked_for_is_trimmed() -> None:
    place = await half_tiered()

    def expire() -> None:
        place.start_lsn = 11
        place.finished[:] = place.finished[1:]

    place.asked = expire
    with pytest.raises(Trimmed) as trimmed:
        await place.read(3, 20)
    assert trimmed.value.floor_lsn == 11


@virtual
async def test_what_nobody_gave_up_is_never_trimmed() -> None:
    place = await half_tiered()
    first, second = place.finished
    place.finished[:] = [second]
    for local in (True, False):
        with pytest.raises(RolledBack, match="3 to 10"):
            await place.read(3, 20, local=local)
    place.finished[:] = []
    with pytest.raises(RolledBack, match="3 to 7"):
        await place.read(3, 8)
    with pytest.raises(Refused, match="not yet"):
        await place.read(3, 8, local=False)
    place.finished[:] = [first]
    with pytest.raises(RolledBack, match="11 to 12"):
        await place.read(3, 20)
    await place.wal.prune_through(24)
    place.finished[:] = [first, await place.tier(15, 24)]
    with pytest.raises(RolledBack, match="11 to 14"):
        await place.read(3, 20)


@virtual
async def test_where_nobody_led_with_a_tier_the_log_says_where_it_begins() -> None:
    place = await half_tiered()
    place.start_lsn = None
    place.finished[:] = place.finished[:1]
    with pytest.raises(RolledBack):
        await place.read(3, 20)
    place.finished[:] = []
    with pytest.raises(Trimmed) as trimmed:
        await place.read(3, 20)
    assert trimmed.value.floor_lsn == 13


class Faulty:
    """A storage that hands out something else than the groups that it holds."""

    def __init__(self, storage: ObjectStorage, change: Callable[[list[Group]], list[Group]]):
        self._storage = storage
        self._change = change
        self.copy, self.fetch_index, self.delete = (
            storage.copy,
            storage.fetch_index,
            storage.delete,
        )

    async def fetch(
        self, segment: SegmentMetadata, first_lsn: int, end_lsn: int
    ) -> AsyncIterator[Group]:
        groups = [group async for group in self._storage.fetch(segment, first_lsn, end_lsn)]
        for group in self._change(groups) if 5 in range(first_lsn, end_lsn) else groups:
            yield group


CHANGES: dict[str, Callable[[list[Group]], list[Group]]] = {
    "nothing": lambda groups: [],
    "twice": lambda groups: groups * 2,
    "too little": lambda groups: [groups[0].between(1, groups[0].last_lsn - 1) or groups[0]],
    "not from the beginning": lambda groups: [groups[0].after(groups[0].first_lsn) or groups[0]],
    "too much": lambda groups: [*groups, orders(groups[-1].last_lsn + 1, 1)],
}


@pytest.mark.parametrize("change", CHANGES)
@virtual
async def test_a_storage_that_hands_out_something_else_is_found_out(change: str) -> None:
    place = Place()
    place.write(12)
    await place.tier(1, 12, rows=4)
    storage = Faulty(place.storage, CHANGES[change])
    reader = LogReader(storage, place.covering, place.log_start)
    with pytest.raises(Corrupt, match="should hold LSNs 5 to 8"):
        assert [group async for group in reader.read(1, 13)]


@virtual
async def test_row_groups_are_fetched_in_parallel_and_handed_out_in_order() -> None:
    """Each request takes a second; eight row groups of two segments, four at a time."""
    backend = Scripted()
    place = Place(Store(backend))
    place.write(24)
    await place.tier(1, 12)
    await place.tier(13, 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TIER_WHOLE_BYTES", 0)
        backend.next("get", *[stalls(1.0)] * 50)
        began_s = runtime.monotonic_s()
        assert lsns(await place.read(1, 25, local=False)) == list(range(1, 25))
        spent_s = runtime.monotonic_s() - began_s
    # One after the other they would take ten: two indexes, and eight row groups.
    assert spent_s < 4.5


@virtual
async def test_what_is_read_ahead_is_bounded_and_ends_with_the_reader() -> None:
    backend = Scripted()
    place = Place(Store(backend))
    place.write(60)
    await place.tier(1, 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TIER_WHOLE_BYTES", 0)
        backend.calls.clear()
        async with aclosing(place.reader(local=False, parallel=3).read(1, 61)) as groups:
            await anext(groups)
            await runtime.sleep(60)
            assert backend.count("get") == 1 + 3
        await runtime.sleep(60)
        assert backend.count("get") == 1 + 3


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20], ids=["by row group", "whole"])
@virtual
async def test_what_was_read_once_is_read_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(limits, "TIER_WHOLE_BYTES", whole_bytes)
    backend = Scripted()
    place = await half_tiered(Store(backend))
    first = await place.read(1, 31)
    backend.calls.clear()
    assert by_lsn(await place.read(1, 31)) == by_lsn(first)
    assert not backend.calls


@given(
    prunes=st.lists(st.integers(0, 40), max_size=3), ends=st.lists(st.integers(1, 40), max_size=6)
)
def test_every_cut_of_a_log_gives_the_same_records(prunes: list[int], ends: list[int]) -> None:
    async def main(_: Simulation) -> None:
        place = Place()
        for count in (9, 1, 14, 16):
            place.write(count)
        at = 1
        for end in sorted(set(ends)):
            await place.tier(at, end)
            at = end + 1
        for lsn in prunes:
            await place.wal.prune_through(min(lsn, at - 1))
        found = await place.read(1, 41)
        assert range_hash(found) == range_hash(place.groups)
        assert lsns(found) == list(range(1, 41))

    simulate(main, stall_max_s=0)


@pytest.mark.parametrize("seed", range(20))
def test_under_store_faults_nothing_is_skipped_or_repeated(seed: int) -> None:
    async def main(_: Simulation) -> None:
        chance = random.Random(seed)
        faulty = FaultyStore(MemoryBackend(), Faults.swarm(chance), chance)
        faulty.calm = True
        place = await half_tiered(Store(faulty))
        faulty.calm = False
        at = 1
        for _round in range(200):
            try:
                async for group in place.reader().read(at, 31):
                    assert group.first_lsn == at
                    at = group.last_lsn + 1
            except Unavailable:
                continue
            break
        assert at == 31

    simulate(main, seed=seed)


@pytest.mark.parametrize("first_lsn", [0, -1, "1", 1.0, True])
@virtual
async def test_lsns_begin_at_one_and_are_whole(first_lsn: int) -> None:
    place = Place()
    place.write(3)
    with pytest.raises(Refused, match="first_lsn"):
        async for _ in place.reader().read(first_lsn, 3):
            pass
