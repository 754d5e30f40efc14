"""A replica: it pulls the log from its slot, applies it in order, and reports how far it is.

    replica = await Replica.open("standby", "/var/lib/headwater/standby", source, LogCopies())
    replica.start()
    async with replica.reading(Bookmark(7, 120)) as copy: ...
    await replica.close()

Always holds:

- a copy is a prefix of the log: what does not follow is not applied, nothing is applied before the
  copy's last records were found in the leader's log (see `link`), and what comes again is compared;
  with another record under one LSN the replica stops, and reports it after a restart, too;
- an answer of an overtaken leader changes nothing, also after a restart;
- what is acknowledged as durable is there after a crash;
- a fresh copy replaces the old one at once, when it shows at least as much;
- a replica does one thing at a time, following or rebootstrapping, and nothing after `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, Self

from headwater.buffer.layout import check_group_name
from headwater.core import limits, runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Fenced, HeadwaterError, Refused, Unavailable
from headwater.core.retry import retry_pause_s
from headwater.core.runtime import Waiters
from headwater.log.primary.service import ReplicationSource
from headwater.log.replica.contract import (
    Bookmark,
    GoElsewhere,
    Image,
    LogGap,
    ReplicaConfig,
    ReplicaPhase,
    ReplicaStatus,
    Target,
    Targets,
    UnusableImage,
)
from headwater.log.replica.copies import ReplicaCopies, SavedStateFile
from headwater.log.replica.follower import RETRIABLE, Bootstrapper, BootstrapStart, LogFollower
from headwater.log.replica.link import LeaderSession, ReplicaMetrics


class Retries:
    """Counts failures in a row, and pauses between tries."""

    def __init__(self, metrics: ReplicaMetrics, *, cap_s: float) -> None:
        self.failures = 0
        self._metrics = metrics
        self._cap_s = cap_s

    def count(self, error: HeadwaterError) -> bool:
        """Count a failure; whether it is the first in a row."""
        self.failures += 1
        self._metrics.retries[type(error).__name__] += 1
        self._metrics.fenced += isinstance(error, Fenced)
        self._metrics.gaps += isinstance(error, LogGap)
        return self.failures == 1

    async def pause(self) -> None:
        """Wait before the next try; each pause is longer and jittered."""
        base_s = limits.REPLICA_RETRY_BASE_S
        await runtime.sleep(retry_pause_s(self.failures - 1, base_s=base_s, cap_s=self._cap_s))


class TaskKind(StrEnum):
    """What a replica can do."""

    FOLLOW = "follow"
    REBOOTSTRAP = "rebootstrap"


_BUSY_REASONS: Final = {
    TaskKind.FOLLOW: "is running: close it, open it again, and rebootstrap it before start()",
    TaskKind.REBOOTSTRAP: "is rebootstrapping: wait until that is done",
}


class SingleTask:
    """The one task of a replica."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work = TaskKind.FOLLOW
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def under_way(self) -> TaskKind | None:
        """What the task does; None if there is none."""
        return None if self._task is None or self._task.done() else self._work

    def begin(
        self, work: TaskKind, do: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Start this as a task; `Refused` if the replica is busy or closed."""
        if self._is_closed:
            raise Refused(f"replica {self._name!r} is closed: open it again")
        if (busy := self.under_way) is not None:
            raise Refused(f"replica {self._name!r} {_BUSY_REASONS[busy]}")
        self._work = work
        self._task = runtime.spawn(do(), name=f"replica-{self._name}")
        return self._task

    async def do(self, work: TaskKind, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do this; cancelling the caller cancels it."""
        task = self.begin(work, do)
        try:
            await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if self._is_closed and own is not None and not own.cancelling():
                raise Unavailable(f"replica {self._name!r} was closed meanwhile") from None
            raise

    async def close(self) -> None:
        """Cancel the task, and start no other."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))


_log: Final = logging.getLogger("headwater")


class Replica:
    """One copy of one partition's log. For one event loop."""

    def __init__(
        self,
        name: str,
        source: ReplicationSource,
        targets: Targets,
        config: ReplicaConfig,
        holdings: ReplicaCopies,
        held: contextlib.ExitStack,
    ) -> None:
        """Use `Replica.open`."""
        self.name = name
        self.config = config
        self.metrics = ReplicaMetrics()
        self.problem: str | None = None
        self.readers = Waiters()
        self._holdings = holdings
        self._held = held
        self._link = LeaderSession(name, source, config, self._check_term)
        self._targets = targets
        self._follower = LogFollower(
            name, self._link, holdings, config, self.metrics, self.readers.notify
        )
        self._bootstrapper = Bootstrapper(
            self._link, targets, config, self.metrics, self._follower.apply
        )
        self._phase = ReplicaPhase.STOPPED
        self._retries = Retries(self.metrics, cap_s=config.retry_cap_s)
        self._work = SingleTask(name)
        self._closing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        name: str,
        path: str,
        source: ReplicationSource,
        targets: Targets,
        *,
        config: ReplicaConfig | None = None,
        disk: Disk | None = None,
    ) -> Replica:
        """Open what the folder holds, or begin with nothing. One process at a time has it open.

        `Refused` if the folder holds copies of another kind, or a log itself. What a restart cannot
        trust is an error here: a damaged copy, or a damaged `replica.json`,
        without which a leader that was overtaken would be listened to again.
        """
        check_group_name(name)
        chosen = config or ReplicaConfig()
        if chosen.filtered:
            targets.check_filtered()
        files = SavedStateFile(disk or OsDisk(), os.path.abspath(path))  # noqa: ASYNC240  it asks no disk
        await runtime.run_blocking(files.folder.make)
        with contextlib.ExitStack() as held:
            lock = files.folder.disk.lock(files.folder.file("lock"))
            await runtime.run_blocking(held.enter_context, lock)
            holdings = await ReplicaCopies.load(files, targets)
            return cls(name, source, targets, chosen, holdings, held.pop_all())

    # What it is, and how far

    @property
    def target(self) -> Target:
        """The copy that counts at this moment; `reading` keeps it."""
        return self._holdings.target

    @property
    def term(self) -> int:
        """The highest term of any leader so far; it is stored."""
        return self._holdings.term

    @property
    def bookmark(self) -> Bookmark:
        """What a reader of the copy has seen now."""
        return self._follower.bookmark

    @property
    def is_diverged(self) -> bool:
        """Whether the copy holds other records than the log."""
        return self._holdings.diverged_lsn is not None

    @property
    def phase(self) -> ReplicaPhase:
        """The current phase."""
        return ReplicaPhase.DIVERGED if self.is_diverged else self._phase

    def status(self) -> ReplicaStatus:
        """The status at this moment."""
        applied_lsn = self.target.applied_lsn
        return ReplicaStatus(
            self.name,
            self.phase,
            self.term,
            applied_lsn,
            self.target.durable_lsn,
            max(0, self._follower.current_lsn - applied_lsn),
            self.problem,
        )

    # Reading

    @contextlib.asynccontextmanager
    async def reading(
        self, bookmark: Bookmark | None = None, *, timeout_s: float | None = None
    ) -> AsyncIterator[Target]:
        """The copy, once it shows the bookmark; it stays open until the block is left.

        `GoElsewhere` if it does not in time, or at once if waiting is of no use. Without a bookmark
        this is the copy as it is, also while a fresh one is made.
        """
        if bookmark is not None:
            await self.wait_for(bookmark, timeout_s=timeout_s)
        # Nothing is awaited in between: the copy that was found good is the one that is held.
        async with self._holdings.copy.reading() as target:
            yield target

    async def wait_for(self, bookmark: Bookmark, *, timeout_s: float | None = None) -> Bookmark:
        """Wait until the copy shows what the bookmark says; how far it is then."""
        timeout_s = self.config.read_timeout_s if timeout_s is None else timeout_s
        if not timeout_s >= 0:
            raise Refused(f"timeout_s is {timeout_s}: it must be 0 or more")
        began_s = runtime.monotonic_s()
        await self.readers.wait(
            lambda: self._follower.shows(bookmark) or self._why_not(bookmark) is not None,
            timeout_s=timeout_s,
        )
        if self._follower.shows(bookmark):
            self.metrics.reads_waited_seconds.observe(runtime.monotonic_s() - began_s)
            own = self.bookmark
            return own if own.term else bookmark
        self.metrics.reads_sent_elsewhere += 1
        why = self._why_not(bookmark) or f"and is not at {bookmark} after {timeout_s:.1f} s"
        raise GoElsewhere.of(self.name, why, bookmark=bookmark, at=self.bookmark)

    def _why_not(self, bookmark: Bookmark) -> str | None:
        """Why waiting is of no use; None if it may be."""
        if self.is_diverged:
            return f"and holds other records than the log from LSN {self._holdings.diverged_lsn} on"
        if self._phase is ReplicaPhase.STOPPED:
            return "and stopped"
        if self._phase is ReplicaPhase.BOOTSTRAPPING and not self._follower.shows(bookmark):
            return "and makes a fresh copy"
        return None

    # Running

    async def __aenter__(self) -> Self:
        """Following; the block's end closes it."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        await self.close()

    def start(self) -> None:
        """Follow the log until `close`; nothing if it does already."""
        if self._work.under_way is not TaskKind.FOLLOW:
            self._work.begin(TaskKind.FOLLOW, self._run).add_done_callback(_retrieve_exception)
            self._set_phase(ReplicaPhase.CONNECTING)

    async def run(self) -> None:
        """Follow the log; raises errors that no further try would resolve, such as `Diverged`."""
        await self._work.do(TaskKind.FOLLOW, self._run)

    async def close(self) -> None:
        """Stop, and give everything back. The copy stays for the next time."""
        async with self._closing:
            await self._work.close()
            self._set_phase(ReplicaPhase.STOPPED)
            with self._held:
                await self._holdings.close()

    async def rebootstrap(self) -> None:
        """Replace the copy by a fresh one, whatever is wrong with it.

        For a replica that is not running, above all one that diverged. `Refused` if there is
        nothing to begin from; the copy is unchanged then.
        """
        await self._work.do(TaskKind.REBOOTSTRAP, self._rebootstrap)

    async def _run(self) -> None:
        try:
            while True:
                self._set_phase(ReplicaPhase.CONNECTING)
                try:
                    await self._follow()
                except RETRIABLE as error:
                    await self._pause_after(error)
        except Exception as error:
            self.problem = str(error) if isinstance(error, HeadwaterError) else repr(error)
            _log.error("replica %s stopped at %s: %s", self.name, self.bookmark, self.problem)
            raise
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    async def _rebootstrap(self) -> None:
        try:
            await self._follower.register()
            await self._bootstrap(is_forced=True)
            self.problem = None
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    async def _follow(self) -> None:
        self._holdings.check_sound(self.name)
        while True:
            if await self._follower.register():
                await self._bootstrap()
            self._set_phase(ReplicaPhase.FOLLOWING)
            await self._follower.follow(self._note_round)

    def _note_round(self, waits_for: str | None) -> None:
        self._retries.failures = 0
        self.problem = waits_for

    async def _pause_after(self, error: HeadwaterError) -> None:
        self.problem = str(error)
        if self._retries.count(error):
            _log.warning("replica %s at %s tries again: %s", self.name, self.bookmark, error)
        self._set_phase(ReplicaPhase.CONNECTING)
        await self._retries.pause()

    # Bootstrapping

    async def _bootstrap(self, *, is_forced: bool = False) -> None:
        self._set_phase(ReplicaPhase.BOOTSTRAPPING)
        if self._holdings.diverged_lsn is not None:
            # Before the source says where its log ends: what others write of it later is good.
            await self._targets.distrust(self._holdings.diverged_lsn)
        is_good = not self.is_diverged and self._link.reaches(self.target.applied_lsn)
        beginning = await self._begin(self.target if is_good and not is_forced else None)
        if beginning.kind == "own":
            self._follower.begin_verification()
        await self._follower.complete_bootstrap()
        self.metrics.bootstraps[beginning.kind] += 1

    async def _begin(self, own: Target | None) -> BootstrapStart:
        """Keep the present copy, or make one from the best start that turns out usable."""
        unusable: dict[Image | None, UnusableImage] = {}
        while True:
            try:
                beginning = await self._bootstrapper.begin(own)
            except Refused:
                self.metrics.bootstraps_refused += 1
                raise
            if beginning.image in unusable:
                raise unusable[beginning.image]
            try:
                if beginning.kind != "own":
                    await self._replace_copy(beginning)
                return beginning
            except UnusableImage as error:
                _log.warning("replica %s tries another beginning: %s", self.name, error)
                unusable[beginning.image] = error

    async def _replace_copy(self, beginning: BootstrapStart) -> None:
        async def begin(path: str) -> Target:
            return await self._bootstrapper.open(path, beginning)

        async def fill(fresh: Target) -> None:
            # Readers must not find less afterwards, unless what they saw was wrong.
            shown_lsn = 0 if self.is_diverged else self.target.applied_lsn
            through_lsn = max(beginning.current_lsn, shown_lsn)
            await self._bootstrapper.fill(fresh, beginning, through_lsn)

        await self._holdings.replace(begin, fill, self._follower.mark_verified)

    # Inside

    async def _check_term(self, term: int) -> None:
        if await self._holdings.check_term(term):
            self.readers.notify()

    def _set_phase(self, state: ReplicaPhase) -> None:
        self._phase = state
        self.readers.notify()


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    # The reason is logged and in `problem`: keep asyncio from logging that it was not retrieved.
    if not task.cancelled():
        task.exception()
