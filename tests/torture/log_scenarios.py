"""The spool under flipped bits and power losses.

- A flipped bit anywhere is noticed or harmless: no wrong byte is read, and nothing is cut off
  without a word.
- A process that dies in the middle of a write, at any byte of any frame: everything before that
  frame is there, nothing of it is, and what is appended next is read and stays.
- A power loss, or a killed process, at any point: everything acknowledged is there, nothing else
  than what was appended is, and nothing is taken for corrupt.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
from collections.abc import Iterator
from random import Random

from headwater.core.errors import Conflict, Corrupt, DiskFailed, HeadwaterError
from headwater.log import Spool, SpoolConfig
from headwater.log.spool import frame
from headwater.testing import Scenario
from headwater.testing.disk import Crashed, CrashKind, FaultyDisk
from tests.log.given import contents, everything, numbered, opened, planted, wait

VARIANTS = 24
LIVES = 3
STEPS = 14
PAYLOAD_MAX_BYTES = 20_000
AT_ONCE_S, NEVER_S = 1e-9, 1e9
"""Intervals that are over, or not, whatever the clock says."""


@functools.cache
def _grown(variant: int) -> tuple[dict[str, bytes], dict[int, bytes], int]:
    """The files of some log, its records, and the LSN from which its end was not yet proven."""
    random = Random(variant)
    disk = FaultyDisk(seed=variant)
    config = SpoolConfig(segment_bytes=random.choice((800, 3000, 1 << 20)), group_bytes=200)
    spool = opened(disk, config=config)
    unproven = 1
    for _ in range(random.randint(1, 12)):
        unproven = spool.current_lsn() + 1
        wait(spool.append(numbered(unproven, random.randint(1, 5)), term=1))
        if random.random() < 0.2:
            wait(spool.prune_through(random.randint(1, spool.current_lsn())))
        if random.random() < 0.1:
            wait(spool.seal())
            unproven = spool.current_lsn() + 1
    if random.random() < 0.5:
        unproven = spool.current_lsn() + 1
        wait(spool.close())
    records = everything(spool)
    return contents(disk), records, unproven


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torn tails by the thousand are what is expected here."""
    logger = logging.getLogger("headwater.log.spool")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@_quiet()
