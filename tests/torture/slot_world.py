"""What histories of slots are about: one log, leaders that follow each other, a store on a bad day.

The log is a function of its LSNs, as records are a function of the queue: every leader derives the
same. What is archived can be had as an image by whoever bootstraps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from headwater.core import runtime
from headwater.core.retry import RetryPolicy
from headwater.log import (
    PrimaryReplication,
    PrimaryService,
    ReplicationConfig,
    RetentionLimits,
    SlotRegister,
)
from headwater.log.primary.slot_register import SlotTable
from headwater.store import Condition, MemoryBackend, Store, Version
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, MemoryWal, Process, Simulation
from tests.log.leaders import SLOTS_KEY, STREAM, STREAM_ID
from tests.torture.surroundings import EchoingStore, require

IMPATIENT = RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
MAX_LAG_LSN = 60


class Watched(MemoryBackend):
    """A store that looks at every table of slots that is written to it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self.table: SlotTable | None = None
        self._gone: set[tuple[str, int]] = set()
        self._whole: bytes | None = None
        """The table before it was damaged."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        if key == SLOTS_KEY:
            before, self.table = self.table, _decode(bytes(data))
            self._check_change(before, self.table)
        return version

    async def damage(self) -> None:
        """Let the table be unreadable."""
        if self.table is not None:
            self._whole = bytes((await super().get(SLOTS_KEY)).data)
            await super().put(SLOTS_KEY, self._whole[: len(self._whole) // 2])

    async def restore(self) -> None:
        """Put back what was there; nobody may have written over it."""
        if self._whole is not None:
            found = bytes((await super().get(SLOTS_KEY)).data)
            self._check(len(found) == len(self._whole) // 2, "damaged slots were written over")
            await super().put(SLOTS_KEY, self._whole)
            self._whole = None

    def _check_change(self, before: SlotTable | None, after: SlotTable) -> None:
        if before is None:
            return
        self._check(after.leader_epoch >= before.leader_epoch, "an older leader wrote")
        self._check(after.next_generation >= before.next_generation, "generations went back")
        kept = {(slot.name, slot.generation): slot for slot in after.slots}
        for slot in before.slots:
            then, now = slot, kept.get((slot.name, slot.generation))
            if now is None:
                self._gone.add((slot.name, slot.generation))
                continue
            self._check(now.restart_lsn >= then.restart_lsn, f"{then.name} went back")
            self._check(now.confirmed_lsn >= then.confirmed_lsn, f"{then.name} went back")
            self._check(then.is_valid or not now.is_valid, f"{then.name} was lost, and is not")
        self._check(not self._gone & kept.keys(), "a slot that was dropped came back")

    def _check(self, holds: bool, message: str) -> None:
        require(self._simulation, holds, message)


def _decode(data: bytes) -> SlotTable:
    return msgspec.json.decode(decode_envelope(SLOTS_KEY, data).value, type=SlotTable)


class WatchedWal(MemoryWal):
    """A log that is pruned only where the stored slots of its own leader allow it."""

    def __init__(self, world: World, *, first_lsn: int) -> None:
        super().__init__(first_lsn=first_lsn)
        self.world = world
        self.epoch = 0

    async def prune_through(self, lsn: int) -> int:
        table = self.world.objects.table
        openings = [life.wal for life in self.world.leaders if life.epoch == self.epoch]
        is_last = not openings or openings[-1] is self
        if table is not None and table.leader_epoch <= self.epoch and is_last:
            needed = [slot for slot in table.slots if slot.is_valid and slot.restart_lsn < lsn]
            self.world.check(not needed, f"pruned through {lsn}, which {needed} need")
        await runtime.sleep(self.world.random.uniform(0, 0.1))
        return await super().prune_through(lsn)


class LeaderLife:
    """One leader from its epoch to its death, or to its finding out."""

    def __init__(self, epoch: int, wal: WatchedWal, process: Process) -> None:
        self.epoch = epoch
        self.wal = wal
        self.process = process
        self.primary: PrimaryReplication | None = None
        self.service: PrimaryService | None = None
        self.given: dict[tuple[str, str], object] = {}
        """By name and session: whom it was given to."""


class World:
    """What all actors share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random: random.Random = simulation.random
        self.twins = simulation.random_source("twins")
        """Says when two processes share a name, and when two leaders an epoch."""
        self.objects = Watched(simulation)
        self.network = EchoingStore(
            self.objects,
            Faults.swarm(simulation.random_source("rates")),
            simulation.random_source("faults"),
            echo=self.random.choice((0.0, 0.0, 0.3)),
            echo_after_s=300.0,
            record=simulation.record,
            spawn=simulation.spawn,
        )
        self.accepted_lsn = 0
        self.archived_lsn = 0
        self.epochs = 0
        self.leaders: list[LeaderLife] = []
        self.best_durable: dict[str, int] = {}
        """The most that each replica ever had on its disk."""
        self.quiet = False
        """Nothing more is produced."""
        self.over = False
        self.config = ReplicationConfig(
            retention=RetentionLimits(max_lag_lsn=MAX_LAG_LSN, idle_timeout_s=3600.0),
            slot_write_interval_s=self.random.choice((0.5, 5.0)),
            soft_lag_lsn=None,
        )

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)

    def register(self) -> SlotRegister:
        """The slots, over a connection of one's own."""
        return SlotRegister(Store(self.network, policy=IMPATIENT), STREAM, 0, STREAM_ID)

    def new_wal(self) -> WatchedWal:
        """A disk: that of a dead leader, or an empty one, which begins after the archive."""
        held = [life.wal for life in self.leaders if life.process.alive]
        free = [life.wal for life in self.leaders if life.wal not in held]
        if free and self.random.random() < 0.6:
            return free[-1]
        return WatchedWal(self, first_lsn=self.archived_lsn + 1)

    def has(self, lsn: int) -> Sequence[str]:
        """The replicas that ever had this record on their disks."""
        return [name for name, durable in self.best_durable.items() if durable >= lsn]

    async def idle(self, most_s: float) -> None:
        """Let time pass."""
        await runtime.sleep(self.random.random() ** 3 * most_s)

    def calm(self) -> None:
        """No more faults."""
        self.network.calm = True
