"""Somebody who reads a log across local log and tier, while both change.

The local log may be the newest leader's, which is pruned meanwhile, up to its end if all of it is
remote, and of which some cannot be read; or one that an older leader left behind, which ends below
what is remote.

- every LSN of a range that is in either comes once and in order, and is what was written;
- only what lies below the log start is called trimmed, and nothing that is remote is called damaged
  or not written yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from headwater.core import runtime
from headwater.core.errors import Damaged, OutcomeUnknown, Refused, Trimmed, Unavailable
from headwater.log.record.group import Group
from headwater.log.spool.frame import SpoolCorrupt
from headwater.store import Store
from headwater.tier.errors import NotReady
from headwater.tier.reader import LogReader
from headwater.tier.segments import ObjectCache, ObjectStorage
from tests.torture.tier_stack_world import ParquetWorld
from tests.torture.tier_world import LeaderLife, WornWal

RECORDS_AT_ONCE = 7


class Sipped(WornWal):
    """A log that is read a little at a time, so that it changes in between."""

    def __init__(self, wal: WornWal) -> None:
        self._wal = wal
        self.oldest_lsn, self.current_lsn = wal.oldest_lsn, wal.current_lsn  # type: ignore[method-assign]

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        most = min(max_records, RECORDS_AT_ONCE)
        return await self._wal.read_since(lsn, max_records=most, max_bytes=max_bytes)


class LogReaders:
    """One after the other."""

    def __init__(self, world: ParquetWorld) -> None:
        self.world = world
        self.chance = world.simulation.random_source("log readers")

    async def run(self) -> None:
        world = self.world
        metadata, register = await world.open_metadata(), world.log_start()
        storage = ObjectStorage(Store(world.objects), ObjectCache(1 << 20))
        while world.reading:
            await runtime.sleep(self.chance.random() ** 3 * 600.0)
            life = self._log_to_read()
            if life is None:
                continue
            try:
                lsns, tiered_lsn = self._range_of(life), self._tiered_lsn()
            except NotReady:
                continue
            wal = Sipped(life.wal)
            reader = LogReader(storage, metadata.refreshed_cover, register.first_lsn, wal)
            await self._read(reader, lsns, tiered_lsn)
        await world.close_metadata(metadata)

    def _log_to_read(self) -> LeaderLife | None:
        leaders = self.world.leaders
        newest = leaders[-1] if leaders else None
        if newest is None or newest.manager is None or not newest.manager.leads:
            return None
        is_behind = self.chance.random() < 0.4 and not self.world.one_disk
        return self.chance.choice(leaders) if is_behind else newest

    def _range_of(self, life: LeaderLife) -> range:
        """What is in the tier, or, with the newest log, in either."""
        newest, last_lsn = self.world.leaders[-1], self._tiered_lsn()
        assert newest.manager is not None
        if life is newest:
            last_lsn = max(last_lsn, life.wal.current_lsn())
        first_lsn = newest.manager.led.first_lsn
        return range(self.chance.randint(first_lsn, max(first_lsn, last_lsn)), last_lsn + 1)

    def _tiered_lsn(self) -> int:
        manager = self.world.leaders[-1].manager
        assert manager is not None
        return manager.led.tiered_lsn()

    async def _read(self, reader: LogReader, lsns: range, tiered_lsn: int) -> None:
        """`tiered_lsn`: through here the tier has everything before it begins."""
        world, at = self.world, lsns.start
        try:
            async with aclosing(reader.read(lsns.start, lsns.stop)) as groups:
                async for group in groups:
                    world.check(group.first_lsn == at, f"{group.first_lsn} came, and {at} is due")
                    wanted = [b"%d" % lsn for lsn in range(at, group.last_lsn + 1)]
                    world.check(group.records.column(0).to_pylist() == wanted, "other records")
                    at = group.last_lsn + 1
                    await runtime.sleep(self.chance.random() ** 4 * 300.0)
        except (Unavailable, OutcomeUnknown):
            return
        except Trimmed as trimmed:
            start_lsn = world.truth.log_start.first_lsn
            world.check(
                at < trimmed.floor_lsn <= start_lsn, f"{at}: {trimmed}, and not {start_lsn}"
            )
            return
        except (Damaged, Refused) as error:
            is_damaged = isinstance(error, SpoolCorrupt) and at > tiered_lsn
            given_up = world.deleting or at < world.truth.log_start.first_lsn
            world.check(is_damaged or given_up, f"{at} of {lsns}: {type(error).__name__}: {error}")
            return
        world.check(at >= lsns.stop, f"{at} of {lsns} was the last")
