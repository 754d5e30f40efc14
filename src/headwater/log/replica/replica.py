"""A replica: it pulls the log from its slot, applies it in order, and reports how far it is.

    replica = await Replica.open("standby", "/var/lib/headwater/standby", source, LogCopies())
    replica.start()
    async with replica.reading(Bookmark(7, 120)) as copy: ...
    await replica.close()

Always holds:

- a copy is a prefix of the log: records that do not follow are not applied, nothing is applied
  before the copy's last records were found in the leader's log (see `link`), and repeated records
  are compared. If a record differs, the replica stops, and stays stopped after a restart;
- a replica does one thing at a time, following or rebootstrapping, and nothing after `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
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
    LogGap,
    ReplicaConfig,
    ReplicaPhase,
    ReplicaStatus,
    Target,
    Targets,
)
from headwater.log.replica.copies import ReplicaCopies, SavedStateFile
from headwater.log.replica.follower import RETRIABLE, LogFollower
from headwater.log.replica.session import LeaderSession, ReplicaMetrics

_log: Final = logging.getLogger("headwater")


class Replica:
    """One copy of one partition's log. For one event loop."""

    def __init__(
        self,
        name: str,
        source: ReplicationSource,
        targets: Targets,
        config: ReplicaConfig,
        copies: ReplicaCopies,
        lock: contextlib.ExitStack,
    ) -> None:
        """Use `Replica.open`."""
        self.name = name
        self.config = config
        self.metrics = ReplicaMetrics().register(replica=name)
        self.problem: str | None = None
        self.readers = Waiters()
        self._copies = copies
        self._lock = lock
        self._link = LeaderSession(name, source, config, self._check_term)
        self._follower = LogFollower(
            name, self._link, targets, copies, config, self.metrics, self.readers.notify
        )
        self._phase = ReplicaPhase.STOPPED
        self._failures = 0
        """In a row."""
        self._task: asyncio.Task[None] | None = None
        self._is_following = False
        """Whether the task follows; otherwise it rebootstraps."""
        self._is_closed = False
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
        """Open the copies in a folder, or begin with an empty one. For one process at a time.

        `Refused` if the folder holds copies of another kind, or a log itself. A damaged copy is an
        error, and so is a damaged `replica.json`: without its term, the replica would accept an
        overtaken leader.
        """
        check_group_name(name)
        chosen = config or ReplicaConfig()
        if chosen.filtered:
            targets.check_filtered()
        files = SavedStateFile(disk or OsDisk(), os.path.abspath(path))  # noqa: ASYNC240  it asks no disk
        await runtime.run_blocking(files.folder.make)
        with contextlib.ExitStack() as stack:
            lock = files.folder.disk.lock(files.folder.file("lock"))
            await runtime.run_blocking(stack.enter_context, lock)
            copies = await ReplicaCopies.load(files, targets)
            return cls(name, source, targets, chosen, copies, stack.pop_all())

    # What it is, and how far

    @property
    def target(self) -> Target:
        """The current copy; use `reading` to keep it open."""
        return self._copies.target

    @property
    def term(self) -> int:
        return self._copies.term

    @property
    def bookmark(self) -> Bookmark:
        return self._follower.bookmark

    @property
    def is_diverged(self) -> bool:
        return self._copies.diverged_lsn is not None

    @property
    def phase(self) -> ReplicaPhase:
        return ReplicaPhase.DIVERGED if self.is_diverged else self._phase

    def status(self) -> ReplicaStatus:
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

        `GoElsewhere` if the copy does not show it in time, or at once if waiting is of no use.
        Without a bookmark, returns the copy as it is, also while a fresh one is made.
        """
        if bookmark is not None:
            await self.wait_for(bookmark, timeout_s=timeout_s)
        # Nothing is awaited in between: the copy that shows the bookmark is the one that is read.
        async with self._copies.copy.reading() as target:
            yield target

    async def wait_for(self, bookmark: Bookmark, *, timeout_s: float | None = None) -> Bookmark:
        """Wait until the copy shows the bookmark; returns how far the copy is then."""
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
            return self.bookmark if self.bookmark.term else bookmark
        self.metrics.reads_sent_elsewhere += 1
        why = self._why_not(bookmark) or f"and is not at {bookmark} after {timeout_s:.1f} s"
        raise GoElsewhere(self.name, why, bookmark=bookmark, at=self.bookmark)

    def _why_not(self, bookmark: Bookmark) -> str | None:
        """Why waiting is of no use; None if it may be."""
        if self.is_diverged:
            return f"and holds other records than the log from LSN {self._copies.diverged_lsn} on"
        if self._phase is ReplicaPhase.STOPPED:
            return "and stopped"
        if self._phase is ReplicaPhase.BOOTSTRAPPING and not self._follower.shows(bookmark):
            return "and makes a fresh copy"
        return None

    # Running

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        if not (self._is_busy and self._is_following):
            following = self._begin(self._follow, is_following=True)
            following.add_done_callback(runtime.retrieve_error)  # it is logged, and in `problem`
            self._set_phase(ReplicaPhase.CONNECTING)

    async def run(self) -> None:
        """Follow the log; raises errors that a retry would not resolve, such as `Diverged`."""
        await self._wait_for_task(self._begin(self._follow, is_following=True))

    async def rebootstrap(self) -> None:
        """Replace the copy by a fresh one, whatever is wrong with it.

        For a replica that is not running, such as one that diverged. `Refused` if there is nothing
        to begin from; the copy is then unchanged.
        """
        await self._wait_for_task(self._begin(self._rebootstrap, is_following=False))

    async def close(self) -> None:
        async with self._closing:
            self._is_closed = True
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))
            self._set_phase(ReplicaPhase.STOPPED)
            with self._lock:
                await self._copies.close()

    @property
    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, is_following: bool
    ) -> asyncio.Task[None]:
        """Start the one task of the replica; `Refused` if the replica is busy or closed."""
        if self._is_closed:
            raise Refused(f"replica {self.name!r} is closed: open it again")
        if self._is_busy and self._is_following:
            raise Refused(
                f"replica {self.name!r} is running: close it, open it again, and rebootstrap it "
                "before start()"
            )
        if self._is_busy:
            raise Refused(f"replica {self.name!r} is rebootstrapping: wait until that is done")
        self._is_following = is_following
        self._task = runtime.spawn(work(), name=f"replica-{self.name}")
        return self._task

    async def _wait_for_task(self, task: asyncio.Task[None]) -> None:
        """Cancelling the caller cancels the task."""
        try:
            await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_closed and caller is not None and not caller.cancelling():
                raise Unavailable(f"replica {self.name!r} was closed meanwhile") from None
            raise

    async def _follow(self) -> None:
        try:
            while True:
                self._set_phase(ReplicaPhase.CONNECTING)
                try:
                    await self._follow_leader()
                except RETRIABLE as error:
                    await self._pause_after(error)
        except Exception as error:
            self.problem = str(error) if isinstance(error, HeadwaterError) else repr(error)
            _log.error("replica %s stopped at %s: %s", self.name, self.bookmark, self.problem)
            raise
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    async def _follow_leader(self) -> None:
        self._copies.check_sound(self.name)
        while True:
            if await self._follower.register():
                self._set_phase(ReplicaPhase.BOOTSTRAPPING)
                await self._follower.bootstrap()
            self._set_phase(ReplicaPhase.FOLLOWING)
            await self._follower.follow(self._note_round)

    async def _rebootstrap(self) -> None:
        try:
            await self._follower.register()
            self._set_phase(ReplicaPhase.BOOTSTRAPPING)
            await self._follower.bootstrap(is_forced=True)
            self.problem = None
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    def _note_round(self, waits_for: str | None) -> None:
        self._failures = 0
        self.problem = waits_for

    async def _pause_after(self, error: HeadwaterError) -> None:
        """Count a failure and wait before the next try: each pause is longer, and jittered."""
        self.problem = str(error)
        self.metrics.retries[type(error).__name__] += 1
        self.metrics.fenced += isinstance(error, Fenced)
        self.metrics.gaps += isinstance(error, LogGap)
        if not self._failures:
            _log.warning("replica %s at %s tries again: %s", self.name, self.bookmark, error)
        self._set_phase(ReplicaPhase.CONNECTING)
        base_s, cap_s = limits.REPLICA_RETRY_BASE_S, self.config.retry_cap_s
        pause_s = retry_pause_s(self._failures, base_s=base_s, cap_s=cap_s)
        self._failures += 1
        await runtime.sleep(pause_s)

    async def _check_term(self, term: int) -> None:
        if await self._copies.check_term(term):
            self.readers.notify()

    def _set_phase(self, phase: ReplicaPhase) -> None:
        self._phase = phase
        self.readers.notify()
