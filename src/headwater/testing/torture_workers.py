"""Who runs the rounds: this process, or a crew of others.

Always holds: a worker that dies takes no round with it. Its rounds are given out again one by
one, until the seed that kills is known by itself.
"""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Final, NamedTuple

_STOP_WAIT_S: Final = 5.0
_TEXT_MAX_CHARS: Final = 12_000

Run = Callable[[int], object]
Failures = list[tuple[int, str]]
"""Seeds, each with one line that names its error and then the whole traceback."""


class Chunk(NamedTuple):
    """Rounds given out together: `rounds` seeds from `first` on."""

    first: int
    rounds: int


class Done(NamedTuple):
    """What came of a chunk: failing seeds with what they raised, and how long it took."""

    chunk: Chunk
    failures: Failures
    took_s: float


def run_chunk(run: Run, chunk: Chunk) -> Done:
    """Run every seed of a chunk; a failure does not stop the others."""
    began_s = time.monotonic()
    failures: Failures = []
    # What a simulated store does wrong is no news here, and would hide the progress.
    logger = logging.getLogger("headwater")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for seed in range(chunk.first, chunk.first + chunk.rounds):
            try:
                run(seed)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                headline = traceback.format_exception_only(error)[0].strip()
                text = traceback.format_exc()[-_TEXT_MAX_CHARS:]
                failures.append((seed, f"{headline}\n{text}"))
    finally:
        logger.setLevel(level)
    return Done(chunk, failures, time.monotonic() - began_s)


class Inline:
    """Runs the rounds here, one after the other."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def work(self, next_chunk: Callable[[], Chunk | None]) -> Iterator[Done]:
        """Every chunk that `next_chunk` gives, done."""
        while (chunk := next_chunk()) is not None:
            yield run_chunk(self._run, chunk)

    def close(self) -> None:
        """Nothing to end."""


class Crew:
    """Runs the rounds in other processes, which start from scratch and so share no thread."""

    def __init__(self, run: Run, size: int, context: SpawnContext) -> None:
        self._run = run
        self._context = context
        self._members: dict[Connection, SpawnProcess] = {}
        self._busy: dict[Connection, Chunk] = {}
        self._again: deque[Chunk] = deque()
        for _ in range(size):
            self._hire()

    def work(self, next_chunk: Callable[[], Chunk | None]) -> Iterator[Done]:
        """Every chunk that `next_chunk` gives, done, in the order in which they end."""
        while True:
            for member in [m for m in self._members if m not in self._busy]:
                chunk = self._again.popleft() if self._again else next_chunk()
                if chunk is not None:
                    member.send(chunk)
                    self._busy[member] = chunk
            if not self._busy:
                return
            for ready in wait(list(self._busy)):
                assert isinstance(ready, Connection)
                done = self._hear(ready)
                if done is not None:
                    yield done

    def close(self) -> None:
        """End the crew."""
        for member, process in self._members.items():
            process.terminate()
            member.close()
        for process in self._members.values():
            process.join(_STOP_WAIT_S)
        self._members.clear()
        self._busy.clear()

    def _hire(self) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there, self._run), daemon=True)
        process.start()
        there.close()
        self._members[here] = process

    def _hear(self, member: Connection) -> Done | None:
        chunk = self._busy.pop(member)
        try:
            done = member.recv()
        except (EOFError, ConnectionError):
            return self._bury(member, chunk)
        assert isinstance(done, Done)
        return done

    def _bury(self, member: Connection, chunk: Chunk) -> Done | None:
        process = self._members.pop(member)
        member.close()
        process.join(_STOP_WAIT_S)
        self._hire()
        if chunk.rounds == 1:
            text = f"the process that ran it died with exit code {process.exitcode}"
            return Done(chunk, [(chunk.first, text)], 0.0)
        self._again.extend(Chunk(chunk.first + n, 1) for n in range(chunk.rounds))
        return None


def _serve(there: Connection, run: Run) -> None:
    # An interrupt is for whoever gives out the work; it ends its crew itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            chunk = there.recv()
        except EOFError:
            return
        there.send(run_chunk(run, chunk))
