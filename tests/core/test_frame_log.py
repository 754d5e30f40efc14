"""A log of frames on a disk that loses power."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import AlreadyExists
from headwater.core.frame import Ending, encode_frame, scan
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore
from tests.core.frames import SALT


class Log:
    """The smallest log: appends, syncs now and then, and recovers by what the scan says."""

    def __init__(self, disk: FaultyDisk) -> None:
        try:
            self._file = disk.create("/log")
            disk.sync_dir("/")
        except AlreadyExists:
            self._file = disk.open("/log", write=True)
        self.recovered = scan(self._file.read_at(0, self._file.stat().size_bytes), salt=SALT)
        self.end = self.recovered.valid_bytes
        self.number = self.synced = self.recovered.last_number
        if self.recovered.ending is Ending.TORN:
            self._file.truncate(self.end)
        # Also when clean: frames that a killed process left are read here, and not yet safe.
        self._file.sync()

    def append(self, payload: bytes) -> None:
        frame = encode_frame(
            payload, number=self.number + 1, synced=self.synced, offset=self.end, salt=SALT
        )
        self._file.append(frame)
        self.number += 1
        self.end += len(frame)

    def sync(self) -> None:
        self._file.sync()
        self.synced = self.number


def run_log(seed: int, disk: FaultyDisk, ack: Callable[[int], None]) -> None:
    random, log = Random(seed), Log(disk)
    for number in range(1, 15):
        log.append(bytes([number]) * random.choice((1, 30, 700, 1500)))
        if random.random() < 0.4:
            log.sync()
            ack(log.synced)


def check_log(disk: FaultyDisk, acknowledged: list[int]) -> None:
    safe = max(acknowledged, default=0)
    log = Log(disk)
    assert log.recovered.ending is not Ending.CORRUPT
    assert log.recovered.last_number >= safe
    for frame in log.recovered.frames:
        assert set(frame.payload) == {frame.number}
    log.append(b"after")
    torn = Log(disk.after_crash(Random(0)))
    assert torn.recovered.ending is not Ending.CORRUPT
    log.sync()
    again = Log(disk.after_crash(Random(0)))
    assert again.recovered.ending is Ending.CLEAN
    assert again.recovered.last_number == log.number


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_is_never_corruption_and_never_loses_a_synced_frame(seed: int) -> None:
    done = explore(lambda disk, ack: run_log(seed, disk, ack), check_log, seed=seed, states=10)

    assert done.states > 300


def test_a_disk_that_skips_its_syncs_is_noticed_by_the_log() -> None:
    with pytest.raises(AssertionError):
        explore(
            lambda disk, ack: run_log(0, disk, ack),
            check_log,
            make_disk=lambda *, seed, crash_at=None, fail_at=None: FaultyDisk(
                seed=seed, crash_at=crash_at, skip_sync=True
            ),
        )


@given(st.lists(st.sampled_from([10, 400, 600, 3000]), min_size=2, max_size=10), st.data())
@settings(max_examples=60)
def test_unsynced_frames_that_survive_out_of_order_are_a_torn_tail(
    sizes: list[int], data: st.DataObject
) -> None:
    disk = FaultyDisk()
    log = Log(disk)
    safe = data.draw(st.integers(0, len(sizes)))
    for number, size in enumerate(sizes, start=1):
        log.append(bytes([number]) * size)
        if number == safe:
            log.sync()
    seed = data.draw(st.integers(0, 10_000))

    with disk.after_crash(Random(seed)).open("/log") as file:
        found = scan(file.read_at(0, 1 << 20), salt=SALT, synced=safe)

    assert found.ending is not Ending.CORRUPT
    assert found.last_number >= safe
    assert [len(frame.payload) for frame in found.frames] == sizes[: len(found.frames)]