def bitflip_history(seed: int) -> None:
    """One bit of one file of a log is another."""
    random = Random(seed)
    files, records, unproven = _grown(random.randrange(VARIANTS))
    sizes = {name: len(data) for name, data in files.items() if data}
    name = random.choices(list(sizes), list(sizes.values()))[0]
    bit = random.randrange(8 * sizes[name])
    damaged = bytearray(files[name])
    damaged[bit // 8] ^= 1 << bit % 8
    disk = planted({**files, name: bytes(damaged)})
    try:
        spool = opened(disk)
        found = everything(spool)
    except Corrupt:
        assert contents(disk)[name] == bytes(damaged), "what is corrupt was changed"
        return
    if spool.torn is None:
        assert found == records, f"bit {bit} of {name}: other records, and not a word"
        return
    # Only the end that nothing proves may look torn, and its loss is told.
    kept = {lsn: value for lsn, value in records.items() if lsn < spool.torn.first_lsn}
    assert found == kept, f"bit {bit} of {name}: other records than were told"
    assert spool.torn.first_lsn >= unproven, f"bit {bit} of {name}: proven records were cut off"


@_quiet()
def cuts_history(seed: int) -> None:
    """A generated log, cut at every byte of its last frame."""
    random = Random(seed)
    disk = FaultyDisk(seed=seed)
    spool = opened(disk)
    segment = f"{1:020d}.wal"
    marks = next(name for name in contents(disk) if name.endswith(".marks"))
    begin = before = 0
    for _ in range(1 + seed % 8):
        begin, before = len(contents(disk)[segment]), spool.current_lsn()
        size = random.choice((0, 0, 60))
        wait(spool.append(numbered(before + 1, random.randint(1, 5), size=size), term=1))
    data = contents(disk)[segment]
    for length in range(begin, len(data)):
        _check_cut({segment: data[:length], marks: b""}, before, is_torn=length > begin)


def _check_cut(files: dict[str, bytes], acknowledged: int, *, is_torn: bool) -> None:
    disk = planted(files)
    spool = opened(disk)
    assert list(everything(spool)) == list(range(1, acknowledged + 1))
    assert (spool.torn is not None) == is_torn
    wait(spool.append(numbered(acknowledged + 1, 1), term=1))
    disk.crash()
    again = opened(disk.after_crash(Random(acknowledged)))
    assert list(everything(again)) == list(range(1, acknowledged + 2))
    assert again.torn is None


class _Life:
    """One process that appends, prunes and seals until the disk is gone, and what it was told."""

    def __init__(self, random: Random, appended: dict[int, set[bytes]]) -> None:
        self.random = random
        self.appended = appended
        """Every value that was ever handed in for an LSN."""
        self.acknowledged: dict[int, bytes] = {}
        """What was promised: acknowledged, and synced where the one does not mean the other."""
        self.floor_lsn = 0
        self._written: dict[int, bytes] = {}

    def run(self, disk: FaultyDisk, config: SpoolConfig) -> None:
        with contextlib.suppress(Crashed, DiskFailed):
            spool = opened(disk, config=config)
            for _ in range(self.random.randint(1, STEPS)):
                self._step(spool, disk)
                self.acknowledged |= {
                    lsn: value for lsn, value in self._written.items() if lsn <= spool.synced_lsn
                }
            if self.random.random() < 0.3:
                wait(spool.close())
                self.acknowledged |= self._written

    def _step(self, spool: Spool, disk: FaultyDisk) -> None:
        kind = self.random.random()
        if kind < 0.75:
            self._append(spool, disk)
        elif kind < 0.85:
            floor = self.random.randint(0, spool.current_lsn())
            self.floor_lsn = max(self.floor_lsn, floor)
            wait(spool.prune_through(floor))
        elif kind < 0.92:
            wait(spool.seal())
        else:
            wait(spool.tend())

    def _append(self, spool: Spool, disk: FaultyDisk) -> None:
        first, count = spool.current_lsn() + 1, self.random.randint(1, 12)
        size = self.random.choice((0, 40, 700))
        if self.random.random() < 0.05:
            count, size = 1, 2 * PAYLOAD_MAX_BYTES
        records = numbered(first, count, size=size)
        given = dict(enumerate(records.column("_value").to_pylist(), first))
        for lsn, value in given.items():
            self.appended.setdefault(lsn, set()).add(value)
        if self.random.random() < 0.05:
            disk.fail_next(self.random.choice(("sync", "sync_dir")), errno.EIO)
        if self.random.random() < 0.05:
            disk.fail_next("append", errno.ENOSPC)
        if self.random.random() < 0.1:
            # Between the write and its sync, where most can be lost.
            disk.crash_at = disk.points + self.random.randint(1, 2)
        try:
            wait(spool.append(records, term=1, first_lsn=first))
        except (DiskFailed, Conflict):
            raise
        except HeadwaterError:
            return
        self._written |= given
        if spool.config.sync_always:
            self.acknowledged |= given


def power_loss_history(seed: int) -> None:
    """Several lives on one disk, each ended by a power loss or a kill at a point of its own.

    Frames have a limit that is met now and then: what is acknowledged beyond it could not be read.
    """
    with _quiet(), replaced(frame, "FRAME_PAYLOAD_MAX_BYTES", PAYLOAD_MAX_BYTES):
        _power_loss_history(seed)


def _power_loss_history(seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk(seed=seed, journaled=random.random() < 0.5)
    config = SpoolConfig(
        sync=random.choice(("always", "always", "none", AT_ONCE_S, NEVER_S)),
        segment_bytes=random.choice((600, 4000, 1 << 20)),
        group_bytes=random.choice((60, 60, 1 << 20)),
    )
    appended: dict[int, set[bytes]] = {}
    acknowledged: dict[int, bytes] = {}
    floor_lsn = 0
    for _ in range(LIVES):
        disk.crash_at = disk.points + random.randint(0, 5 * STEPS)
        life = _Life(random, appended)
        life.floor_lsn = floor_lsn
        life.run(disk, config)
        acknowledged |= life.acknowledged
        floor_lsn = max(floor_lsn, life.floor_lsn)
        disk.crash()
        disk = disk.after_crash(
            random, CrashKind.PROCESS_KILL if random.random() < 0.25 else CrashKind.POWER_LOSS
        )
        found = _check(disk, appended, acknowledged, floor_lsn)
        # Whatever was found is promised from then on: others have seen it.
        acknowledged |= found


def _check(
    disk: FaultyDisk,
    appended: dict[int, set[bytes]],
    acknowledged: dict[int, bytes],
    floor_lsn: int,
) -> dict[int, bytes]:
    spool = opened(disk)
    found = everything(spool)
    assert list(found) == list(range(spool.oldest_lsn(), spool.current_lsn() + 1)), "a gap"
    assert spool.oldest_lsn() <= floor_lsn + 1, "pruned more than was asked for"
    for lsn, value in acknowledged.items():
        assert lsn < spool.oldest_lsn() or found.get(lsn) == value, f"LSN {lsn} is lost or another"
    for lsn, value in found.items():
        assert value in appended[lsn], f"LSN {lsn} was never appended so"
    wait(spool.close())
    return found


@contextlib.contextmanager
def replaced(owner: object, name: str, other: object) -> Iterator[None]:
    """A class or a module with something in it replaced, as by a mistake."""
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


BITFLIPS = Scenario("log", "bitflips", bitflip_history, rounds=100_000, sample=400)
POWER_LOSS = Scenario("log", "power-loss", power_loss_history, rounds=1_000, sample=60)
CUTS = Scenario("log", "cuts", cuts_history, rounds=1_000, sample=3)
SCENARIOS = [BITFLIPS, CUTS, POWER_LOSS]
