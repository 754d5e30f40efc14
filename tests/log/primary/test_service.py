"""The leader's door for replicas: register, pull, acknowledge, bootstrap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, Refused, Unavailable
from headwater.log import Group, ReplicationSource
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import PullResponse
from headwater.log.primary.slot import FullRebootstrap, InvalidationCause, PartialResync
from headwater.store import Store
from headwater.testing import MemoryWal
from tests.log.leaders import Away, leader, slot_register
from tests.store.scripted import virtual


def lsns(pulled: PullResponse) -> list[int]:
    return [lsn for group in pulled.groups for lsn in range(group.first_lsn, group.last_lsn + 1)]


@virtual
async def test_a_replica_registers_pulls_and_acknowledges() -> None:
    one = await leader(epoch=7)
    source: ReplicationSource = one.service
    one.wal.append(3)
    one.wal.append(4)
    registered = await source.register("r1", 0, region="eu")
    assert (registered.term, registered.resume) == (7, PartialResync(0))

    pulled = await source.pull("r1", 0, session=registered.session)
    assert lsns(pulled) == [1, 2, 3, 4, 5, 6, 7]
    assert (pulled.term, pulled.through_lsn, pulled.current_lsn) == (7, 7, 7)
    assert one.replica("r1").last_sent_lsn == 7

    progress = Acknowledgement(applied_lsn=7, durable_lsn=5)
    answer = await source.acknowledge("r1", progress, session=registered.session)
    assert (answer.term, answer.restart_lsn, answer.invalidation) == (7, 5, None)
    assert one.primary.metrics.records_sent == 7


@virtual
async def test_a_pull_takes_as_much_as_it_asks_for() -> None:
    one = await leader()
    one.wal.append(100)
    await one.service.register("r1", 0)
    position = 0
    while position < 100:
        pulled = await one.service.pull("r1", position, max_records=7)
        assert lsns(pulled) == list(range(position + 1, min(position + 7, 100) + 1))
        position = pulled.through_lsn
    for wrong in ({"max_records": 0}, {"max_bytes": 0}):
        with pytest.raises(Refused):
            await one.service.pull("r1", 0, **wrong)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        await one.service.pull("r1", -1)


@virtual
async def test_all_replicas_are_sent_the_same_memory() -> None:
    one = await leader()
    one.wal.append(1000)
    pulled = []
    for name in ("r1", "r2"):
        await one.service.register(name, 0)
        pulled.append((await one.service.pull(name, 0)).groups[0].records)
    first, second = (records.column(0).buffers()[2].address for records in pulled)
    assert first == second


@virtual
async def test_a_pull_waits_for_what_comes_and_is_heard_of_meanwhile() -> None:
    one = await leader(health_timeout_s=10.0)
    one.primary.start()
    await one.service.register("r1", 0)

    async def follow() -> list[int]:
        seen: list[int] = []
        while len(seen) < 2:
            seen += lsns(await one.service.pull("r1", len(seen), wait_s=3600.0))
            assert one.replica("r1").healthy
        return seen

    following = runtime.spawn(follow(), name="replica")
    await runtime.sleep(300.0)
    pulls = one.primary.metrics.pulls
    assert 30 <= pulls <= 100, "neither silent nor in a busy loop"
    one.wal.append(1)
    await runtime.sleep(0.001)
    one.wal.append(1)
    assert await following == [1, 2]
    assert one.primary.metrics.health_flips == {}
    await one.primary.close()


@virtual
async def test_the_first_pull_of_a_stranger_registers_it_where_it_is() -> None:
    one = await leader()
    one.wal.append(9)
    pulled = await one.service.pull("r1", 4)
    assert lsns(pulled) == [5, 6, 7, 8, 9]
    assert one.slot("r1").restart_lsn == 4
    with pytest.raises(NotFound):
        await one.service.pull("r2", 4, session="1-x")


@virtual
async def test_a_stranger_below_the_log_is_sent_nothing_but_to_a_bootstrap() -> None:
    one = await leader(wal=MemoryWal(first_lsn=50))
    one.wal.append(9)
    for _ in range(2):
        pulled = await one.service.pull("r1", 4)
        assert pulled.groups == ()
        assert pulled.through_lsn == 4
        assert pulled.rebootstrap == FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)


@virtual
async def test_a_pull_over_records_that_went_meanwhile_sends_no_gap() -> None:
    one = await leader()
    one.wal.append(9)
    session = (await one.service.register("r1", 9)).session
    waiting = runtime.spawn(one.service.pull("r1", 9, wait_s=5.0, session=session), name="pull")
    await runtime.sleep(0.1)
    await one.wal.prune_through(9)
    one.wal.append(3)
    await one.wal.prune_through(10)  # what no slot-aware pruning would do
    pulled = await waiting
    assert pulled.groups == ()
    assert pulled.rebootstrap == FullRebootstrap(InvalidationCause.WAL_REMOVED)
    assert not one.slot("r1").is_valid


@virtual
async def test_a_slot_is_stored_before_its_replica_is_told() -> None:
    backend = Away()
    one = await leader(store=Store(backend))
    backend.is_away = True
    with pytest.raises(Unavailable):
        await one.service.register("r1", 0)
    backend.is_away = False
    await one.service.register("r1", 0)
    stored = await slot_register(one.store).read()
    assert stored is not None
    assert [slot.name for slot in stored.slots] == ["r1"]


@virtual
async def test_a_leader_that_was_overtaken_answers_no_one() -> None:
    one = await leader(epoch=1)
    one.wal.append(3)
    await one.service.register("r1", 0)
    await slot_register(one.store).stamp(2)
    await one.service.acknowledge("r1", Acknowledgement(1, 1))
    with pytest.raises(Fenced):
        await one.primary.slot_writer.wait_stored()
    with pytest.raises(Fenced):
        await one.service.pull("r1", 0)
    with pytest.raises(Fenced):
        await one.service.acknowledge("r1", Acknowledgement(2, 2))


@virtual
async def test_a_pull_that_waited_while_another_leader_took_over_is_not_answered() -> None:
    one = await leader(epoch=1)
    session = (await one.service.register("r1", 0)).session
    waiting = runtime.spawn(one.service.pull("r1", 0, wait_s=5.0, session=session), name="pull")
    await runtime.sleep(0.1)
    await slot_register(one.store).stamp(2)
    one.primary.register_replica("r2")
    with pytest.raises(Fenced):
        await one.primary.slot_writer.wait_stored()
    one.wal.append(1)
    with pytest.raises(Fenced):
        await waiting


@virtual
async def test_whoever_leaves_is_forgotten_until_it_comes_again() -> None:
    one = await leader()
    session = (await one.service.register("r1", 0)).session
    await one.service.unregister("r1", session=session)
    with pytest.raises(NotFound, match="register"):
        await one.service.acknowledge("r1", Acknowledgement(0, 0), session=session)
    assert one.slot("r1").is_valid
    with pytest.raises(Refused):
        await one.service.register("r1", -1)


@virtual
async def test_a_pull_that_waited_while_its_name_was_taken_is_refused() -> None:
    one = await leader()
    session = (await one.service.register("r1", 0)).session
    waiting = runtime.spawn(one.service.pull("r1", 0, wait_s=5.0, session=session), name="pull")
    await runtime.sleep(0.1)
    await one.service.register("r1", 0)
    one.wal.append(1)
    with pytest.raises(Fenced):
        await waiting
    await asyncio.wait((waiting,))


@virtual
async def test_a_slot_that_is_given_up_while_it_is_stored_is_not_gone_on_from() -> None:
    one = await leader(max_lag_lsn=5)
    one.wal.append(9)
    one.archive()
    registering = runtime.spawn(one.service.register("r1", 0), name="register")
    await runtime.sleep(0)
    one.primary.retention.enforce_limits()
    told = await registering
    assert told.resume == FullRebootstrap(InvalidationCause.HORIZON)


@pytest.mark.parametrize("wrong", [1.0, 1.5, "0", True, -1])
def test_a_number_that_is_none_is_refused_and_harms_nobody_else(wrong: Any) -> None:
    @virtual
    async def run() -> None:
        one = await leader()
        one.wal.append(9)
        await one.service.register("good", 0)
        for asked in (
            lambda: one.service.register("odd", wrong),
            lambda: one.service.pull("odd", wrong),
            lambda: one.service.pull("good", 0, max_records=wrong),
            lambda: one.service.pull("good", 0, max_bytes=wrong),
            lambda: one.service.acknowledge("good", Acknowledgement(wrong, 1)),
            lambda: one.service.acknowledge("good", Acknowledgement(1, wrong)),
            lambda: one.service.acknowledge("good", Acknowledgement(1, 1, wrong)),
            lambda: one.service.acknowledge("good", Acknowledgement(1, 1, 0, wrong)),
            lambda: one.service.begin_bootstrap("good", image_lsn=wrong),
            lambda: one.service.complete_bootstrap("good", wrong),
            lambda: one.primary.prune_retained_wal_through(wrong),
        ):
            with pytest.raises(Refused):
                await asked()
        one.acknowledge("good", 5)
        await one.service.register("another", 9)
        assert [slot.name for slot in one.primary.slots.all()] == ["another", "good"]
        assert await one.primary.prune_retained_wal_through(9) == 5

    run()


@virtual
async def test_a_number_of_another_kind_is_taken_as_the_number_it_is() -> None:
    class Four:
        def __index__(self) -> int:
            return 4

    four: Any = Four()
    one = await leader()
    one.wal.append(9)
    await one.service.register("r1", four)
    await one.service.acknowledge("r1", Acknowledgement(four, four))
    await one.primary.slot_writer.wait_stored()
    stored = await slot_register(one.store).read()
    assert stored is not None
    assert stored.slots[0].restart_lsn == 4


@virtual
async def test_a_leader_that_was_closed_answers_nobody() -> None:
    one = await leader()
    one.wal.append(9)
    await one.service.register("r1", 0)
    await one.primary.close()
    for asked in (
        lambda: one.service.register("r2", 0),
        lambda: one.service.pull("r1", 0),
        lambda: one.service.acknowledge("r1", Acknowledgement(9, 9)),
        lambda: one.service.begin_bootstrap("r1"),
        lambda: one.service.complete_bootstrap("r1", 9),
    ):
        with pytest.raises(Unavailable, match="was closed"):
            await asked()
    assert [slot.name for slot in one.primary.slots.all()] == ["r1"]


@virtual
async def test_a_log_that_is_pruned_to_its_end_while_a_replica_pulls_is_not_one_at_its_end() -> (
    None
):
    one = await leader(epoch=7)
    one.wal.append(10)
    registered = await one.service.register("r1", 0)
    read_since = one.wal.read_since

    async def pruned_first(lsn: int, **limits: int) -> Sequence[Group]:
        await one.wal.prune_through(10)
        return await read_since(lsn, **limits)

    one.wal.read_since = pruned_first  # type: ignore[method-assign]
    pulled = await one.service.pull("r1", 0, session=registered.session)
    assert pulled.rebootstrap == FullRebootstrap(InvalidationCause.WAL_REMOVED)
