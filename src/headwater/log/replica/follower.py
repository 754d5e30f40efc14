"""Following one leader: come, be found in its log, pull, apply, acknowledge.

Always holds: nothing is taken after what was not found in the leader's log, and nothing beyond that
is acknowledged; another record under one LSN is kept on disk before anybody is told of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import (
    Conflict,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.primary import Acknowledgement, Pulled
from headwater.log.record import Group
from headwater.log.replica.bookmark import Bookmark
from headwater.log.replica.config import ReplicaConfig
from headwater.log.replica.errors import LogGap
from headwater.log.replica.holdings import Holdings
from headwater.log.replica.intake import Intake, take_in
from headwater.log.replica.link import Link
from headwater.log.replica.metrics import ReplicaMetrics
from headwater.log.replica.proof import UNPROVEN, Proof, compare
from headwater.log.replica.pull_ahead import PullAhead
from headwater.log.replica.target import Target
from headwater.log.slots import FullRebootstrap

_log: Final = logging.getLogger("headwater")
TRY_AGAIN: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict, LogGap)
"""After these a replica registers again; everything else ends it."""


class Follower:
    """What is known of one copy's leader, and how far the copy was found in its log."""

    def __init__(
        self,
        name: str,
        link: Link,
        holdings: Holdings,
        config: ReplicaConfig,
        metrics: ReplicaMetrics,
        tell: Callable[[], None],
    ) -> None:
        """`tell` is called whenever the copy may show more, or is found to be none."""
        self.name = name
        self.config = config
        self.metrics = metrics
        self.current_lsn = 0
        """Where the log ended when it was last heard of."""
        self._link = link
        self._holdings = holdings
        self._tell = tell
        self._ahead = PullAhead(lambda since_lsn: link.pull(since_lsn, wait_s=0.0))
        self._proof = UNPROVEN
        self._proven_term = 0
        """Of the last leader in whose log the copy was found again since it was opened."""
        self._apply_errors_before = 0

    @property
    def target(self) -> Target:
        """The copy that counts."""
        return self._holdings.target

    @property
    def bookmark(self) -> Bookmark:
        """What a reader of the copy has seen; before any leader's log has it, nothing."""
        if not self._proven_term:
            return Bookmark(0, 0)
        return Bookmark(self._proven_term, self.target.applied_lsn)

    def shows(self, bookmark: Bookmark) -> bool:
        """Whether the copy has what the bookmark says, and is known to be a copy of that log."""
        if self._holdings.diverged_lsn is not None or self.target.applied_lsn < bookmark.lsn:
            return False
        if self._proven_term and bookmark.term <= self._proven_term:
            return True
        # Of a leader with whose log it is still compared, what was found to be the same.
        is_found = self._proof.proven_lsn(bookmark.lsn) >= bookmark.lsn
        return self._holdings.term >= bookmark.term and is_found

    async def follow(self, went_well: Callable[[str | None], None]) -> None:
        """Follow until the source asks for a fresh copy.

        `went_well` is called after each round, with what is waited for, if it is something else
        than the next record.
        """
        try:
            while True:
                pulled = await self._pull()
                if pulled.rebootstrap is not None:
                    return
                self._ahead.begin(pulled)
                await self._take(pulled)
                await self.target.tend()
                await self._acknowledge()
                went_well(self._proof.waits_for(pulled.current_lsn))
        finally:
            await self._ahead.drop()

    async def register(self) -> bool:
        """Come, or come back; whether a fresh copy is wanted."""
        told = await self._link.register(self.target.applied_lsn)
        self.metrics.registrations += 1
        self.current_lsn = told.current_lsn
        self._proof = UNPROVEN
        if isinstance(told.resume, FullRebootstrap):
            return True
        self.begin_proof()
        if (problem := self._proof.waits_for(told.current_lsn)) is not None:
            _log.warning("replica %s: %s", self.name, problem)
        return False

    def begin_proof(self) -> None:
        """What is there is to be found in the log of the leader that answered last."""
        self._note_proof(
            Proof.of_copy(self._link.told, self.target.applied_lsn, self.config.compare_records)
        )

    def begin_proven(self) -> None:
        """A copy that took the place of another was compared with this leader's log already."""
        self._apply_errors_before = self.metrics.apply_errors
        self._note_proof(Proof(self.target.applied_lsn, self.target.applied_lsn))

    async def complete_bootstrap(self) -> None:
        """Say that the copy goes on from here: from what is on disk, and known to be the log's."""
        await self._link.complete_bootstrap(self._proof.proven_lsn(self.target.durable_lsn))

    async def apply(self, target: Target, intake: Intake) -> None:
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

    def _note_proof(self, proof: Proof) -> None:
        self._proof = proof
        if proof.is_done:
            self._proven_term = self._holdings.term
        self._tell()

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
        self.current_lsn = pulled.current_lsn
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
        await self._compare(intake.again)
        if not self._proof.is_done:
            self._note_proof(self._proof.reached(pulled.through_lsn))
        await self.apply(self.target, intake)
        self._tell()

    async def _compare(self, groups: Sequence[Group]) -> None:
        compared = await compare(self.target, groups)
        if compared.differs_lsn is not None:
            await self._diverge(compared.differs_lsn)
        self.metrics.count_compared(compared)

    async def _diverge(self, lsn: int) -> None:
        self.metrics.divergences += 1
        await self._holdings.mark_diverged(lsn)
        self._tell()
        with contextlib.suppress(*TRY_AGAIN):
            await self._acknowledge()
        self._holdings.check_sound(self.name)

    async def _acknowledge(self) -> None:
        """Tell what changed; and from time to time that nothing did."""
        progress = Acknowledgement(
            self._proof.proven_lsn(self.target.applied_lsn),
            self._proof.proven_lsn(self.target.durable_lsn),
            apply_error_count=self.metrics.apply_errors - self._apply_errors_before,
            divergence_count=int(self._holdings.diverged_lsn is not None),
        )
        self.metrics.acknowledgements += await self._link.acknowledge(progress)
