"""Beginning anew: from what is there, from an image, or from the beginning of the log.

What a replica has is itself something to begin from: a slot that was given up says nothing about
the copy, and as long as the log has the very next record the copy goes on. Otherwise a second one
is filled beside it, until it shows at least what the first one did.

Always holds: what an image was made of is compared with the log before anything is put on top of
it. Were it compared afterwards, the fresh copy's own images would already stand in the store, with
the log's records at their ends and another log's below them, and nobody could tell any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

from headwater.core import limits
from headwater.core.errors import (
    Bug,
    Corrupt,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.record import Group
from headwater.log.replica.config import ReplicaConfig
from headwater.log.replica.errors import UnusableImage
from headwater.log.replica.intake import Intake, take_in
from headwater.log.replica.link import Link
from headwater.log.replica.metrics import ReplicaMetrics
from headwater.log.replica.proof import compare
from headwater.log.replica.target import Image, Target, Targets

Apply = Callable[[Target, Intake], Awaitable[None]]


class Beginning(NamedTuple):
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
        link: Link,
        targets: Targets,
        config: ReplicaConfig,
        metrics: ReplicaMetrics,
        apply: Apply,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._targets = targets
        self._config = config
        self._apply = apply

    async def begin(self, own: Target | None) -> Beginning:
        """Settle with the source where to begin. `own` is None where it is good for nothing.

        What is there comes first, then the newest image that the log reaches, then the log from 1.
        `Refused` if it is none of them. An image beyond the end of the log is of a log that was
        longer: it is waited for only where there is nothing else.
        """
        told = self._link.told
        own_lsn = -1 if own is None else await _safe_lsn(own)
        if own_lsn > 0 and self._link.reaches(own_lsn):
            plan = (await self._link.begin_bootstrap(own_lsn)).plan
            return Beginning("own", own_lsn, plan.current_lsn)
        image = await self._targets.newest_image(below_lsn=told.current_lsn + 1)
        if image is None and told.oldest_lsn > 1:
            await self._refuse_what_is_beyond(told.current_lsn)
        offered_lsn = 0 if image is None else self._compared_after_lsn(image)
        plan = (await self._link.begin_bootstrap(offered_lsn or None)).plan
        if plan.after_lsn != offered_lsn:
            raise Bug(f"a copy was to begin after {offered_lsn}, and not after {plan.after_lsn}")
        if image is not None:
            return Beginning("image", image.lsn, plan.current_lsn, image, offered_lsn)
        return Beginning("log" if own_lsn else "own", 0, plan.current_lsn)

    async def open(self, path: str, beginning: Beginning) -> Target:
        """The fresh copy, with what it begins from; `UnusableImage` if there is another to try."""
        try:
            return await self._targets.begin(path, beginning.image)
        except (Corrupt, NotFound, NotSupported) as error:
            raise UnusableImage(f"the image cannot be used: {error}") from error

    async def fill(self, fresh: Target, beginning: Beginning, through_lsn: int) -> None:
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
            intake = take_in(
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
        compared = await compare(fresh, groups)
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


async def _safe_lsn(own: Target) -> int:
    # What cannot be synced now is pulled again, if need be.
    with contextlib.suppress(Unavailable, OutcomeUnknown, NotSupported):
        await own.sync()
    return own.durable_lsn
