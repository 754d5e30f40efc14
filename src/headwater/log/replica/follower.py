"""Following one leader: register, compare, pull, apply, acknowledge; and filling a fresh copy.

A fresh copy starts from the copy that is there (a slot that was given up says nothing about the
copy), from an image, or from the beginning of the log. It is filled beside the old copy until it
shows at least as much.

Always holds: nothing is applied after records that were not found in the leader's log, and nothing
beyond them is acknowledged; a divergence is stored on disk before it is reported. An image is
compared with the log before anything is applied on top of it: otherwise the fresh copy's own images
would mix the records of two logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple

from headwater.core import limits, runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Corrupt,
    Fenced,
    HeadwaterError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.primary import Acknowledgement, PullResponse
from headwater.log.record import Group
from headwater.log.replica.contract import (
    Bookmark,
    Image,
    LogGap,
    ReplicaConfig,
    Target,
    Targets,
    UnusableImage,
)
from headwater.log.replica.copies import ReplicaCopies
from headwater.log.replica.link import (
    UNVERIFIED,
    LeaderSession,
    Prefetch,
    ReplicaMetrics,
    SplitPull,
    Verification,
    compare_groups,
    split_pull,
)
from headwater.log.slots import FullRebootstrap

ApplyGroups = Callable[[Target, SplitPull], Awaitable[None]]


class BootstrapStart(NamedTuple):
    """What a bootstrap begins from; the log after it is kept from here on."""

    kind: Literal["own", "image", "log"]
    after_lsn: int
    current_lsn: int
    """Where the log ended then."""
    image: Image | None = None
    compared_after_lsn: int = 0
    """From here to `after_lsn` the log has what the image was made of, to be compared."""


class Bootstrapper:
    """Plans fresh copies with the source, and fills them."""

    def __init__(
        self,
        link: LeaderSession,
        targets: Targets,
        config: ReplicaConfig,
        metrics: ReplicaMetrics,
        apply: ApplyGroups,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._targets = targets
        self._config = config
        self._apply = apply

    async def begin(self, own: Target | None) -> BootstrapStart:
        """Settle with the source where to begin. `own` is None where it is good for nothing.

        What is there comes first, then the newest image that the log reaches, then the log from 1.
        `Refused` if it is none of them. An image beyond the end of the log is of a log that was
        longer: it is waited for only where there is nothing else.
        """
        told = self._link.told
        own_lsn = -1 if own is None else await _durable_lsn(own)
        if own_lsn > 0 and self._link.reaches(own_lsn):
            plan = (await self._link.begin_bootstrap(own_lsn)).plan
            return BootstrapStart("own", own_lsn, plan.current_lsn)
        image = await self._targets.newest_image(below_lsn=told.current_lsn + 1)
        if image is None and told.oldest_lsn > 1:
            await self._refuse_what_is_beyond(told.current_lsn)
        offered_lsn = 0 if image is None else self._compared_after_lsn(image)
        plan = (await self._link.begin_bootstrap(offered_lsn or None)).plan
        if plan.after_lsn != offered_lsn:
            raise Bug(f"a copy was to begin after {offered_lsn}, and not after {plan.after_lsn}")
        if image is not None:
            return BootstrapStart("image", image.lsn, plan.current_lsn, image, offered_lsn)
        return BootstrapStart("log" if own_lsn else "own", 0, plan.current_lsn)

    async def open(self, path: str, beginning: BootstrapStart) -> Target:
        """The fresh copy, with what it begins from; `UnusableImage` if there is another to try."""
        try:
            return await self._targets.begin(path, beginning.image)
        except (Corrupt, NotFound, NotSupported) as error:
            raise UnusableImage(f"the image cannot be used: {error}") from error

    async def fill(self, fresh: Target, beginning: BootstrapStart, through_lsn: int) -> None:
        """Compare what a fresh copy began from, bring it to this LSN, and onto its disk.

        `UnusableImage` if it began from another log's: such images are passed over from then on.
        """
        proven_lsn = beginning.compared_after_lsn
        while proven_lsn < max(through_lsn, fresh.applied_lsn):
            pulled = await self._link.pull(proven_lsn, wait_s=self._config.wait_s)
            if pulled.rebootstrap is not None:
                raise Unavailable(
                    f"the log is no longer kept for a copy at LSN {proven_lsn} "
                    f"({pulled.rebootstrap.cause.value}): it is begun again"
                )
            intake = split_pull(
                pulled,
                fresh.applied_lsn,
                filtered=self._config.filtered,
                compared_lsn=proven_lsn,
            )
            await self._compare(fresh, intake.again)
            await self._apply(fresh, intake)
            await fresh.tend()
            proven_lsn = max(proven_lsn, pulled.through_lsn)
        await fresh.sync()

    async def _compare(self, fresh: Target, groups: Sequence[Group]) -> None:
        compared = await compare_groups(fresh, groups)
        if compared.differs_lsn is not None:
            await self._targets.distrust(compared.differs_lsn)
            raise UnusableImage(
                f"the image holds another record under LSN {compared.differs_lsn} than the log"
            )
        self._metrics.count_compared(compared)

    def _compared_after_lsn(self, image: Image) -> int:
        """Where the log is to be kept from, so that the image can be compared with it.

        Not further back than images have hashes: the slot's limits are counted from there.
        """
        compared = min(self._config.compare_records, limits.KEYED_IMAGE_HASHES)
        return min(image.lsn, max(0, self._link.told.oldest_lsn - 1, image.lsn - compared))

    async def _refuse_what_is_beyond(self, current_lsn: int) -> None:
        image = await self._targets.newest_image()
        if image is not None:
            raise Refused(
                f"the log ends at LSN {current_lsn}, and the image to begin from at {image.lsn}: "
                "it waits until the log is there, and compares"
            )


async def _durable_lsn(own: Target) -> int:
    # What cannot be synced now is pulled again, if need be.
    with contextlib.suppress(Unavailable, OutcomeUnknown, NotSupported):
        await own.sync()
    return own.durable_lsn


_log: Final = logging.getLogger("headwater")
RETRIABLE: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict, LogGap)
"""After these a replica registers again; everything else ends it."""


class LogFollower:
    """What is known of one copy's leader, and how far the copy was found in its log."""

    def __init__(
        self,
        name: str,
        link: LeaderSession,
        holdings: ReplicaCopies,
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
        self._ahead = Prefetch(lambda since_lsn: link.pull(since_lsn, wait_s=0.0))
        self._proof = UNVERIFIED
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
        self._proof = UNVERIFIED
        if isinstance(told.resume, FullRebootstrap):
            return True
        self.begin_proof()
        if (problem := self._proof.waits_for(told.current_lsn)) is not None:
            _log.warning("replica %s: %s", self.name, problem)
        return False

    def begin_proof(self) -> None:
        """What is there is to be found in the log of the leader that answered last."""
        self._note_proof(
            Verification.of_copy(
                self._link.told, self.target.applied_lsn, self.config.compare_records
            )
        )

    def begin_proven(self) -> None:
        """A copy that took the place of another was compared with this leader's log already."""
        self._apply_errors_before = self.metrics.apply_errors
        self._note_proof(Verification(self.target.applied_lsn, self.target.applied_lsn))

    async def complete_bootstrap(self) -> None:
        """Say that the copy goes on from here: from what is on disk, and known to be the log's."""
        await self._link.complete_bootstrap(self._proof.proven_lsn(self.target.durable_lsn))

    async def apply(self, target: Target, intake: SplitPull) -> None:
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

    def _note_proof(self, proof: Verification) -> None:
        self._proof = proof
        if proof.is_done:
            self._proven_term = self._holdings.term
        self._tell()

    async def _pull(self) -> PullResponse:
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

    async def _take(self, pulled: PullResponse) -> None:
        applied_lsn = self.target.applied_lsn
        intake = split_pull(
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
        compared = await compare_groups(self.target, groups)
        if compared.differs_lsn is not None:
            await self._diverge(compared.differs_lsn)
        self.metrics.count_compared(compared)

    async def _diverge(self, lsn: int) -> None:
        self.metrics.divergences += 1
        await self._holdings.mark_diverged(lsn)
        self._tell()
        with contextlib.suppress(*RETRIABLE):
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
