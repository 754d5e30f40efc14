"""A log on a real disk whose writer is killed again and again, when the machine chooses.

A warm process (`python -m tests.log.killer`) forks the writers of a round: forking takes
milliseconds where starting an interpreter takes most of a second. A writer opens the log, appends
from threads and tasks at once, seals, prunes and tends it, and is killed with SIGKILL; the next one
opens what it left, and may be killed while it does.

Only what a writer noted after an append returned is believed: line by line, in a file of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Final, NoReturn

import pyarrow as pa

from headwater.log import Spool, SpoolConfig
from tests.log.given import everything, values, wait
from tests.warm_process import serve, warm_process

LIVES: Final = 4
LIFE_MAX_S: Final = 0.12
THREADS: Final = 2
TASKS: Final = 2
KEPT: Final = 200
"""So many of the last records are not pruned."""


# A writer, in a process of its own


class Writer:
    """Appends until it is killed, and notes what it was told."""

    def __init__(self, root: str, life: int, seed: int, *, boasts: bool) -> None:
        random = Random(f"{seed}/{life}")
        self._notes = os.open(f"{root}/notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._life = life
        self._random = random
        self._boasts = boasts
        config = SpoolConfig(
            sync=random.choice(("always", "always", 0.01, "none")),
            segment_bytes=random.choice((2_000, 20_000, 1 << 20)),
            group_bytes=random.choice((300, 1 << 20)),
        )
        self._spool = Spool.open(f"{root}/log", config=config)

    def run(self) -> None:
        """Never returns."""
        for name in range(THREADS):
            threading.Thread(target=self._append, args=(name,), daemon=True).start()
        threading.Thread(target=self._tend, daemon=True).start()
        asyncio.run(self._append_in_tasks())

    def _append(self, name: int) -> None:
        number = 0
        while True:
            self._before(name, number)
            found = wait(self._spool.append(self._records(name, number), term=1))
            self._note(f"has {found.first_lsn} {found.last_lsn} {self._life} {name} {number}")
            number += 1

    async def _append_in_tasks(self) -> None:
        async def appending(name: int) -> None:
            number = 0
            while True:
                self._before(name, number)
                found = await self._spool.append(self._records(name, number), term=1)
                self._note(f"has {found.first_lsn} {found.last_lsn} {self._life} {name} {number}")
                number += 1

        await asyncio.gather(*(appending(THREADS + number) for number in range(TASKS)))

    def _before(self, name: int, number: int) -> None:
        if self._boasts:
            lsn = self._spool.current_lsn() + 1
            self._note(f"has {lsn} {lsn} {self._life} {name} {number}")

    def _tend(self) -> None:
        while True:
            time.sleep(0.002)
            what = self._random.random()
            if what < 0.3:
                floor_lsn = max(0, self._spool.current_lsn() - KEPT)
                self._note(f"floor {floor_lsn}")
                wait(self._spool.prune_through(floor_lsn))
            elif what < 0.5:
                wait(self._spool.seal())
            else:
                wait(self._spool.tend())

    def _records(self, name: int, number: int) -> pa.RecordBatch:
        return values(*(value_of(self._life, name, number),) * (1 + number % 3))

    def _note(self, line: str) -> None:
        os.write(self._notes, line.encode() + b"\n")


def value_of(life: int, name: int, number: int) -> bytes:
    """What a writer appends."""
    return b"%d/%d/%d " % (life, name, number) + b"." * (number * 37 % 400)


# The warm process


def _forked(root: str, life: int, seed: int, *, boasts: bool) -> int:
    pid = os.fork()
    if not pid:
        _live(root, life, seed, boasts=boasts)
    return pid


def _live(root: str, life: int, seed: int, *, boasts: bool) -> NoReturn:
    try:
        Writer(root, life, seed, boasts=boasts).run()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _round(root: str, seed: int, *, boasts: bool) -> None:
    random = Random(f"{seed}/kills")
    for life in range(LIVES):
        pid = _forked(root, life, seed, boasts=boasts)
        time.sleep(random.uniform(0.005, LIFE_MAX_S))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            raise AssertionError("a writer ended by itself; its error stands above")


# The caller's side


def check(root: Path) -> int:
    """Everything that was acknowledged, and not pruned, is there; how many records that were."""
    acknowledged: dict[int, bytes] = {}
    floor_lsn = 0
    for line in (root / "notes").read_text().splitlines() if (root / "notes").exists() else []:
        what, *numbers = line.split(" ")
        if what == "floor":
            floor_lsn = max(floor_lsn, int(numbers[0]))
            continue
        first, last, life, name, number = map(int, numbers)
        acknowledged |= dict.fromkeys(range(first, last + 1), value_of(life, name, number))
    spool = Spool.open(str(root / "log"))
    try:
        found = everything(spool)
        assert list(found) == list(range(spool.oldest_lsn(), spool.current_lsn() + 1)), "a gap"
        assert spool.oldest_lsn() <= floor_lsn + 1, "pruned more than was asked for"
        for lsn, value in acknowledged.items():
            kept = lsn < spool.oldest_lsn() or found.get(lsn) == value
            assert kept, f"LSN {lsn} is lost, or another: {found.get(lsn)!r}, not {value!r}"
    finally:
        wait(spool.close())
    return len(acknowledged)


def kill_round(seed: int, *, boasts: bool = False) -> int:
    """One round; how many records were acknowledged. Raises when a promise was broken, and keeps
    what it left. A writer that `boasts` notes what it has before it has it."""
    root = Path(tempfile.mkdtemp(prefix="headwater-log-kill-"))
    try:
        warm_process("tests.log.killer").run(root, seed=seed, boasts=boasts)
        acknowledged = check(root)
    except BaseException as error:
        error.add_note(f"what the round left: {root} (seed {seed})")
        if boasts:
            shutil.rmtree(root)
        raise
    shutil.rmtree(root)
    return acknowledged


if __name__ == "__main__":
    serve(_round)
