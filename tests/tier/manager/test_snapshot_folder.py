"""Snapshots on a disk: whole or not at all, and never those of another log."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec
import pytest

from headwater.core.errors import NotSupported, Refused
from headwater.testing import FaultyDisk, explore
from headwater.tier.manager.snapshots import SnapshotFolder
from headwater.tier.snapshot import Snapshot, dump_all, encode_snapshot
from tests.tier.event_histories import applied
from tests.tier.given import started

LOG = uuid.UUID(int=0xBEEF)
FOLDER = "/metadata/tier"


def snapshot(count: int, partition: int = 1) -> Snapshot:
    """A snapshot after so many events."""
    history = [(started(number + 1, 0, 9), None) for number in range(count)]
    return Snapshot(LOG, 4, partition, count - 1, dump_all(applied(history)))


def opened(disk: FaultyDisk) -> SnapshotFolder:
    folder = SnapshotFolder(disk, FOLDER)
    folder.open()
    return folder


def put(disk: FaultyDisk, name: str, data: bytes) -> None:
    disk.unlink(f"{FOLDER}/{name}")
    with disk.create(f"{FOLDER}/{name}") as file:
        file.append(data)


def test_each_partition_has_a_snapshot_of_its_own() -> None:
    folder = opened(FaultyDisk())
    assert folder.read_all(LOG, 4)[0] == {}
    for one in (snapshot(3), snapshot(1, partition=2), snapshot(5)):
        folder.write(one)
    found, damaged = folder.read_all(LOG, 4)
    assert found == {1: snapshot(5), 2: snapshot(1, partition=2)}
    assert damaged == []
    folder.close()


def test_a_crash_at_any_point_leaves_the_old_snapshot_or_the_new_one() -> None:
    def body(disk: FaultyDisk, ack: Callable[[int], None]) -> None:
        folder = opened(disk)
        for count in (2, 5):
            folder.write(snapshot(count))
            ack(count)

    def check(disk: FaultyDisk, acknowledged: list[int]) -> None:
        found, damaged = SnapshotFolder(disk, FOLDER).read_all(LOG, 4)
        assert damaged == []
        there = found.get(1)
        allowed = [snapshot(5), snapshot(2), None][: 3 - len(acknowledged)]
        assert there in allowed

    explored = explore(body, check)
    assert explored.points > 10


def test_one_that_is_damaged_is_left_out_and_the_others_are_read() -> None:
    disk = FaultyDisk()
    folder = opened(disk)
    for partition in range(4):
        folder.write(snapshot(2, partition))
    whole = encode_snapshot(snapshot(2, 1))
    put(disk, "0000000001.snapshot", whole[:-1] + b"\xff")
    put(disk, "0000000002.snapshot", b"")
    found, damaged = folder.read_all(LOG, 4)
    assert sorted(found) == [0, 3]
    assert ["0000000001" in str(damaged[0]), "0000000002" in str(damaged[1])] == [
        True,
        True,
    ]


def test_one_that_was_renamed_is_not_taken_for_another_partition() -> None:
    disk = FaultyDisk()
    folder = opened(disk)
    put(disk, "0000000002.snapshot", encode_snapshot(snapshot(2, partition=1)))
    found, damaged = folder.read_all(LOG, 4)
    assert found == {}
    assert "is of metadata partition 1: it was renamed" in str(damaged[0])


def test_whatever_else_lies_in_the_folder_is_left_alone() -> None:
    disk = FaultyDisk()
    folder = opened(disk)
    put(disk, "0000000002.snapshot.new", b"half of one")
    put(disk, "notes.txt", b"mine")
    assert folder.read_all(LOG, 4)[0] == {}
    folder.write(snapshot(1, partition=2))
    assert list(folder.read_all(LOG, 4)[0]) == [2]
    assert ("notes.txt", False) in disk.list_dir(FOLDER)


def test_snapshots_of_another_log_are_refused() -> None:
    folder = opened(FaultyDisk())
    folder.write(snapshot(2))
    with pytest.raises(Refused, match=f"of the log {LOG}, not of {uuid.UUID(int=1)}"):
        folder.read_all(uuid.UUID(int=1), 4)


@pytest.mark.parametrize("count", [2, 3, 5, 50])
def test_another_number_of_partitions_is_refused(count: int) -> None:
    folder = opened(FaultyDisk())
    folder.write(snapshot(2))
    with pytest.raises(Refused, match=f"a log with 4 partitions, and now it has {count}"):
        folder.read_all(LOG, count)


def test_one_of_a_later_version_is_refused() -> None:
    disk = FaultyDisk()
    folder = opened(disk)
    put(disk, "0000000001.snapshot", b"HWT2" + encode_snapshot(snapshot(2))[4:])
    with pytest.raises(NotSupported, match="upgrade"):
        folder.read_all(LOG, 4)


def test_where_the_log_began_is_kept() -> None:
    folder = opened(FaultyDisk())
    began = msgspec.structs.replace(snapshot(5), first_offset=3)
    folder.write(began)
    assert folder.read_all(LOG, 4)[0] == {1: began}
