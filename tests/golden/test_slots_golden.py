"""Replication slots, as they were first written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.core import runtime
from headwater.log.primary.slot import InvalidationCause
from headwater.log.primary.slot_register import SlotTable
from headwater.log.primary.slot_writer import SlotWriter
from tests.golden.fixed_runtime import FixedRuntime
from tests.log.leaders import SLOTS_KEY, memory_store, slot_register

HERE = Path(__file__).parent
GOLDEN = HERE / "slots.2.json"


class FixedClock(FixedRuntime):
    """It is always the same moment; waiting takes none."""

    def wall_ms(self) -> int:
        return 1_767_225_600_000

    async def sleep(self, seconds: float) -> None:
        return


async def _written() -> bytes:
    store = memory_store()
    keeper = await SlotWriter.open(slot_register(store), leader_epoch=7)
    keeper.slots.create("standby-eu", 120)
    keeper.slots.advance("standby-eu", applied_lsn=140, durable_lsn=130)
    keeper.slots.create("laptop", 3)
    keeper.slots.invalidate("laptop", InvalidationCause.HORIZON)
    keeper.slots.create("fresh", 100, bootstrapping=True)
    await keeper.wait_stored()
    return bytes((await store.get(SLOTS_KEY)).data)


async def _read(data: bytes) -> SlotTable:
    store = memory_store()
    await store.put(SLOTS_KEY, data)
    table = await slot_register(store).read()
    assert table is not None
    return table


def test_slots_are_written_and_read_as_they_always_were() -> None:
    with runtime.installed(FixedClock()):
        assert asyncio.run(_written()) == GOLDEN.read_bytes()
    table = asyncio.run(_read(GOLDEN.read_bytes()))
    assert (table.slots_format, table.leader_token) == (2, f"{1:032x}")
    _check_slots(table)


def test_slots_of_the_first_format_stay_readable_and_can_be_led() -> None:
    table = asyncio.run(_read((HERE / "slots.1.json").read_bytes()))
    assert (table.slots_format, table.leader_token) == (1, "")
    _check_slots(table)
    led = asyncio.run(_led((HERE / "slots.1.json").read_bytes()))
    assert (led.slots_format, led.slots) == (2, table.slots)


async def _led(data: bytes) -> SlotTable:
    store = memory_store()
    await store.put(SLOTS_KEY, data)
    keeper = await SlotWriter.open(slot_register(store), leader_epoch=8)
    return keeper.slots.table()


def _check_slots(table: SlotTable) -> None:
    assert (table.leader_epoch, table.next_generation) == (7, 4)
    fresh, laptop, standby = table.slots
    assert (standby.name, standby.generation) == ("standby-eu", 1)
    assert (standby.restart_lsn, standby.confirmed_lsn) == (130, 140)
    assert (standby.created_ms, standby.last_seen_ms) == (1_767_225_600_000, 1_767_225_600_000)
    assert laptop.invalidation is not None
    assert laptop.invalidation.cause is InvalidationCause.HORIZON
    assert fresh.bootstrapping
