"""A replica: it pulls the log from its slot, applies it in order, and says how far it is.

    replica = await Replica.open("standby", "/var/lib/headwater/standby", source, LogCopies())
    replica.start()
    async with replica.reading(Bookmark(7, 120)) as copy: ...
    await replica.close()

Always holds:

- a copy is a prefix of the log: what does not follow is not applied, nothing is before the copy's
  last records were found in the leader's log (see `proof`), and what comes again is compared; with
  another record under one LSN the replica stops, and says so after a restart, too;
- an answer of a leader that was overtaken changes nothing, also after a restart;
- what is acknowledged as durable is there after a crash;
- a copy that is made anew takes the place of the old one at once, when it shows at least as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Final, Self

from headwater.buffer.layout import check_group_name
from headwater.core import limits, runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.waiters import Waiters
from headwater.log.primary import Acknowledgement, Pulled, ReplicationSource
from headwater.log.record import Group
from headwater.log.replica.bookmark import Bookmark
from headwater.log.replica.bootstrapper import Beginning, Bootstrapper
from headwater.log.replica.config import ReplicaConfig
from headwater.log.replica.errors import GoElsewhere, LogGap, UnusableImage
from headwater.log.replica.holdings import Holdings
from headwater.log.replica.intake import Intake, take_in
from headwater.log.replica.kept import KeptFile
from headwater.log.replica.link import Link
from headwater.log.replica.metrics import ReplicaMetrics
from headwater.log.replica.proof import UNPROVEN, Proof, compare
from headwater.log.replica.pull_ahead import PullAhead
from headwater.log.replica.retries import Retries
from headwater.log.replica.status import ReplicaPhase, ReplicaStatus
from headwater.log.replica.target import Target, Targets
from headwater.log.slots import FullRebootstrap

_log: Final = logging.getLogger("headwater")
_TRY_AGAIN: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict, LogGap)
"""After these a replica registers again; everything else ends it."""


class Replica:
    """One copy of one partition's log. For one event loop."""

    def __init__(
        self,
        name: str,
        source: ReplicationSource,
        targets: Targets,
        config: ReplicaConfig,
        holdings: Holdings,
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
        self._link = Link(name, source, config, self._heed)
        self._ahead = PullAhead(lambda since_lsn: self._link.pull(since_lsn, wait_s=0.0))
        self._targets = targets
        self._bootstrapper = Bootstrapper(self._link, targets, config, self.metrics, self._apply)
        self._phase = ReplicaPhase.STOPPED
        self._current_lsn = 0
        self._proof = UNPROVEN
        self._proven_term = 0
        """Of the last leader in whose log the copy was found again since it was opened."""
        self._apply_errors_before = 0
        self._retries = Retries(self.metrics, cap_s=config.retry_cap_s)
        self._running: asyncio.Task[None] | None = None

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

        What a restart cannot trust is an error here: a damaged copy, or a damaged `replica.json`,
        without which a leader that was overtaken would be listened to again.
        """
        check_group_name(name)
        chosen = config or ReplicaConfig()
        if chosen.filtered:
            targets.check_filtered()
        files = KeptFile(disk or OsDisk(), os.path.abspath(path))  # noqa: ASYNC240  it asks no disk
        await runtime.run_blocking(files.folder.make)
        with contextlib.ExitStack() as held:
            lock = files.folder.disk.lock(files.folder.file("lock"))
            await runtime.run_blocking(held.enter_context, lock)
            holdings = await Holdings.load(files, targets)
            return cls(name, source, targets, chosen, holdings, held.pop_all())

    # What it is, and how far

    @property
    def target(self) -> Target:
        """The copy that counts at this moment; `reading` keeps it."""
        return self._holdings.target

    @property
    def term(self) -> int:
        """The highest term that it has heard of, and keeps."""
        return self._holdings.term

    @property
    def bookmark(self) -> Bookmark:
        """What whoever reads here now has seen."""
        return Bookmark(self._proven_term, self.target.applied_lsn)

    @property
    def is_diverged(self) -> bool:
        """Whether the copy holds other records than the log."""
        return self._holdings.diverged_lsn is not None

    @property
    def phase(self) -> ReplicaPhase:
        """What it is doing."""
        return ReplicaPhase.DIVERGED if self.is_diverged else self._phase

    def status(self) -> ReplicaStatus:
        """Everything at a glance."""
        applied_lsn = self.target.applied_lsn
        return ReplicaStatus(
            self.name,
            self.phase,
            self.term,
            applied_lsn,
            self.target.durable_lsn,
            max(0, self._current_lsn - applied_lsn),
            self.problem,
        )

    # Reading

    @contextlib.asynccontextmanager
    async def reading(
        self, bookmark: Bookmark | None = None, *, timeout_s: float | None = None
    ) -> AsyncIterator[Target]:
        """The copy, once it shows what the bookmark says; it stays until the block is left.

        `GoElsewhere` if it does not in time, or at once if it will not for long. Without a bookmark
        the copy is given as it is, also while a fresh one is made.
        """
        if bookmark is not None:
            await self.wait_for(bookmark, timeout_s=timeout_s)
        # Nothing is awaited in between: the copy that was found good is the one that is held.
        async with self._holdings.copy.reading() as target:
            yield target

    async def wait_for(self, bookmark: Bookmark, *, timeout_s: float | None = None) -> Bookmark:
        """Wait until the copy shows what the bookmark says; how far it is then."""
        timeout_s = self.config.read_timeout_s if timeout_s is None else timeout_s
        began_s = runtime.monotonic_s()
        await self.readers.wait(
            lambda: self._shows(bookmark) or self._why_not(bookmark) is not None,
            timeout_s=timeout_s,
        )
        if self._shows(bookmark):
            self.metrics.reads_waited_seconds.observe(runtime.monotonic_s() - began_s)
            return self.bookmark
        self.metrics.reads_sent_elsewhere += 1
        why = self._why_not(bookmark) or f"and is not at {bookmark} after {timeout_s:.1f} s"
        raise GoElsewhere.of(self.name, why, bookmark=bookmark, at=self.bookmark)

    def _shows(self, bookmark: Bookmark) -> bool:
        if self.is_diverged or self.target.applied_lsn < bookmark.lsn:
            return False
        if bookmark.term <= self._proven_term:
            return True
        # Of a leader with whose log it is still compared, what was found to be the same.
        is_found = self._proof.proven_lsn(bookmark.lsn) >= bookmark.lsn
        return self.term >= bookmark.term and is_found

    def _why_not(self, bookmark: Bookmark) -> str | None:
        """Why waiting is no use; None if it may be."""
        if self.is_diverged:
            return f"and holds other records than the log from LSN {self._holdings.diverged_lsn} on"
        if self._phase is ReplicaPhase.STOPPED:
            return "and stopped"
        if self._phase is ReplicaPhase.BOOTSTRAPPING and not self._shows(bookmark):
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
        """Follow the log until `close`."""
        self._holdings.check_open(self.name)
        if self._running is None or self._running.done():
            self._set_phase(ReplicaPhase.CONNECTING)
            self._running = runtime.spawn(self._run_beside(), name=f"replica-{self.name}")

    async def run(self) -> None:
        """Follow the log for ever; raises what no further try would mend, as `Diverged`."""
        try:
            while True:
                self._set_phase(ReplicaPhase.CONNECTING)
                try:
                    await self._follow()
                except _TRY_AGAIN as error:
                    await self._pause_after(error)
        except Exception as error:
            self.problem = str(error) if isinstance(error, HeadwaterError) else repr(error)
            _log.error("replica %s stopped at %s: %s", self.name, self.bookmark, self.problem)
            raise
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    async def close(self) -> None:
        """Stop, and give everything back. The copy stays for the next time."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        self._set_phase(ReplicaPhase.STOPPED)
        with self._held:
            await self._holdings.close()

    async def rebootstrap(self) -> None:
        """Make a copy anew and put it in the place of this one, whatever is wrong with this one.

        For a replica that is not running: one that diverged, above all. `Refused` says why there is
        nothing to begin from; the copy is as it was then.
        """
        if self._phase is not ReplicaPhase.STOPPED:
            raise Refused(f"replica {self.name!r} is running: close it before it is made anew")
        self._holdings.check_open(self.name)
        try:
            await self._register()
            await self._bootstrap(anew=True)
            self.problem = None
        finally:
            self._set_phase(ReplicaPhase.STOPPED)

    async def _run_beside(self) -> None:
        # Why it stopped is logged, told by `problem`, and by whatever is asked of the leader.
        with contextlib.suppress(HeadwaterError):
            await self.run()

    async def _follow(self) -> None:
        self._holdings.check_sound(self.name)
        if await self._register():
            await self._bootstrap()
        try:
            while True:
                pulled = await self._pull()
                if pulled.rebootstrap is None:
                    self._ahead.begin(pulled)
                    await self._take(pulled)
                elif await self._register():
                    await self._bootstrap()
                await self.target.tend()
                await self._acknowledge()
                self._retries.failures = 0
                self.problem = self._proof.waits_for(pulled.current_lsn)
        finally:
            await self._ahead.drop()

    async def _register(self) -> bool:
        """Come, or come back; whether a fresh copy is wanted."""
        told = await self._link.register(self.target.applied_lsn)
        self.metrics.registrations += 1
        self._current_lsn = told.current_lsn
        self._proof = UNPROVEN
        if isinstance(told.resume, FullRebootstrap):
            return True
        self._begin_proof(self.target.applied_lsn)
        if (problem := self._proof.waits_for(told.current_lsn)) is not None:
            _log.warning("replica %s: %s", self.name, problem)
        self._set_phase(ReplicaPhase.FOLLOWING)
        return False

    def _begin_proof(self, through_lsn: int) -> None:
        compare_records = self.config.compare_records
        self._note_proof(Proof.of_copy(self._link.told, through_lsn, compare_records))

    def _note_proof(self, proof: Proof) -> None:
        self._proof = proof
        if proof.is_done:
            self._proven_term = self.term
        self.readers.tell()

    async def _pull(self) -> Pulled:
        """What follows the copy; before that, its last records once more, to compare them."""
        since_lsn = self._proof.proven_lsn(self.target.applied_lsn)
        began_s = runtime.monotonic_s()
        due_s = self.target.tend_within_s
        wait_s = self.config.wait_s if due_s is None else min(self.config.wait_s, due_s)
        pulled = await self._ahead.take(since_lsn)
        if pulled is None:
            pulled = await self._link.pull(since_lsn, wait_s=wait_s)
        self.metrics.pulls += 1
        self._current_lsn = pulled.current_lsn
        if pulled.through_lsn <= since_lsn and pulled.rebootstrap is None:
            self.metrics.empty_pulls += 1
            early_s = limits.REPLICA_PULL_GAP_S - (runtime.monotonic_s() - began_s)
            if early_s > 0:
                await runtime.sleep(early_s)
        return pulled

    async def _take(self, pulled: Pulled) -> None:
        applied_lsn = self.target.applied_lsn
        intake = take_in(
            pulled,
            applied_lsn,
            filtered=self.config.filtered,
            compared_lsn=self._proof.proven_lsn(applied_lsn),
        )
        for group in intake.again:
            await self._compare(group)
        if not self._proof.is_done:
            self._note_proof(self._proof.reached(pulled.through_lsn))
        await self._apply(self.target, intake)
        self.readers.tell()

    async def _apply(self, target: Target, intake: Intake) -> None:
        """Bring a copy to where an answer ends."""
        if intake.through_lsn <= target.applied_lsn:
            return
        began_s = runtime.monotonic_s()
        try:
            await target.apply(intake.fresh, intake.through_lsn)
        except HeadwaterError:
            self.metrics.apply_errors += 1
            raise
        self.metrics.apply_seconds.observe(runtime.monotonic_s() - began_s)
        self.metrics.count_applied(intake.fresh)

    async def _compare(self, group: Group) -> None:
        """Records that are there already: the same, or the copy is not one."""
        own, differs_lsn = await compare(self.target, group)
        if differs_lsn is not None:
            await self._diverge(differs_lsn)
        self.metrics.count_compared(own)

    async def _diverge(self, lsn: int) -> None:
        self.metrics.divergences += 1
        await self._holdings.mark_diverged(lsn)
        self.readers.tell()
        with contextlib.suppress(*_TRY_AGAIN):
            await self._acknowledge()
        self._holdings.check_sound(self.name)

    async def _acknowledge(self) -> None:
        """Tell what changed; and from time to time that nothing did."""
        progress = Acknowledgement(
            self._proof.proven_lsn(self.target.applied_lsn),
            self._proof.proven_lsn(self.target.durable_lsn),
            apply_error_count=self.metrics.apply_errors - self._apply_errors_before,
            divergence_count=int(self.is_diverged),
        )
        self.metrics.acknowledgements += await self._link.acknowledge(progress)

    async def _pause_after(self, error: HeadwaterError) -> None:
        self.problem = str(error)
        if self._retries.count(error):
            _log.warning("replica %s at %s tries again: %s", self.name, self.bookmark, error)
        self._set_phase(ReplicaPhase.CONNECTING)
        await self._retries.pause()

    # Beginning anew

    async def _bootstrap(self, *, anew: bool = False) -> None:
        self._set_phase(ReplicaPhase.BOOTSTRAPPING)
        if self._holdings.diverged_lsn is not None:
            # Before the source says where its log ends: what others write of it later is good.
            await self._targets.distrust(self._holdings.diverged_lsn)
        is_good = not self.is_diverged and self._link.reaches(self.target.applied_lsn)
        beginning = await self._begin(self.target if is_good and not anew else None)
        if beginning.kind == "own":
            self._begin_proof(self.target.applied_lsn)
        await self._link.complete_bootstrap(self._proof.proven_lsn(self.target.durable_lsn))
        self.metrics.bootstraps[beginning.kind] += 1
        self._set_phase(ReplicaPhase.FOLLOWING)

    async def _begin(self, own: Target | None) -> Beginning:
        """Go on with what is there, or make a copy from the best beginning that turns out good."""
        for tries_left in reversed(range(limits.REPLICA_BEGINNINGS_MAX)):
            try:
                beginning = await self._bootstrapper.begin(own)
                if beginning.kind != "own":
                    await self._replace_copy(beginning)
                return beginning
            except Refused:
                self.metrics.bootstraps_refused += 1
                raise
            except UnusableImage as error:
                if not tries_left:
                    raise
                _log.warning("replica %s tries an older beginning: %s", self.name, error)
        raise Bug("a replica tried nothing to begin from")

    async def _replace_copy(self, beginning: Beginning) -> None:
        async def begin(path: str) -> Target:
            return await self._bootstrapper.open(path, beginning)

        async def fill(fresh: Target) -> None:
            # Whoever read here must not find less afterwards, unless that was wrong.
            shown_lsn = 0 if self.is_diverged else self.target.applied_lsn
            through_lsn = max(beginning.current_lsn, shown_lsn)
            await self._bootstrapper.fill(fresh, beginning, through_lsn)

        await self._holdings.replace(begin, fill)
        self._apply_errors_before = self.metrics.apply_errors
        # What it began from was compared, and the rest is this leader's own.
        self._note_proof(Proof(self.target.applied_lsn, self.target.applied_lsn))

    # Inside

    async def _heed(self, term: int) -> None:
        if await self._holdings.heed(term):
            self.readers.tell()

    def _set_phase(self, state: ReplicaPhase) -> None:
        self._phase = state
        self.readers.tell()
