"""Following one leader: register, compare, pull, apply, acknowledge; and filling a fresh copy.

A fresh copy starts from the present copy (which is not worse because its slot was given up), from
an image, or from the beginning of the log. It is filled beside the old copy until it shows at least
as much.

Always holds: nothing is applied after records that were not found in the leader's log, and nothing
beyond them is acknowledged; a divergence is stored on disk before it is reported. An image is
compared with the log before anything is applied on top of it: otherwise the fresh copy's own images
would mix the records of two logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
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
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import PullResponse
from headwater.log.primary.slot import FullRebootstrap
from headwater.log.record.group import Group
from headwater.log.replica.comparing import (
    UNVERIFIED,
    SplitPull,
    Verification,
    compare_groups,
    split_pull,
)
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
from headwater.log.replica.session import LeaderSession, Prefetch, ReplicaMetrics

_log: Final = logging.getLogger("headwater")
RETRIABLE: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict, LogGap)
"""A replica registers again after these errors; all others end it."""


class BootstrapStart(NamedTuple):
    kind: Literal["own", "image", "log"]
    current_lsn: int
    """Where the log ended then."""
    image: Image | None = None
    compared_after_lsn: int = 0
    """From here to the end of the image the log has what it was made of, to be compared."""


class LogFollower:
    """Follows a leader, knows how far the copy was found in its log, and makes fresh copies."""

    def __init__(
        self,
        name: str,
        link: LeaderSession,
        targets: Targets,
        copies: ReplicaCopies,
        config: ReplicaConfig,
        metrics: ReplicaMetrics,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called whenever the copy may show more, or is found to have diverged."""
        self.name = name
        self.config = config
        self.metrics = metrics
        self.current_lsn = 0
        """The last known end of the log."""
        self._link = link
        self._targets = targets
        self._copies = copies
        self._on_change = on_change
        self._prefetch = Prefetch(lambda since_lsn: link.pull(since_lsn, wait_s=0.0))
        self._verification = UNVERIFIED
        self._verified_term = 0
        """The term of the last leader in whose log the copy was found since it was opened."""
        self._apply_errors_before = 0

    @property
    def target(self) -> Target:
        return self._copies.target

    @property
    def bookmark(self) -> Bookmark:
        """What a reader of the copy has seen; 0:0 before it was found in a leader's log."""
        if not self._verified_term:
            return Bookmark(0, 0)
        return Bookmark(self._verified_term, self.target.applied_lsn)

    def shows(self, bookmark: Bookmark) -> bool:
        """Whether the copy has the bookmark's record, and is known to be a copy of that log."""
        if self._copies.diverged_lsn is not None or self.target.applied_lsn < bookmark.lsn:
            return False
        if self._verified_term and bookmark.term <= self._verified_term:
            return True
        # The copy is still compared with this leader's log: what was found there counts.
        is_verified = self._verification.verified_lsn(bookmark.lsn) >= bookmark.lsn
        return self._copies.term >= bookmark.term and is_verified

    async def follow(self, on_round: Callable[[str | None], None]) -> None:
        """Follow until the source asks for a fresh copy.

        `on_round` is called after each round, with what the replica waits for, unless that is the
        next record.
        """
        try:
            while True:
                pulled = await self._pull()
                if pulled.rebootstrap is not None:
                    return
                self._prefetch.pull_ahead(pulled)
                await self._take(pulled)
                await self.target.tend()
                await self._acknowledge()
                on_round(self._verification.waits_for(pulled.current_lsn))
        finally:
            await self._prefetch.drop()

    async def register(self) -> bool:
        """Register; returns whether a fresh copy is needed."""
        registration = await self._link.register(self.target.applied_lsn)
        self.metrics.registrations += 1
        self.current_lsn = registration.current_lsn
        self._verification = UNVERIFIED
        if isinstance(registration.resume, FullRebootstrap):
            return True
        self._start_verification()
        if (problem := self._verification.waits_for(self.current_lsn)) is not None:
            _log.warning("replica %s: %s", self.name, problem)
        return False

    def _start_verification(self) -> None:
        self._note_verification(
            Verification.of_copy(
                self._link.registration, self.target.applied_lsn, self.config.compare_records
            )
        )

    async def _apply(self, target: Target, split: SplitPull) -> None:
        if split.through_lsn <= target.applied_lsn:
            return
        began_s = runtime.monotonic_s()
        try:
            await target.apply(split.new, split.through_lsn)
        except HeadwaterError:
            self.metrics.apply_errors += 1
            raise
        self.metrics.apply_seconds.observe(runtime.monotonic_s() - began_s)
        self.metrics.records_applied += sum(len(group) for group in split.new)
        self.metrics.records_lost += sum(len(one) for one in split.new if one.lost is not None)

    def _note_verification(self, verification: Verification) -> None:
        self._verification = verification
        if verification.is_done:
            self._verified_term = self._copies.term
        self._on_change()

    async def _pull(self) -> PullResponse:
        """Pull what follows the copy; before that, its last records, to compare them."""
        since_lsn = self._verification.verified_lsn(self.target.applied_lsn)
        began_s = runtime.monotonic_s()
        due_s = self.target.tend_within_s
        wait_s = self.config.wait_s if due_s is None else min(self.config.wait_s, due_s)
        pulled = await self._prefetch.take(since_lsn)
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
        split = split_pull(
            pulled,
            applied_lsn,
            filtered=self.config.filtered,
            compared_lsn=self._verification.verified_lsn(applied_lsn),
        )
        await self._compare(split.repeated)
        if not self._verification.is_done:
            self._note_verification(self._verification.reached(pulled.through_lsn))
        await self._apply(self.target, split)
        self._on_change()

    async def _compare(self, groups: Sequence[Group]) -> None:
        compared = await compare_groups(self.target, groups)
        if compared.differs_lsn is not None:
            await self._diverge(compared.differs_lsn)
        self.metrics.count_compared(compared)

    async def _diverge(self, lsn: int) -> None:
        self.metrics.divergences += 1
        await self._copies.mark_diverged(lsn)
        self._on_change()
        with contextlib.suppress(*RETRIABLE):
            await self._acknowledge()
        self._copies.check_sound(self.name)

    async def _acknowledge(self) -> None:
        progress = Acknowledgement(
            self._verification.verified_lsn(self.target.applied_lsn),
            self._verification.verified_lsn(self.target.durable_lsn),
            apply_error_count=self.metrics.apply_errors - self._apply_errors_before,
            divergence_count=int(self._copies.diverged_lsn is not None),
        )
        self.metrics.acknowledgements += await self._link.acknowledge(progress)

    # Bootstrapping

    async def bootstrap(self, *, is_forced: bool = False) -> None:
        """Keep the present copy if it is usable, unless `is_forced`, or replace it; then report it.

        The replica has registered; `Refused` if there is nothing to begin from.
        """
        diverged_lsn = self._copies.diverged_lsn
        if diverged_lsn is not None:
            # Before the source says where its log ends: what others write of it later is good.
            await self._targets.distrust(diverged_lsn)
        is_usable = diverged_lsn is None and self._link.reaches(self.target.applied_lsn)
        start = await self._choose_copy(self.target if is_usable and not is_forced else None)
        if start.kind == "own":
            self._start_verification()
        # What is on disk and was found in the log.
        await self._link.complete_bootstrap(
            self._verification.verified_lsn(self.target.durable_lsn)
        )
        self.metrics.bootstraps[start.kind] += 1

    async def _choose_copy(self, own: Target | None) -> BootstrapStart:
        """Keep the present copy, or make one from the best start that is usable."""
        unusable: dict[Image | None, UnusableImage] = {}
        while True:
            try:
                start = await self._plan(own)
            except Refused:
                self.metrics.bootstraps_refused += 1
                raise
            if start.image in unusable:
                raise unusable[start.image]
            try:
                if start.kind != "own":
                    await self._replace_copy(start)
                return start
            except UnusableImage as error:
                _log.warning("replica %s tries another start: %s", self.name, error)
                unusable[start.image] = error

    async def _plan(self, own: Target | None) -> BootstrapStart:
        """Agree with the source where to begin. `own` is None if the present copy is of no use.

        The present copy is preferred, then the newest image that the log reaches, then the log from
        LSN 1. `Refused` if there is none of them. An image beyond the end of the log is of a longer
        log: the replica waits for the log only if there is nothing else.
        """
        registration = self._link.registration
        own_lsn = None if own is None else await _durable_lsn(own)
        if own_lsn and self._link.reaches(own_lsn):
            plan = await self._link.begin_bootstrap(own_lsn)
            return BootstrapStart("own", plan.current_lsn)
        image = await self._targets.newest_image(below_lsn=registration.current_lsn + 1)
        if image is None and registration.oldest_lsn > 1:
            await self._refuse_image_beyond(registration.current_lsn)
        offered_lsn = 0 if image is None else self._compared_after_lsn(image)
        plan = await self._link.begin_bootstrap(offered_lsn or None)
        if plan.after_lsn != offered_lsn:
            raise Bug(f"a copy was to begin after {offered_lsn}, and not after {plan.after_lsn}")
        if image is not None:
            return BootstrapStart("image", plan.current_lsn, image, offered_lsn)
        # An empty copy is kept: it begins with LSN 1, as a fresh one would.
        is_own_empty = own_lsn == 0
        return BootstrapStart("own" if is_own_empty else "log", plan.current_lsn)

    async def _replace_copy(self, start: BootstrapStart) -> None:
        async def create(path: str) -> Target:
            try:
                return await self._targets.begin(path, start.image)
            except (Corrupt, NotFound, NotSupported) as error:
                raise UnusableImage(f"the image cannot be used: {error}") from error

        async def fill(fresh: Target) -> None:
            # Readers must not find less afterwards, unless what they saw was wrong.
            is_diverged = self._copies.diverged_lsn is not None
            shown_lsn = 0 if is_diverged else self.target.applied_lsn
            await self._fill(fresh, start, max(start.current_lsn, shown_lsn))

        def count() -> None:
            # It was compared with this leader's log already.
            self._apply_errors_before = self.metrics.apply_errors
            lsn = self.target.applied_lsn
            self._note_verification(Verification(lsn, lsn))

        await self._copies.replace(create, fill, count)

    async def _fill(self, fresh: Target, start: BootstrapStart, through_lsn: int) -> None:
        """Compare the image of a fresh copy, apply the log through this LSN, and sync.

        `UnusableImage` if the image is of another log: such images are skipped from then on.
        """
        verified_lsn = start.compared_after_lsn
        while verified_lsn < max(through_lsn, fresh.applied_lsn):
            pulled = await self._link.pull(verified_lsn, wait_s=self.config.wait_s)
            if pulled.rebootstrap is not None:
                raise Unavailable(
                    f"the log is no longer kept for a copy at LSN {verified_lsn} "
                    f"({pulled.rebootstrap.cause.value}): it starts again"
                )
            split = split_pull(
                pulled,
                fresh.applied_lsn,
                filtered=self.config.filtered,
                compared_lsn=verified_lsn,
            )
            await self._compare_image(fresh, split.repeated)
            await self._apply(fresh, split)
            await fresh.tend()
            verified_lsn = max(verified_lsn, pulled.through_lsn)
        await fresh.sync()

    async def _compare_image(self, fresh: Target, groups: Sequence[Group]) -> None:
        compared = await compare_groups(fresh, groups)
        if compared.differs_lsn is not None:
            await self._targets.distrust(compared.differs_lsn)
            raise UnusableImage(
                f"the image holds another record under LSN {compared.differs_lsn} than the log"
            )
        self.metrics.count_compared(compared)

    def _compared_after_lsn(self, image: Image) -> int:
        """The LSN after which the log must be kept to compare the image with it.

        Not further back than images have hashes: the slot's limits count from there.
        """
        compared = min(self.config.compare_records, limits.KEYED_IMAGE_HASHES)
        return min(image.lsn, max(0, self._link.registration.oldest_lsn - 1, image.lsn - compared))

    async def _refuse_image_beyond(self, current_lsn: int) -> None:
        image = await self._targets.newest_image()
        if image is not None:
            raise Refused(
                f"the log ends at LSN {current_lsn}, and the image to begin from at {image.lsn}: "
                "it waits until the log is there, and compares"
            )


async def _durable_lsn(own: Target) -> int:
    # Records that cannot be synced now are pulled again if needed.
    with contextlib.suppress(Unavailable, OutcomeUnknown, NotSupported):
        await own.sync()
    return own.durable_lsn
