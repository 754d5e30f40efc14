"""A copy of the log, record for record, in a spool of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from unittest import mock

import pyarrow as pa
import pytest

from headwater.core.errors import Damaged, NotFound, Refused, Trimmed, Unavailable
from headwater.log import (
    Group,
    LogCopies,
    LogCopy,
    ReplicaConfig,
    SpoolConfig,
    range_hash,
    record_hashes,
)
from headwater.log.replica.contract import Image
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import leader
from tests.log.replica.given import copied, is_prefix, reaches, rows, standby
from tests.store.scripted import virtual

NONE = pa.record_batch({"_value": pa.array([], pa.binary())})


async def copy(**config: object) -> LogCopy:
    kind = LogCopies(config=SpoolConfig(**config), disk=FaultyDisk())  # type: ignore[arg-type]
    made = await kind.begin("/copy", None)
    assert isinstance(made, LogCopy)
    return made


@virtual
async def test_a_folder_that_still_holds_a_log_is_not_begun_in() -> None:
    kind = LogCopies(disk=FaultyDisk())
    before = await kind.begin("/copy", None)
    await before.apply([rows(1, (b"k", 0, b"v"))], 1)
    await before.close()

    async def in_vain(self: LogCopies, path: str) -> None:
        """A disk that does not forget."""

    with mock.patch.object(LogCopies, "discard", in_vain), pytest.raises(Damaged, match="emptied"):
        await kind.begin("/copy", None)
    assert (await kind.begin("/copy", None)).applied_lsn == 0


@virtual
async def test_lost_ranges_other_columns_and_large_groups_are_copied_as_they_are() -> None:
    wal = MemoryWal()
    wal.append(3)
    wal.append_group(Group(1, 4, 9, NONE, lost="a batch could not be read"))
    wal.append_group(rows(10, (b"k", 0, b"v")))
    large = pa.record_batch({"_value": pa.array([b"x" * 1000] * 200, pa.binary())})
    wal.append_group(Group(1, 11, 210, large))
    one = await leader(wal=wal)
    replica = await standby(one.service, FaultyDisk())
    await reaches(replica, 210)
    assert await is_prefix(replica, wal)
    lost = [group for group in await copied(replica) if group.lost is not None]
    assert [(group.first_lsn, group.last_lsn, group.lost) for group in lost] == [
        (4, 9, "a batch could not be read")
    ]
    assert replica.metrics.records_lost == 6
    await replica.close()


@virtual
async def test_groups_of_one_pull_share_a_write_and_a_sync() -> None:
    made = await copy()
    wal = MemoryWal()
    groups = [wal.append(2) for _ in range(50)]
    before = made.spool.metrics.syncs
    await made.apply(groups, 100)
    assert made.spool.metrics.syncs == before + 1
    assert range_hash(list(await made.spool.read_since(0))) == range_hash(groups)
    await made.close()


@virtual
async def test_hashes_of_what_was_pruned_are_not_known() -> None:
    made = await copy()
    wal = MemoryWal()
    groups = [wal.append(4) for _ in range(3)]
    await made.apply(groups, 12)
    await made.spool.prune_through(5)
    expected = [hashed for group in groups for hashed in record_hashes(group).to_pylist()]
    assert (await made.hashes(3, 10)).to_pylist() == [None, None, None, *expected[5:10]]
    await made.spool.prune_through(12)
    assert (await made.hashes(11, 12)).to_pylist() == [None, expected[11]], "the last one stays"
    await made.close()


@virtual
async def test_a_copy_that_syncs_now_and_then_syncs_when_it_must() -> None:
    made = await copy(sync=60.0)
    await made.apply([MemoryWal().append(3)], 3)
    assert (made.applied_lsn, made.durable_lsn, made.tend_within_s) == (3, 0, 60.0)
    await made.sync()
    assert (made.durable_lsn, made.tend_within_s) == (3, None)
    await made.close()


@virtual
async def test_it_begins_with_the_log_and_with_nothing_else() -> None:
    kind = LogCopies(disk=FaultyDisk())
    assert await kind.newest_image() is None
    with pytest.raises(Refused, match="cannot begin from"):
        await kind.begin("/copy", Image(3, "an image"))


class Breaking:
    """An archive of nine LSNs that is cut off after the fourth."""

    name = "the archive"

    async def available(self) -> range:
        return range(3, 12)

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        assert (first_lsn, end_lsn) == (3, 12)
        yield rows(3, (b"k", 0, b"v"), (b"k", 0, b"w"))
        raise Trimmed("LSN 5 is gone", floor_lsn=7)


@virtual
async def test_an_archive_that_breaks_off_leaves_nothing_open() -> None:
    disk = FaultyDisk()
    kind = LogCopies(disk=disk, archive=Breaking())
    image = await kind.newest_image()
    assert image == Image(11, "the archive")
    assert await kind.newest_image(below_lsn=6) == Image(5, "the archive")
    assert await kind.newest_image(below_lsn=2) is None
    with pytest.raises(Unavailable, match="LSN 5 is gone"):
        await kind.begin("/copy", image)
    with disk.lock("/copy/lock"):
        pass
    with pytest.raises(NotFound, match="no LSN 12"):
        await kind.begin("/copy", Image(12, "the archive"))


class Emptied:
    """An archive that gave up everything that it ever had."""

    name = "the archive"

    async def available(self) -> range:
        return range(603, 603)

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        assert (first_lsn, end_lsn) == (603, 603)
        none: list[Group] = []
        for group in none:
            yield group


@virtual
async def test_a_copy_that_began_without_a_record_knows_where_it_began_after_a_restart() -> None:
    kind = LogCopies(disk=FaultyDisk(), archive=Emptied())
    image = await kind.newest_image(below_lsn=603)
    assert image == Image(602, "the archive")
    copy = await kind.begin("/copy", image)
    assert copy.applied_lsn == 602
    await copy.close()
    again = await kind.open("/copy")
    assert again.applied_lsn == again.durable_lsn == 602
    await again.close()


def test_what_a_replica_cannot_be_told() -> None:
    for wrong in ({"wait_s": 0.0}, {"max_records": 0}, {"compare_records": -1}):
        with pytest.raises(Refused):
            ReplicaConfig(**wrong)
