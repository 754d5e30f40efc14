"""Producers and a consumer on a local store, killed and restarted until everything has arrived.

A warm process (`python -m tests.buffer.killer`) forks the actors of a round: forking takes
milliseconds where starting an interpreter takes most of a second. Two producers number their
records and resume by the metadata of their predecessors; the consumer keeps a ledger and collects
garbage at once, but for what the required group holds back: what the ledger does not have. Whoever
is killed is started again.

Only two things are believed afterwards: the lines that a producer wrote after an acceptance, and
the ledger. What is killed when follows from the seed and from the machine's own time.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final

from headwater.buffer import Consumer, Producer, create_stream
from headwater.buffer.group import GroupRegister
from headwater.cli.demo_orders import accepted_numbers
from headwater.core import runtime
from headwater.store import open_store
from tests.buffer.ledger import count, delivered_numbers, last_line
from tests.warm_process import serve, warm_process

PRODUCERS: Final = ("left", "right")
GROUP: Final = "ledger"
"""The required group: its position is never ahead of the ledger."""
RECORDS: Final = 300
CALL_RECORDS: Final = 5
KILLS_MAX: Final = 6
LINES_BEFORE_KILL_MAX: Final = 4
KILL_WITHIN_S: Final = 0.15
ROUND_MAX_S: Final = 60.0


# The actors, each in a process of its own


async def produce(root: str, producer_id: str, *, resumes: bool) -> None:
    """Produce what the predecessors left to do."""
    report = os.open(f"{root}/{producer_id}.report", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with (
        open_store(f"file://{root}/store") as store,
        Producer(store, "s", producer_id=producer_id, linger_ms=3) as producer,
    ):
        done = int(producer.resumed[0].metadata or b"0") if resumes else 0
        os.write(report, f"resumed {done}\n".encode())
        while done < RECORDS:
            first, last = done + 1, min(done + CALL_RECORDS, RECORDS)
            values = [f"{producer_id}:{number}".encode() for number in range(first, last + 1)]
            handle = await producer.produce(values, metadata=b"%d" % last)
            done = last
            if last % (8 * CALL_RECORDS) == 0 or last == RECORDS:
                await handle
                os.write(report, f"accepted {first} {last}\n".encode())


async def consume(root: str) -> None:
    """Deliver until the ledger holds everything."""
    path = Path(f"{root}/ledger")
    before = last_line(path)
    through = before.through if before else 0
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with (
        open_store(f"file://{root}/store") as store,
        await Consumer.open(
            store,
            "s",
            group="g",
            last_acked_sequence=before.sequence if before else None,
            gc_interval_s=0.02,
        ) as consumer,
    ):
        register = GroupRegister(consumer.stream, GROUP)
        await register.begin("query", {0: 1})
        epoch = await register.start_query("ledger", is_new=True)
        await register.take(0, epoch)
        while through < len(PRODUCERS) * RECORDS:
            batch = await consumer.next_batch()
            if batch is None:
                await runtime.sleep(0.005)
                continue
            values = [value.decode() for value in batch.entries if value is not None]
            through += len(values)
            line = json.dumps({"sequence": batch.sequence, "through": through, "values": values})
            os.write(ledger, line.encode() + b"\n")
            await consumer.ack_through(batch.sequence)
            await register.acknowledge(0, epoch, batch.last_lsn + 1)


async def _create(root: str) -> None:
    async with open_store(f"file://{root}/store") as store:
        await create_stream(store, "s", retention_ms=0, required_group=GROUP)


# The warm process


def _forked(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        asyncio.run(work())
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


class Kills:
    """When somebody is killed: so many lines of the producers after the last time, and a moment.

    By time alone they would all fall before a busy machine has the first record accepted.
    """

    def __init__(self, root: str, random: Random) -> None:
        self._reports = [Path(root, f"{name}.report") for name in PRODUCERS]
        self._random = random
        self._left = random.randint(1, KILLS_MAX)
        self._draw()

    def _draw(self) -> None:
        self._after_lines = self._lines() + self._random.randint(0, LINES_BEFORE_KILL_MAX)
        self._wait_s = self._random.uniform(0, KILL_WITHIN_S)
        self._at_s: float | None = None

    def _lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self._reports if path.exists())

    def due(self) -> bool:
        """Whether somebody is to be killed at this moment."""
        if not self._left:
            return False
        if self._at_s is None and self._lines() >= self._after_lines:
            self._at_s = time.monotonic() + self._wait_s
        if self._at_s is None or time.monotonic() < self._at_s:
            return False
        self._left -= 1
        self._draw()
        return True


def _round(root: str, seed: int, *, resumes: bool) -> None:
    """Run the actors, and kill some of them on the way."""
    random = Random(f"{seed}/kills")
    _, status = os.waitpid(_forked(lambda: _create(root)), 0)
    if status:
        raise AssertionError("the stream was not created")
    works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        name: lambda name=name: produce(root, name, resumes=resumes)  # type: ignore[misc]
        for name in PRODUCERS
    }
    works["consumer"] = lambda: consume(root)
    alive = {_forked(work): name for name, work in works.items()}
    kills = Kills(root, random)
    until_s = time.monotonic() + ROUND_MAX_S
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            name = alive.pop(pid)
            if os.WIFSIGNALED(status):
                alive[_forked(works[name])] = name
            elif status:
                raise AssertionError(f"{name} failed; its error stands above")
            continue
        if kills.due():
            os.kill(random.choice(sorted(alive)), signal.SIGKILL)
        if time.monotonic() > until_s:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise AssertionError(f"{sorted(alive.values())} are not done after {ROUND_MAX_S} s")
        time.sleep(0.001)


# The caller's side


def check(root: Path) -> None:
    """Everything accepted was delivered once and in order."""
    lines = (root / "ledger").read_text().splitlines()
    batches = [json.loads(line) for line in lines]
    assert [batch["sequence"] for batch in batches] == list(range(len(batches)))
    delivered = delivered_numbers(value for batch in batches for value in batch["values"])
    for name in PRODUCERS:
        accepted = accepted_numbers((root / f"{name}.report").read_text())
        found = count(accepted, delivered[name])
        assert found.is_exact, f"{name}: {found}"
        assert delivered[name] == list(range(1, RECORDS + 1)), f"{name}: not everything arrived"


def kill_round(seed: int, *, resumes: bool = True) -> None:
    """One round. Raises when a promise was broken, and keeps what it left."""
    root = Path(tempfile.mkdtemp(prefix="headwater-buffer-kill-"))
    try:
        warm_process("tests.buffer.killer").run(root, seed=seed, resumes=resumes)
        check(root)
    except BaseException as error:
        error.add_note(f"what the round left: {root} (seed {seed})")
        if not resumes:
            shutil.rmtree(root)
        raise
    shutil.rmtree(root)


if __name__ == "__main__":
    serve(_round)
