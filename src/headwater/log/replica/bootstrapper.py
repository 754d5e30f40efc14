"""Beginning anew: from what is there, from an image, or from the beginning of the log.

What a replica has is itself something to begin from: a slot that was given up says nothing about
the copy, and as long as the log has the very next record the copy goes on. Otherwise a second one
is filled beside it, until it shows at least what the first one did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from headwater.core.errors import (
    Bug,
    Corrupt,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from headwater.log.replica.config import ReplicaConfig
from headwater.log.replica.intake import Intake, take_in
from headwater.log.replica.link import Link
from headwater.log.replica.target import Image, Target, Targets

Apply = Callable[[Target, Intake], Awaitable[None]]


class Beginning(NamedTuple):
    """What a bootstrap begins from; the log after it is kept from here on."""

    kind: Literal["own", "image", "log"]
    after_lsn: int
    current_lsn: int
    """Where the log ended then."""
    image: Image | None = None


class Bootstrapper:
    """Plans fresh copies with the source, and fills them."""

    def __init__(self, link: Link, targets: Targets, config: ReplicaConfig, apply: Apply) -> None:
        self._link = link
        self._targets = targets
        self._config = config
        self._apply = apply

    async def begin(self, own: Target | None, *, below_lsn: int | None) -> Beginning:
        """Settle with the source where to begin. `own` is None where it is good for nothing.

        `Refused` if nothing that is there reaches the log, and the log does not begin at 1.
        """
        own_lsn = -1 if own is None else await _safe_lsn(own)
        image = await self._targets.newest_image(below_lsn=below_lsn)
        if image is not None and image.lsn <= own_lsn:
            image = None
        offered_lsn = max(own_lsn, 0) if image is None else image.lsn
        plan = (await self._link.begin_bootstrap(offered_lsn or None)).plan
        if image is None and plan.after_lsn == own_lsn:
            return Beginning("own", own_lsn, plan.current_lsn)
        if image is not None and plan.after_lsn == image.lsn:
            return Beginning("image", image.lsn, plan.current_lsn, image)
        if plan.after_lsn:
            raise Bug(f"a copy was to begin after {offered_lsn}, and not after {plan.after_lsn}")
        return Beginning("log", 0, plan.current_lsn)

    async def open(self, path: str, beginning: Beginning) -> Target:
        """The fresh copy, with what it begins from."""
        try:
            return await self._targets.begin(path, beginning.image)
        except (Corrupt, NotFound, NotSupported) as error:
            # The next try takes another image, or says that there is none.
            raise Unavailable(f"the image cannot be used: {error}") from error

    async def fill(self, fresh: Target, through_lsn: int) -> None:
        """Bring a fresh copy to this LSN, and onto its disk."""
        while fresh.applied_lsn < through_lsn:
            pulled = await self._link.pull(fresh.applied_lsn, wait_s=self._config.wait_s)
            if pulled.rebootstrap is not None:
                raise Unavailable(
                    f"the log was not kept for a copy at LSN {fresh.applied_lsn} "
                    f"({pulled.rebootstrap.cause.value}): it is begun again"
                )
            filtered = self._config.filtered
            await self._apply(fresh, take_in(pulled, fresh.applied_lsn, filtered=filtered))
            await fresh.tend()
        await fresh.sync()


async def _safe_lsn(own: Target) -> int:
    # What cannot be synced now is pulled again, if need be.
    with contextlib.suppress(Unavailable, OutcomeUnknown):
        await own.sync()
    return own.durable_lsn
