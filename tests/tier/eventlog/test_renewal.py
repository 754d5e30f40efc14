"""A log that begins with what another one comes to."""

from __future__ import annotations

import pytest

from headwater.core.errors import NotSupported, Refused
from headwater.tier import encode_event
from headwater.tier.cache import EventOutcome
from headwater.tier.eventlog import Compactor, InProcessEventLog, StoredEventLog, renew
from headwater.tier.eventlog.renewal import RenewedLog
from tests.store.scripted import Scripted, virtual
from tests.tier.event_histories import apply_said
from tests.tier.eventlog.stored_given import followed, opened, publish_events, replayed
from tests.tier.given import ORDERS, finished, started

POISON = (1 << 64) - 1


async def new_log(backend: Scripted, partition_count: int = 1) -> StoredEventLog:
    store = (await opened(backend)).events_of(0).store
    return await StoredEventLog.open(store, prefix="anew", partition_count=partition_count)


@virtual
async def test_it_comes_to_the_same_whether_or_not_the_other_one_was_compacted() -> None:
    backend = Scripted()
    log = await opened(backend)
    published = await publish_events(log, 6)
    await Compactor(log).compact(0, every_events=1)
    published += await publish_events(log, 3, first=6)
    anew = await new_log(backend)
    assert await renew(log, anew) == RenewedLog((9,), (ORDERS,))
    known = await followed(anew)
    assert (known.snapshots, known.next_offset, known.dumps) == (1, 9, replayed(published))
    assert anew.log_id != log.log_id


@virtual
async def test_an_epoch_that_no_leader_reaches_is_taken_down() -> None:
    source = InProcessEventLog(1)
    for event in (started(10, 0, 99, publisher=4), finished(10, publisher=POISON)):
        await source.publish(0, encode_event(event))
    anew = await new_log(Scripted())
    await renew(source, anew, epoch_max=4)
    cache = (await followed(anew)).cache
    assert cache.partition(ORDERS).publisher_epoch == 4
    assert [one.state.name for one in cache.partition(ORDERS).segments()] == ["COPY_FINISHED"]
    assert apply_said(cache, (started(11, 100, 199, publisher=5), None)) is EventOutcome.CHANGED


@virtual
async def test_only_an_empty_log_with_as_many_partitions_is_begun() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 2)
    with pytest.raises(Refused, match="would be in other partitions"):
        await renew(InProcessEventLog(2), log)
    with pytest.raises(Refused, match="has 2 events in metadata partition 0"):
        await renew(InProcessEventLog(1), log)


@virtual
async def test_what_cannot_be_read_is_not_left_out() -> None:
    source = InProcessEventLog(1)
    await source.publish(0, b"no event")
    anew = await new_log(Scripted())
    with pytest.raises(NotSupported):
        await renew(source, anew)
    assert (await anew.high_water_marks()) == {0: 0}
