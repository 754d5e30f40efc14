"""Several compactors of one log, and those that come late."""

from __future__ import annotations

import asyncio
from typing import Any

from headwater.core import runtime
from headwater.tier.eventlog import (
    Compaction,
    Compactor,
)
from tests.store.scripted import Scripted, after, virtual
from tests.tier.eventlog.stored_given import (
    GRACE_S,
    events_there,
    floor_of,
    followed,
    opened,
    publish_events,
    replayed,
    snapshots_there,
)


@virtual
async def test_of_two_compactors_one_moves_the_floor_and_the_other_leaves_nothing_behind() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 10)
    both = [Compactor(await opened(backend)) for _ in range(2)]
    done = await asyncio.gather(*(one.compact(0, every_events=1) for one in both))
    assert sorted(one.events for one in done) == [0, 10]
    assert len(await snapshots_there(backend)) == 1
    assert (await followed(log)).dumps == replayed(published)


@virtual
async def test_a_stale_compactor_neither_lowers_the_floor_nor_deletes_anything() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 5)
    stale = Compactor(await opened(backend, patient=True))

    async def others_go_further() -> None:
        nonlocal published
        published += await publish_events(log, 5, first=5)
        fresh = Compactor(log)
        await fresh.compact(0, every_events=1)
        published += await publish_events(log, 2, first=10)
        await runtime.sleep(GRACE_S)
        await fresh.compact(0)

    backend.next("put_if_unchanged", after(others_go_further))  # the stale one's move of the floor
    assert await stale.compact(0, every_events=1) == Compaction(0, 10, 0, 0)
    floor = await floor_of(log)
    assert (floor.floor, floor.trimmed) == (10, 10)
    assert await events_there(backend) == [10, 11]
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_the_snapshot_of_a_stalled_compactor_is_there_when_it_names_it() -> None:
    """Others have compacted less far meanwhile, and deleted what they could."""
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 4)
    quick = Compactor(log)
    await quick.compact(0, every_events=1)
    published += await publish_events(log, 4, first=4)
    stalled = Compactor(await opened(backend, patient=True))

    async def others_delete() -> None:
        await runtime.sleep(GRACE_S)
        assert (await quick.compact(0)).deleted == 4

    backend.next("put_if_unchanged", after(others_delete))
    assert (await stalled.compact(0, every_events=1)).events == 4
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_a_compactor_that_is_overtaken_while_it_reads_gives_way() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 4)
    slow, quick = Compactor(await opened(backend, patient=True)), Compactor(log)

    async def all_is_deleted() -> None:
        await quick.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        await quick.compact(0)

    events = slow._log.events_of(0)
    read = events.read

    async def late(start: int, count: int) -> Any:
        events.read = read  # type: ignore[method-assign]
        await all_is_deleted()
        return await read(start, count)

    events.read = late  # type: ignore[method-assign]
    assert (await slow.compact(0, every_events=1)).events == 0
    assert (await followed(log)).dumps == replayed(published)
