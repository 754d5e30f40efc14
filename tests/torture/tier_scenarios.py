"""Histories of the tier: leaders that take over from each other, also from one that does not know.

- a finished segment has its object, which holds what is said of it;
- local and remote together have everything from the log start on, for every leader that lives;
- the log start, the publishers' epochs and the highest offsets only rise, and the log start never
  passes what a slot needs;
- what the local log cannot hand out keeps nothing else from becoming remote, and a log is read
  across local log and tier though the local one is pruned, damaged or behind (`tier_log_readers`);
- an object is removed only when its segment is unlisted, and later if it ever was in a cover: who
  took a cover can read it;
- in the end all that is sealed is remote, nothing is left over, and whoever follows the events from
  their beginning knows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, OutcomeUnknown, Unavailable
from headwater.store import MemoryBackend, Store
from headwater.testing import Scenario, Simulation, simulate
from headwater.testing.store import STALL_S
from headwater.tier import SegmentState
from headwater.tier.errors import LocalLogDamaged, NotReady
from headwater.tier.jobs import Flaw, Leader, LedPartition, ScrubFinding, Tiering, TierManager
from headwater.tier.snapshot import dump_all
from tests.torture.surroundings import SKEWS_MS
from tests.torture.tier_log_readers import LogReaders
from tests.torture.tier_stack_world import ParquetWorld, StackWorld
from tests.torture.tier_world import (
    CLOCK_MS,
    DELAY_MS,
    NO_SLOTS,
    PARTITION,
    LeaderLife,
    World,
)

SETTLES_WITHIN_ROUNDS = 400
"""Rounds of the last leader, once everything works."""


def tier_history(seed: int) -> str:
    """One history; returns its fingerprint."""
    return _history(World, SCENARIOS[0], seed)


def stack_history(seed: int) -> str:
    """One in which nothing is faked but the store."""
    return _history(StackWorld, SCENARIOS[1], seed)


def reader_history(seed: int) -> str:
    """One in which the log is read across local log and tier."""
    return _history(ParquetWorld, SCENARIOS[2], seed)


def _history(world: type[World], scenario: Scenario, seed: int) -> str:
    async def main(simulation: Simulation) -> None:
        await History(world(simulation)).run()

    return simulate(main, seed=seed, replay=scenario.replay).fingerprint


class History:
    """Leaders that follow each other."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random

    async def run(self) -> None:
        world = self.world
        world.simulation.spawn(self._produce(), name="producer")
        world.simulation.spawn(self._replicate(), name="slots")
        world.simulation.spawn(self._wear(), name="wear")
        readers = [world.simulation.spawn(self._read(), name="reader")]
        if isinstance(world, ParquetWorld):
            readers.append(world.simulation.spawn(LogReaders(world).run(), name="log readers"))
        for _ in range(self.random.randint(1, 4)):
            life = self._lead()
            await world.idle(2 * 3600.0)
            await runtime.sleep(self.random.uniform(1.0, 600.0))
            if self.random.random() < 0.3:
                life.process.freeze(self.random.random() * 4 * 3600.0)
        world.network.calm = True
        last = self._lead()
        await self._all_is_remote(last)
        await self._damage_stops_nothing(last)
        await self._nothing_is_left_over(last)
        world.reading = False
        await asyncio.gather(*readers)
        await self._what_is_gone_comes_back(last)
        if self.random.random() < 0.3:
            await self._partition_goes(last)
        world.over = True

    async def _produce(self) -> None:
        world = self.world
        while not world.over:
            if world.accepted_lsn < 300 * (1 + world.network.calm):
                world.accepted_lsn += self.random.randint(1, 20)
            await world.idle(300.0)

    async def _replicate(self) -> None:
        """Whoever has a slot confirms more and more."""
        world = self.world
        while not world.over and world.slot_floor_lsn != NO_SLOTS:
            await world.idle(1200.0)
            reached = self.random.randint(0, world.accepted_lsn)
            world.slot_floor_lsn = max(world.slot_floor_lsn, reached)

    async def _wear(self) -> None:
        """A part of a log cannot be read for a while, or for good; and clocks are set."""
        world = self.world
        while not world.network.calm:
            await runtime.sleep(world.habits.random() ** 2 * 3600.0)
            if not world.leaders or world.network.calm:
                continue
            life = world.leaders[-1]
            life.process.runtime.jump(world.habits.choice(SKEWS_MS))
            parts = life.wal.sealed()
            if parts and not world.one_disk:  # there, the disk may be all that has it
                part = world.habits.choice(parts)
                first_lsn = world.habits.randint(part.first_lsn, part.last_lsn)
                life.wal.damaged = range(first_lsn, part.last_lsn + 1)
                await runtime.sleep(world.habits.random() * 1800.0)
            if world.habits.random() < 0.5:
                life.wal.damaged = range(0)

    async def _read(self) -> None:
        """Somebody takes a cover, and reads it at leisure."""
        world = self.world
        metadata, register = await world.open_metadata(), world.log_start()
        storage = world.storage(Store(world.objects))
        while world.reading:
            await world.idle(1200.0)
            try:
                start = await register.read()
                await metadata.refresh()
            except HeadwaterError:
                continue
            taken_ms = world.true_ms()
            try:
                taken = metadata.state().cover(start.first_lsn if start else 0, 1 << 40)
            except NotReady:
                continue
            for piece in taken:
                await world.idle(300.0)
                if self._is_too_late(taken_ms):
                    break
                at = piece.lsns.start
                async for group in storage.fetch(piece.segment, at, piece.lsns.stop):
                    wanted = [b"%d" % lsn for lsn in range(at, group.last_lsn + 1)]
                    world.check(group.records.column(0).to_pylist() == wanted, "other records")
                    at = group.last_lsn + 1
                world.check(at == piece.lsns.stop, f"a reader got {at} of {piece.lsns}")
        await world.close_metadata(metadata)

    def _is_too_late(self, taken_ms: int) -> bool:
        """Whether a cover that was taken then need not be there any more."""
        since_ms = self.world.true_ms() - taken_ms
        return not self.world.reading or since_ms > DELAY_MS - CLOCK_MS

    def _lead(self) -> LeaderLife:
        """A new leader; the one before it may be dead, or not know yet."""
        world = self.world
        if world.leaders and (world.network.calm or world.one_disk or self.random.random() < 0.5):
            for before in world.leaders:
                before.process.kill()
        world.epochs += 1
        skew_ms = self.random.choice(SKEWS_MS)
        process = world.simulation.process(f"leader{world.epochs}", skew_ms=skew_ms)
        life = LeaderLife(world.epochs, world.new_wal(), process)
        world.leaders.append(life)
        world.truth.check_nothing_is_lost()
        process.spawn(self._serve(life))
        process.spawn(self._write(life), name="writer")
        return life

    async def _write(self, life: LeaderLife) -> None:
        world, wal = self.world, life.wal
        while not world.over:
            missing = world.accepted_lsn - wal.current_lsn()
            if missing > 0:
                wal.append(self.random.randint(1, missing), term=life.epoch)
            if self.random.random() < 0.5:
                wal.seal()
            await world.idle(120.0)

    async def _serve(self, life: LeaderLife) -> None:
        world = self.world
        lag = self.random.choice((0, 0, 15))
        leader = Leader(
            PARTITION,
            life.epoch,
            life.epoch,
            committed_lsn=lambda: life.wal.current_lsn() - (0 if world.network.calm else lag),
            slot_floor_lsn=lambda: world.slot_floor_lsn,
        )
        led = LedPartition(
            leader,
            metadata=await world.open_metadata(),
            storage=world.storage(world.store()),
            local=life.wal,
            log_start=world.log_start(),
            config=world.config,
        )
        life.manager = manager = TierManager(led)
        with contextlib.suppress(Fenced):
            while not world.over:
                if world.habits.random() < 0.3:
                    await self._run_for_a_while(manager)
                else:
                    await manager.run_once()
                world.truth.check_nothing_is_lost()
                with contextlib.suppress(NotReady):
                    if manager.leads:
                        world.acknowledge(life, led.tiered_lsn())
                if self.random.random() < 0.05 and not life.scrubbing:
                    life.scrubbing = True
                    life.process.spawn(self._scrub(life, manager), name="scrub")
                self._operate(manager)
                await runtime.sleep(world.config.interval_s)
        world.check(life.epoch < world.epochs or world.over, "the newest leader was fenced")

    async def _run_for_a_while(self, manager: TierManager) -> None:
        """As a service does it, which is stopped wherever it is, and started again."""
        running = runtime.spawn(manager.run(), name="run")
        await runtime.sleep(self.world.habits.random() ** 2 * 1200.0)
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.result()
            raise Fenced("run() returned")

    def _operate(self, manager: TierManager) -> None:
        """Somebody stops tiering for a while or gives it up, and turns it on again."""
        world = self.world
        stopped = not world.network.calm and world.whims.random() < 0.2
        tiering = Tiering.KEEP if stopped else Tiering.ON
        if stopped and world.one_disk:
            tiering = world.whims.choice((Tiering.KEEP, Tiering.DELETE))
        manager.configure(replace(world.config, tiering=tiering))

    async def _scrub(self, life: LeaderLife, manager: TierManager) -> None:
        """Nothing that was promised is ever missing, also while others work."""
        with contextlib.suppress(Unavailable, OutcomeUnknown, Fenced):
            scrubbed = await manager.scrub(repair=True)
            wrong = [one for one in scrubbed.findings if not self._is_unknown(one)]
            self.world.check(not wrong, f"a scrub found {wrong}")
        life.scrubbing = False

    def _is_unknown(self, found: ScrubFinding) -> bool:
        """Whether a finding says no more than that somebody could not look or act for a while."""
        late = (Flaw.UNKNOWN, Flaw.ORPHAN, Flaw.UNCLAIMED)
        return found.repaired or found.kind in late or "not repaired" in found.detail

    async def _all_is_remote(self, last: LeaderLife) -> None:
        await self._until(
            lambda: (
                last.manager is not None
                and last.manager.leads
                and not last.manager.problems
                and all(
                    sealed.last_lsn <= last.manager.led.tiered_lsn() for sealed in last.wal.sealed()
                )
            ),
            last,
            "what is sealed did not become remote",
        )

    async def _damage_stops_nothing(self, last: LeaderLife) -> None:
        """Of three parts the middle one cannot be read: the third is saved nevertheless."""
        world, wal, manager = self.world, last.wal, last.manager
        assert manager is not None
        if world.one_disk:
            return
        # A new disk may still be below what others made remote, where damage is no loss.
        behind = manager.led.tiered_lsn() - wal.current_lsn()
        if behind > 0:
            wal.append(behind, term=last.epoch)
        for _ in range(3):
            wal.append(world.habits.randint(1, 9), term=last.epoch)
            wal.seal()
        world.accepted_lsn = max(world.accepted_lsn, wal.current_lsn())
        _, middle, third = wal.sealed()[-3:]
        first_lsn = world.habits.randint(middle.first_lsn, middle.last_lsn)
        wal.damaged = range(first_lsn, middle.last_lsn + 1)
        await self._until(
            lambda: (
                manager.led.metadata.state().cover(third.first_lsn, third.last_lsn + 1)
                and isinstance(manager.problems.get("look for losses"), LocalLogDamaged)
            ),
            last,
            "what follows the damage did not become remote, or the damage was not told",
        )
        world.check(manager.led.tiered_lsn() == first_lsn - 1, "something else is not remote")
        wal.damaged = range(0)
        await self._all_is_remote(last)

    async def _nothing_is_left_over(self, last: LeaderLife) -> None:
        world = self.world
        world.accepted_lsn = max(world.accepted_lsn, 600)  # nothing more comes
        await runtime.sleep(DELAY_MS / 1000 + 3600.0)
        segments = world.truth.segments
        await self._until(
            lambda: not any(one.state is SegmentState.COPY_STARTED for one in segments.values()),
            last,
            "something is left of copies that never ended",
        )
        assert last.manager is not None
        scrubbed = await last.manager.scrub(repair=True)
        world.check(scrubbed.is_clean, f"a scrub found {scrubbed.findings}")
        stray = world.objects.segments() - segments.keys()
        world.check(not stray, f"{stray} are left over")
        for segment in segments.values():
            if segment.state is SegmentState.COPY_FINISHED:
                world.truth.check_object(segment)
        anew = await world.open_metadata()
        await anew.refresh()
        world.check(
            dump_all(world.cache_of(anew)) == dump_all(world.truth.cache),
            "two followers know different things",
        )

    async def _what_is_gone_comes_back(self, last: LeaderLife) -> None:
        """An object is gone or damaged that the local log has the records of: a scrub mends that.

        The local log may have them under an older term than the object had.
        """
        world, manager = self.world, last.manager
        assert manager is not None
        read = manager.led.metadata.state().cover(last.wal.oldest_lsn(), 1 << 40)
        kept = [one.segment for one in read if one.segment.start_offset >= last.wal.oldest_lsn()]
        if not kept:
            return
        gone = world.whims.choice(kept)
        key = world.segment_key(gone.segment_id)
        await MemoryBackend.delete(world.objects, key)
        if world.whims.random() < 0.5:
            await MemoryBackend.put(world.objects, key, b"[]")
        scrubbed = await manager.scrub(repair=True)
        if last.wal.oldest_lsn() > gone.start_offset:
            return  # the local log was dropped as remote before the scrub found out
        world.check(scrubbed.is_clean, f"it was not mended: {scrubbed.findings}")
        for piece in manager.led.metadata.state().cover(0, 1 << 40):
            world.truth.check_object(piece.segment)

    async def _partition_goes(self, last: LeaderLife) -> None:
        """Somebody deletes everything, and leaders die over it."""
        world = self.world
        world.deleting, world.network.calm = True, False
        assert last.manager is not None
        last.process.spawn(last.manager.delete_partition(), name="delete")
        for _ in range(self.random.randint(0, 2)):
            await runtime.sleep(self.random.random() * 60.0)
            last = self._lead()
        world.network.calm = True
        for life in world.leaders:
            life.process.kill()
        await runtime.sleep(STALL_S)  # requests on their way, and clients that stand still
        last = self._lead()
        await self._until(
            lambda: last.manager is not None and last.manager.leads, last, "nobody leads"
        )
        assert last.manager is not None
        # Over and over: it may have come to its end before, and its leader copied again.
        while not await last.manager.delete_partition():
            await runtime.sleep(60.0)
        left = (world.truth.segments, world.objects.segments())
        world.check(left == ({}, set()), f"{left} are left of a partition that was deleted")
        state = world.truth.cache.partition(PARTITION).delete_state
        world.check(state is None, f"the deletion came to its end, and is {state}")

    async def _until(self, holds: object, last: LeaderLife, message: str) -> None:
        assert callable(holds)
        for _ in range(SETTLES_WITHIN_ROUNDS):
            if holds():
                return
            await runtime.sleep(self.world.config.interval_s + 60.0)
        problems = None if last.manager is None else last.manager.problems
        self.world.check(False, f"{message}: {problems}")


SCENARIOS = [
    Scenario("tier", "leaders", tier_history, rounds=3000, sample=20),
    Scenario("tier", "stack", stack_history, rounds=200, sample=2),
    Scenario("tier", "readers", reader_history, rounds=2000, sample=8),
]
