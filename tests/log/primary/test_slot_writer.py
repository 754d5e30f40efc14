"""Slots in the store: how often they are written, who may write, and what damage does."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    Fenced,
    LimitExceeded,
    NotFound,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.limits import EPOCH_STEP_MAX, SLOT_LOOK_S, SLOT_WRITE_GAP_S, SLOTS_MAX
from headwater.log import SlotRegister
from headwater.log.primary.slot import InvalidationCause
from headwater.log.primary.slot_writer import SlotWriter
from headwater.store import Store
from tests.log.leaders import SLOTS_KEY, Away, memory_store, slot_register
from tests.store.scripted import virtual

INTERVAL_S = 5.0


async def opened(store: Store, epoch: int = 1) -> SlotWriter:
    return await SlotWriter.open(
        slot_register(store), leader_epoch=epoch, write_interval_s=INTERVAL_S
    )


async def damage(store: Store) -> None:
    kept = bytearray((await store.get(SLOTS_KEY)).data)
    kept[len(kept) // 2] ^= 1
    await store.put(SLOTS_KEY, bytes(kept))


@virtual
async def test_slots_survive_their_leader() -> None:
    store = memory_store()
    first = await opened(store, epoch=1)
    first.slots.create("a", 7)
    first.slots.advance("a", applied_lsn=20, durable_lsn=15)
    await first.wait_stored()

    second = await opened(store, epoch=2)
    assert second.slots.all() == first.slots.all()
    assert second.slots.leader_epoch == 2


@virtual
async def test_an_older_leader_is_refused_and_stays_refused() -> None:
    store = memory_store()
    old = await opened(store, epoch=1)
    old.slots.create("a", 7)
    await old.wait_stored()
    new = await opened(store, epoch=2)

    old.slots.advance("a", applied_lsn=90, durable_lsn=90)
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 2"):
            await old.wait_stored()
    assert isinstance(old.failure, Fenced)
    with pytest.raises(Fenced):
        await opened(store, epoch=1)
    assert (await slot_register(store).read()) == new.slots.table()


@virtual
async def test_an_epoch_that_no_leader_has_is_refused_and_fences_nobody() -> None:
    store = memory_store()
    for epoch in (1_794_868_490_014, 1 << 31, 0, -1, 1.0, "7", True):
        with pytest.raises(Refused, match="leader_epoch"):
            await opened(store, epoch=epoch)  # type: ignore[arg-type]
    assert await slot_register(store).read() is None
    await opened(store, epoch=1)
    with pytest.raises(Refused, match="EPOCH_STEP_MAX"):
        await opened(store, epoch=EPOCH_STEP_MAX + 2)
    assert (await opened(store, epoch=EPOCH_STEP_MAX + 1)).slots.leader_epoch == EPOCH_STEP_MAX + 1


@virtual
async def test_an_epoch_that_was_wrong_from_the_first_is_set_back_and_slots_stay() -> None:
    store = memory_store()
    register = slot_register(store)
    with pytest.raises(NotFound):
        await register.lower_epoch(2)
    wrong = await opened(store, epoch=2_000_000_000)
    wrong.slots.create("a", 7)
    await wrong.close()
    with pytest.raises(Fenced):
        await opened(store, epoch=3)
    with pytest.raises(Refused, match="lower"):
        await register.lower_epoch(2_000_000_000)
    await register.lower_epoch(2)
    led = await opened(store, epoch=3)
    assert [slot.name for slot in led.slots.all()] == ["a"]


@virtual
async def test_of_two_openings_under_one_epoch_the_later_has_the_slots() -> None:
    store = memory_store()
    first = await opened(store)
    first.slots.create("a", 7)
    await first.wait_stored()
    second = await opened(store)
    second.slots.create("b", 8)
    await second.wait_stored()
    first.slots.create("c", 9)
    with pytest.raises(Fenced, match="same epoch 1"):
        await first.wait_stored()
    second.slots.create("d", 10)
    await second.wait_stored()
    stored = await slot_register(store).read()
    assert stored is not None
    assert [slot.name for slot in stored.slots] == ["a", "b", "d"]


@virtual
async def test_a_leader_whose_epoch_was_set_back_writes_nothing_more() -> None:
    store = memory_store()
    wrong = await opened(store, epoch=2_000_000_000)
    await slot_register(store).lower_epoch(2)
    wrong.slots.create("a", 7)
    with pytest.raises(Fenced, match="epoch 2"):
        await wrong.wait_stored()
    assert (await opened(store, epoch=2)).slots.all() == []


@virtual
async def test_slots_that_cannot_be_read_are_an_error_and_never_none() -> None:
    store = memory_store()
    keeper = await opened(store)
    keeper.slots.create("a", 7)
    await keeper.wait_stored()
    await damage(store)
    with pytest.raises(Corrupt):
        await opened(store, epoch=2)
    with pytest.raises(Corrupt):
        await slot_register(store).read()


@virtual
async def test_slots_that_vanished_are_damage_for_whoever_knows_of_them() -> None:
    store = memory_store()
    keeper = await opened(store)
    await store.delete(SLOTS_KEY)
    keeper.slots.create("a", 7)
    with pytest.raises(RolledBack):
        await keeper.wait_stored()
    with pytest.raises(RolledBack, match="Restore it"):
        await SlotWriter.open(slot_register(store), leader_epoch=2, must_exist=True)


@virtual
async def test_damage_ends_the_keeper_for_everybody() -> None:
    store = memory_store()
    keeper = await opened(store)
    told: list[Exception] = []
    keeper.on_failure = told.append
    await damage(store)
    keeper.slots.create("a", 7)
    for _ in range(2):
        with pytest.raises(Damaged):
            await keeper.wait_stored()
    with pytest.raises(Damaged):
        keeper.check()
    assert len(told) == 1


@virtual
async def test_pulls_and_acknowledgements_are_written_at_a_bounded_rate() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    keeper.slots.create("a", 0)
    keeper.start()
    await keeper.wait_stored()
    before, began_s = backend.writes, runtime.monotonic_s()
    for lsn in range(1, 3001):
        keeper.slots.advance("a", applied_lsn=lsn, durable_lsn=lsn)
        keeper.slots.touch("a")
        await runtime.sleep(0.01)
    elapsed_s = runtime.monotonic_s() - began_s
    assert backend.writes - before <= elapsed_s / INTERVAL_S + 1
    assert backend.writes > before
    await keeper.close()
    stored = await slot_register(Store(backend)).read()
    assert stored is not None
    assert stored.slots[0].restart_lsn == 3000


@virtual
async def test_pulls_alone_are_not_worth_a_write_but_once_a_minute() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    keeper.slots.create("a", 0)
    keeper.start()
    await keeper.wait_stored()
    before = backend.writes
    for _ in range(600):
        keeper.slots.touch("a")
        await runtime.sleep(1.0)
    assert 8 <= backend.writes - before <= 10
    await keeper.close()


@virtual
async def test_those_who_wait_share_one_write_and_writes_keep_their_distance() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    before, began_s = backend.writes, runtime.monotonic_s()

    async def register(name: str) -> None:
        keeper.slots.create(name, 0)
        await keeper.wait_stored()

    await asyncio.gather(*(register(f"r{number}") for number in range(100)))
    assert backend.writes - before <= 2
    for number in range(10):
        await register(f"later{number}")
    assert runtime.monotonic_s() - began_s >= 10 * SLOT_WRITE_GAP_S


@virtual
async def test_a_store_that_is_away_delays_and_loses_nothing() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    keeper.slots.create("a", 0)
    keeper.start()
    backend.is_away = True
    with pytest.raises(Unavailable):
        await keeper.wait_stored()
    assert keeper.failure is None
    assert keeper.writes_failed >= 1
    backend.is_away = False
    await runtime.sleep(300.0)
    assert keeper.is_stored
    await keeper.close()


@virtual
async def test_all_who_wait_for_a_write_that_fails_are_told_by_it() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    backend.is_away = True
    began_s = runtime.monotonic_s()

    async def register(name: str) -> None:
        keeper.slots.create(name, 0)
        with pytest.raises(Unavailable):
            await keeper.wait_stored()

    await asyncio.gather(*(register(f"r{number}") for number in range(20)))
    assert keeper.writes_failed <= 2, "not each after a time-out of its own"
    assert runtime.monotonic_s() - began_s < 300.0


@virtual
async def test_a_slot_that_is_dropped_from_outside_is_gone_for_an_idle_leader_too() -> None:
    store = memory_store()
    keeper = await opened(store)
    told: list[str] = []
    keeper.on_dropped = told.extend
    keeper.slots.create("dead", 3)
    keeper.slots.create("alive", 9)
    await keeper.wait_stored()
    keeper.start()

    assert await slot_register(store).drop("dead")
    await runtime.sleep(2 * SLOT_LOOK_S)

    assert told == ["dead"]
    assert keeper.slots.find("dead") is None
    assert keeper.slots.floor_lsn() == 9
    assert not await slot_register(store).drop("dead")
    await keeper.close()


@virtual
async def test_a_slot_made_again_while_its_drop_was_written_is_another_one() -> None:
    store = memory_store()
    keeper = await opened(store)
    keeper.slots.create("a", 3)
    await keeper.wait_stored()
    await slot_register(store).drop("a")
    sent = keeper.slots.table()
    found = await slot_register(store).write(sent)
    keeper.slots.drop("a")
    again = keeper.slots.create("a", 50)

    assert keeper.slots.stored(sent, found) == []
    assert keeper.slots.find("a") == again


@virtual
async def test_what_is_not_stored_frees_nothing() -> None:
    backend = Away()
    keeper = await opened(Store(backend))
    keeper.slots.create("a", 3)
    await keeper.wait_stored()

    keeper.slots.advance("a", applied_lsn=10, durable_lsn=10)
    assert (keeper.slots.floor_lsn(), keeper.slots.wanted_floor_lsn()) == (3, 10)
    keeper.slots.create("b", 1)
    assert keeper.slots.floor_lsn() == 1, "a new slot counts at once"
    keeper.slots.drop("b")
    keeper.slots.invalidate("a", InvalidationCause.HORIZON)
    assert (keeper.slots.floor_lsn(), keeper.slots.wanted_floor_lsn()) == (3, None)
    await keeper.wait_stored()
    assert keeper.slots.floor_lsn() is None


@virtual
async def test_dropping_where_nobody_keeps_slots_makes_nothing() -> None:
    store = memory_store()
    assert not await slot_register(store).drop("a")
    with pytest.raises(NotFound):
        await store.get(SLOTS_KEY)


@virtual
async def test_only_damaged_slots_are_begun_anew() -> None:
    store = memory_store()
    keeper = await opened(store)
    keeper.slots.create("a", 7)
    await keeper.wait_stored()
    with pytest.raises(Refused):
        await slot_register(store).reset_damaged()
    await damage(store)
    await slot_register(store).reset_damaged()
    assert len((await opened(store, epoch=2)).slots) == 0


@virtual
async def test_slots_are_bounded_in_number() -> None:
    keeper = await opened(memory_store())
    for number in range(SLOTS_MAX):
        keeper.slots.create(f"r{number}", 0)
    with pytest.raises(LimitExceeded, match="slot drop"):
        keeper.slots.create("one-more", 0)
    keeper.slots.create("r0", 5)
    await keeper.wait_stored()


@virtual
async def test_a_new_leader_counts_silence_from_its_own_start() -> None:
    store = memory_store()
    first = await opened(store, epoch=1)
    first.slots.create("a", 0)
    await first.wait_stored()
    await runtime.sleep(3600.0)
    second = await opened(store, epoch=2)
    assert second.slots.idle_s("a") == 0.0
    await runtime.sleep(10.0)
    assert 10.0 <= second.slots.idle_s("a") < 11.0
    assert second.slots.get("a").last_seen_ms == first.slots.get("a").last_seen_ms


@virtual
async def test_a_mistake_while_slots_are_written_is_logged_and_not_the_last_word() -> None:
    store = memory_store()
    keeper = await opened(store)
    keeper.start()
    keeper.slots.create("a", 7)
    with mock.patch.object(SlotRegister, "write", side_effect=KeyError("a mistake")):
        await runtime.sleep(3 * INTERVAL_S)
    assert keeper.writes_failed >= 2
    await runtime.sleep(2 * INTERVAL_S)
    assert keeper.is_stored
    stored = await slot_register(store).read()
    assert stored is not None
    assert [slot.name for slot in stored.slots] == ["a"]
    await keeper.close()
