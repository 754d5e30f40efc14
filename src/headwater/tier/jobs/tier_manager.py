"""Runs the jobs of one led partition, one at a time, until somebody newer leads.

Always holds: nothing is decided before all is known that was said before, and before this epoch has
spoken; each job begins knowing what became of the last event; once fenced, nothing more is touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Unavailable,
)
from headwater.tier.jobs.config import TierConfig, Tiering
from headwater.tier.jobs.copying import copy_sealed, missing
from headwater.tier.jobs.deletion import delete_partition
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.merging import merge_small
from headwater.tier.jobs.metrics import TierMetrics
from headwater.tier.jobs.removal import clean_up
from headwater.tier.jobs.repair import repair
from headwater.tier.jobs.retention import expire_local, expire_remote
from headwater.tier.jobs.scrub import Scrubbed, look
from headwater.tier.jobs.stopping import give_up_remote

_log: Final = logging.getLogger("headwater")

Job = Callable[[LedPartition], Awaitable[int]]
_JOBS: Final[dict[Tiering, dict[str, Job]]] = {
    Tiering.ON: {
        "clean up": clean_up,
        "copy": copy_sealed,
        "expire remote": expire_remote,
        "merge": merge_small,
        "expire local": expire_local,
    },
    Tiering.KEEP: {"clean up": clean_up, "expire local": expire_local},
    Tiering.DELETE: {"clean up": clean_up, "give up remote": give_up_remote},
}


class TierManager:
    """The tier of one partition, in the hands of its leader."""

    def __init__(self, led: LedPartition) -> None:
        self.led = led
        self.metrics = TierMetrics()
        self.problems: dict[str, str] = {}
        """By job: why it did not come to its end the last time."""
        self._chosen: dict[str, Job] = {}
        self._leads = False
        self._deleting = False
        self._deleted = False
        self._failures = 0
        self._told_lost = range(0)
        self._busy = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """Whether the epoch has begun here, and no newer one was heard of."""
        return self._leads and not self.led.publisher.is_over

    async def run(self) -> None:
        """Run all jobs again and again; returns when a newer leader was heard of."""
        while True:
            try:
                await self.run_once()
            except Fenced as fenced:
                _log.info("the tier of %s is left: %s", self.led.leader.partition, fenced)
                return
            self._failures = self._failures + 1 if self.problems else 0
            if self._failures:
                await runtime.sleep(self.led.config.pause_s(self._failures - 1))
            else:
                await runtime.sleep(self.led.config.interval_s)

    async def run_once(self) -> None:
        """One round of all jobs. `Fenced`: a newer leader was heard of, and this one is over.

        What goes wrong with one job is told by `problems` and tried again in the next round; the
        others do their work.
        """
        async with self._busy:
            await self._tried("begin", self._begin)
            if not self._leads:
                return
            await self._tried("choose jobs", self._choose_jobs)
            for name, job in self._chosen.items():
                await self._tried(name, self._after_settling(job, name))
            if not self._deleting:
                await self._tried("look for losses", self._note_loss)

    def configure(self, config: TierConfig) -> None:
        """Go by other settings from the next job on; tiering can be stopped and turned on again."""
        self.led.configure(config)

    async def delete_partition(self) -> bool:
        """Delete all that the tier has of this partition; whether that has come to its end.

        Until it has, every further round goes on with it, also under the next leader.
        """
        self._deleting = True
        await self.run_once()
        return self._deleted

    async def scrub(self, *, mend: bool) -> Scrubbed:
        """Look whether the tier has what it says, beside the jobs; and mend it between two rounds.

        Reading all of a tier takes hours, in which the log goes on being copied.
        """
        led = self.led
        async with self._busy:
            await self._begin()
            await led.publisher.settle()
        seen = await look(
            led.metadata,
            led.storage,
            led.register,
            orphan_grace_ms=led.config.orphan_grace_ms,
            rate=led.rate,
        )
        async with self._busy:
            await led.publisher.settle()
            await led.check_leads()
            return await repair(led, seen) if mend else seen

    async def _begin(self) -> None:
        if not self._leads:
            await self.led.begin()
            self._leads = True

    async def _choose_jobs(self) -> None:
        self._chosen = {}
        self._chosen = self._jobs()
        for name in {name for jobs in _JOBS.values() for name in jobs} - self._chosen.keys():
            self.problems.pop(name, None)  # nobody tries that any more

    def _jobs(self) -> dict[str, Job]:
        if self._deleted:
            return {}
        self._deleting = self._deleting or self.led.metadata.delete_state() is not None
        if self._deleting:
            return {"delete partition": self._delete_partition}
        return _JOBS[self.led.config.tiering]

    async def _delete_partition(self, led: LedPartition) -> int:
        removed = await delete_partition(led)
        self._deleted = True
        return removed

    def _after_settling(self, job: Job, name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            # What a job reads must not change by an event that is still on its way.
            await self.led.publisher.settle()
            self.metrics.done[name] += await job(self.led)

        return run

    async def _tried(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Fenced:
            self.led.publisher.is_over = True
            raise
        except Bug:
            raise
        except HeadwaterError as error:
            self.metrics.failures[name] += 1
            self.problems[name] = f"{type(error).__name__}: {error}"
            passing = isinstance(error, Unavailable | OutcomeUnknown)
            level = logging.INFO if passing else logging.WARNING
            _log.log(level, "%s of %s: %s", name, self.led.leader.partition, error)
        else:
            self.problems.pop(name, None)

    async def _note_loss(self) -> None:
        lost = missing(self.led)
        self.metrics.missing_lsns = len(lost)
        if lost and lost != self._told_lost:
            _log.error(
                "LSNs %d to %d of %s are neither remote nor in the local log: they are lost, and "
                "the local log is kept. Restore them, or let a retention move the log start",
                lost.start,
                lost.stop - 1,
                self.led.leader.partition,
            )
        self._told_lost = lost
