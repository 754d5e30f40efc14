"""A log that was begun anew elsewhere refuses whoever still uses it, and says where it goes on."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.limits import EVENT_LEASE_S
from headwater.tier import TopicMetadataManager
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog import Compactor, PartitionFailed, StoredEventLog, renew
from tests.store.scripted import Scripted, virtual
from tests.tier.eventlog.stored_given import event_bytes, opened, publish_events
from tests.tier.given import ORDERS

GOES_ON = "goes on under 'anew'"


async def begun(backend: Scripted) -> StoredEventLog:
    store = (await opened(backend)).events_of(0).store
    return await StoredEventLog.open(store, prefix="anew", partition_count=1)


@virtual
async def test_whoever_uses_a_renewed_log_is_told_where_it_goes_on() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 4)
    manager = await TopicMetadataManager.start(log)
    await manager.reconcile_assignment({0})
    await manager.wait_ready(0)
    subscription = await log.subscribe({0: 4})
    anew = await begun(backend)
    await renew(log, anew)

    with pytest.raises(LogRenewed, match=GOES_ON):
        await opened(backend)
    await runtime.sleep(EVENT_LEASE_S + 1)
    with pytest.raises(LogRenewed, match=GOES_ON):
        await log.publish(0, event_bytes(4))
    failed = await anext(subscription)
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, LogRenewed)
    await runtime.sleep(EVENT_LEASE_S)
    with pytest.raises(LogRenewed, match=GOES_ON):
        manager.partition(ORDERS)
    compactor = Compactor(log, every_events=1)
    await compactor.pass_over_all()
    assert GOES_ON in str(compactor.failures[0])
    await publish_events(anew, 1, first=4)
    await subscription.close()
    await manager.close()


@virtual
async def test_a_log_to_which_somebody_publishes_meanwhile_goes_on_as_it_is() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 2)
    anew = await begun(backend)
    marks, asked = log.high_water_marks, 0

    async def published_between() -> dict[int, int]:
        nonlocal asked
        asked += 1
        if asked == 2:
            await publish_events(log, 1, first=2)
        return await marks()

    log.high_water_marks = published_between  # type: ignore[method-assign, assignment]
    with pytest.raises(Refused, match="stop all its clients"):
        await renew(log, anew)
    assert (await (await opened(backend)).high_water_marks()) == {0: 3}
