"""Jobs and readers of a partition whose events nobody follows are told to try again."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core.errors import Refused
from headwater.tier.errors import NotReady
from headwater.tier.manager import ManagedPartition
from tests.store.scripted import virtual
from tests.tier.given import ORDERS, started
from tests.tier.manager.given import ELSEWHERE, HOME, TamperedLog, start, start_all


@virtual
async def test_what_is_not_assigned_is_neither_refreshed_nor_published_to() -> None:
    log = TamperedLog()
    manager = await start(log, [ELSEWHERE])
    known = ManagedPartition(manager, ORDERS)
    for work in (known.refresh(), known.publish(started(10, 0, 99), publisher_epoch=1)):
        with pytest.raises(NotReady, match="assign it") as raised:
            await work
        assert raised.value.partition == HOME
    assert log.events_of(HOME) == []
    await manager.close()


@virtual
async def test_what_is_taken_away_while_it_is_refreshed_is_not_ready() -> None:
    log = TamperedLog()
    manager = await start_all(log)
    log.marks_late = asyncio.Event()
    refreshing = asyncio.ensure_future(ManagedPartition(manager, ORDERS).refresh())
    await asyncio.sleep(1.0)
    await manager.reconcile_assignment([ELSEWHERE])
    log.marks_late.set()
    with pytest.raises(NotReady, match="assign it"):
        await refreshing
    await manager.close()


@virtual
async def test_a_closed_manager_is_refused_and_not_waited_for() -> None:
    manager = await start_all(TamperedLog())
    known = ManagedPartition(manager, ORDERS)
    await manager.close()
    with pytest.raises(Refused, match="closed"):
        await known.refresh()
