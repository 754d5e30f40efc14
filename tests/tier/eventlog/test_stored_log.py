"""Which log stands in a store: made once, known by its id, its number of partitions for ever."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headwater.core.errors import Corrupt, NotSupported, Refused, RolledBack
from headwater.core.limits import EVENT_PARTITIONS_MAX
from headwater.store import Register, Store
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog import PartitionFailed, StoredEventLog
from headwater.tier.eventlog.stored_log import LogRecord, mark_renewed
from tests.store.scripted import Scripted, after, fails, virtual
from tests.tier.eventlog.stored_given import opened, publish_events


@virtual
async def test_another_number_of_partitions_is_refused() -> None:
    backend = Scripted()
    await opened(backend, 3)
    for count in (2, 4):
        with pytest.raises(Refused, match=r"metadata/log\.json.*3 metadata partitions"):
            await opened(backend, count)


@virtual
async def test_another_log_than_the_one_expected_is_refused() -> None:
    store = Store(Scripted())
    expected = uuid.UUID(int=5)
    log = await StoredEventLog.open(store, partition_count=1, log_id=expected)
    assert log.log_id == expected
    again = await StoredEventLog.open(store, partition_count=1, log_id=expected)
    assert again.log_id == expected
    with pytest.raises(Refused, match=str(expected)):
        await StoredEventLog.open(store, partition_count=1, log_id=uuid.UUID(int=6))


@virtual
async def test_logs_of_different_prefixes_are_different_logs() -> None:
    store = Store(Scripted())
    one = await StoredEventLog.open(store, partition_count=1, prefix="one")
    other = await StoredEventLog.open(store, partition_count=2, prefix="other")
    await one.publish(0, b"x")
    assert one.log_id != other.log_id
    assert await other.high_water_marks() == {0: 0, 1: 0}


@virtual
async def test_those_who_open_at_once_have_the_same_log() -> None:
    backend = Scripted()
    logs = await asyncio.gather(*(opened(backend, 4) for _ in range(5)))
    assert len({log.log_id for log in logs}) == 1


@virtual
async def test_opening_a_log_that_is_there_costs_one_request() -> None:
    backend = Scripted()
    await opened(backend, 4)
    backend.calls.clear()
    await opened(backend, 4)
    assert backend.calls == [("get", "metadata/log.json")]


@virtual
async def test_a_log_that_was_left_half_made_is_finished_by_the_next_one() -> None:
    backend = Scripted()

    async def crash() -> None:
        raise ZeroDivisionError("the process ends here")

    backend.next("put_if_absent", after(nothing), after(nothing), after(crash))
    with pytest.raises(ZeroDivisionError):
        await opened(backend, 4)
    log = await opened(backend, 4)
    for partition in range(4):
        assert await log.publish(partition, b"x") == 0
    assert (await opened(backend, 4)).log_id == log.log_id


async def nothing() -> None:
    """Goes through."""


@virtual
async def test_a_log_that_was_renewed_while_somebody_made_it_stays_renewed() -> None:
    """Whoever stood still before the last step does not write over what others said since."""
    backend = Scripted()

    async def made_and_renewed() -> None:
        log = await opened(backend)
        await mark_renewed(log.events_of(0).store, "metadata", "anew")

    backend.next("get", after(nothing), after(nothing), after(made_and_renewed))
    with pytest.raises(LogRenewed, match="anew"):
        await opened(backend)
    with pytest.raises(LogRenewed, match="anew"):
        await opened(backend)


@virtual
async def test_a_lost_floor_is_not_an_empty_partition() -> None:
    backend = Scripted()
    await publish_events(await opened(backend), 3)
    await backend.inner.delete("metadata/0/floor.json")
    log = await opened(backend)
    with pytest.raises(RolledBack, match=r"metadata/0/floor\.json"):
        await log.publish(0, b"x")
    assert await log.high_water_marks() == {}
    subscription = await log.subscribe({0: 0})
    failed = await anext(subscription)
    assert isinstance(failed, PartitionFailed)
    assert isinstance(failed.error, RolledBack)


@virtual
async def test_a_log_made_anew_over_old_objects_is_noticed() -> None:
    """Somebody deleted `log.json`: what is left is of another log."""
    backend = Scripted()
    old = await opened(backend)
    await publish_events(old, 3)
    await backend.inner.delete("metadata/log.json")
    with pytest.raises(Corrupt, match=str(old.log_id)):
        await opened(backend)


@virtual
async def test_a_later_format_is_not_guessed_at() -> None:
    store = Store(Scripted())
    later = LogRecord(2, uuid.UUID(int=1), 1, made=True)
    await Register(store, "metadata/log.json", LogRecord).update(lambda _: later)
    with pytest.raises(NotSupported, match="upgrade"):
        await StoredEventLog.open(store, partition_count=1)


@virtual
async def test_a_number_of_partitions_that_no_log_has_is_refused() -> None:
    backend = Scripted()
    for count in (0, -1, EVENT_PARTITIONS_MAX + 1):
        with pytest.raises(Refused, match="EVENT_PARTITIONS_MAX"):
            await opened(backend, count)
    assert backend.calls == []


@virtual
async def test_a_store_that_refuses_makes_no_log() -> None:
    backend = Scripted()
    backend.next("get", fails(Refused("403")))
    with pytest.raises(Refused, match="403"):
        await opened(backend)
