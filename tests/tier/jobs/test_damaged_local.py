"""A local log that cannot be read is a cache that is: the tier goes on, and the log is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headwater.log import Spool, SpoolConfig
from headwater.log.record.group import Group
from headwater.log.spool.frame import SpoolCorrupt
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_state import FileNode
from headwater.tier.errors import LocalLogDamaged
from tests.tier.jobs.given import Place, in_time
from tests.tier.jobs.sealed_wal import SealedWal


class Damaged(SealedWal):
    """A log of which some LSNs cannot be read."""

    damaged: range = range(0)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        if lsn + 1 in self.damaged:
            raise SpoolCorrupt("a flipped bit", path="log", offset=7, lsn=lsn + 1)
        if lsn + 1 < self.damaged.start:
            max_records = min(max_records, self.damaged.start - lsn - 1)
        return await super().read_since(lsn, max_records=max_records, max_bytes=max_bytes)


@pytest.mark.parametrize("damaged", [range(6, 8), range(9, 11)], ids=["at its start", "within it"])
def test_what_is_whole_around_the_damage_is_tiered_and_the_damage_is_told_by_its_type(
    damaged: range,
) -> None:
    async def main() -> None:
        wal = Damaged()
        led = Place().lead(wal=wal, merge_below_bytes=0).write(5, 5, 5, 5)
        wal.damaged = damaged
        for _ in range(3):
            await led.manager.run_once()
            before = [range(6, damaged.start)] if damaged.start > 6 else []
            assert led.covered() == [range(1, 6), *before, range(11, 16), range(16, 21)]
            assert led.manager.metrics.copied_segments == len(led.covered()), "each of them once"
            assert list(led.manager.problems) == ["look for losses"]
            problem = led.manager.problems["look for losses"]
            assert isinstance(problem, LocalLogDamaged)
            assert problem.lsns == range(damaged.start, 11)
            assert led.led.tiered_lsn() == damaged.start - 1 == wal.oldest_lsn() - 1
        led.write(5)
        await led.manager.run_once()
        assert led.covered()[-1] == range(21, 26)

        wal.damaged = range(0)  # repaired
        await led.round()
        assert (led.led.tiered_lsn(), wal.oldest_lsn()) == (25, 26)

    in_time(main)


def test_a_leader_that_takes_over_a_damaged_log_drops_what_the_tier_has_of_it() -> None:
    """Damage below what is remote is nobody's loss, and must not keep the disk full."""

    async def main() -> None:
        place = Place()
        before = Damaged()
        await place.lead(1, wal=before, local_retention_bytes=1 << 30).write(5, 5, 5).round()
        before.damaged = range(7, 9)
        led = await place.lead(2, wal=before, merge_below_bytes=0).round()
        assert (led.led.tiered_lsn(), before.oldest_lsn()) == (15, 16)

    in_time(main)


def test_what_cannot_be_read_here_is_not_dropped_for_a_remote_copy_that_is_damaged_too() -> None:
    async def main() -> None:
        place = Place()
        wal = Damaged()
        first = await place.lead(1, wal=wal, local_retention_bytes=1 << 30).write(5, 5, 5).round()
        wal.damaged = range(7, 9)
        await first.damage(1, b"rotten")
        led = place.lead(2, wal=wal, merge_below_bytes=0)
        await led.manager.run_once()
        assert wal.oldest_lsn() == 6

    in_time(main)


def records(first: int, last: int) -> pa.RecordBatch:
    return pa.record_batch({"_value": [b"%d" % lsn for lsn in range(first, last + 1)]})


def test_a_flipped_bit_in_a_spool_is_got_over_by_discarding_it_and_writing_it_again() -> None:
    """As a leader does whose records are in the queue until they are in the tier."""

    async def main() -> None:
        place, disk = Place(), FaultyDisk()
        config = SpoolConfig(tail_bytes=1)
        spool = Spool.open("/log", config=config, disk=disk)
        for first in range(1, 500, 100):
            await spool.append(records(first, first + 99), term=1)
            await spool.seal()
        path = spool.segment_path(spool.segments()[2])
        node = disk._tree.find(path)
        assert isinstance(node, FileNode)
        node.live[len(node.live) // 2] ^= 1

        led = place.lead(wal=spool, merge_below_bytes=0)  # type: ignore[arg-type]
        await led.manager.run_once()
        problem = led.manager.problems["look for losses"]
        assert isinstance(problem, LocalLogDamaged)
        assert isinstance(problem.__cause__, SpoolCorrupt)
        assert led.led.tiered_lsn() == 200 == problem.lsns.start - 1
        assert led.covered()[-2:] == [range(301, 401), range(401, 501)]

        await spool.close()
        Spool.discard("/log", disk=disk)
        spool = Spool.open("/log", first_lsn=led.led.tiered_lsn() + 1, config=config, disk=disk)
        await spool.append(records(201, 650), term=2)
        await spool.seal()
        again = await place.lead(2, wal=spool, merge_below_bytes=0).round()  # type: ignore[arg-type]
        assert (again.led.tiered_lsn(), spool.oldest_lsn()) == (650, 651)

    in_time(main)
