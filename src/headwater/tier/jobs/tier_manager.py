"""Runs the jobs of one led partition, one at a time, until somebody newer leads.

Always holds: nothing is decided before all is known that was said before, and before this epoch has
spoken; each job begins knowing what became of the last event; once fenced, or once the stream is
gone, nothing more is touched.
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
from headwater.tier.errors import StreamGone
from headwater.tier.jobs.config import TierConfig, Tiering
from headwater.tier.jobs.copying import compare, copy_sealed, missing_ranges
from headwater.tier.jobs.deletion import delete_partition, drop_remote
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.merging import merge_small
from headwater.tier.jobs.removal import remove_due
from headwater.tier.jobs.retention import expire_local, expire_remote
from headwater.tier.jobs.scrub import ScrubResult, repair, scrub_partition

_log: Final = logging.getLogger("headwater")

Job = Callable[[LedPartition], Awaitable[None]]
_JOBS: Final[dict[Tiering, dict[str, Job]]] = {
    Tiering.ON: {
        "clean up": remove_due,
        "compare": compare,
        "copy": copy_sealed,
        "expire remote": expire_remote,
        "merge": merge_small,
        "expire local": expire_local,
    },
    Tiering.KEEP: {"clean up": remove_due, "compare": compare, "expire local": expire_local},
    Tiering.DELETE: {"clean up": remove_due, "give up remote": drop_remote},
}


class TierManager:
    """The tier of one partition, in the hands of its leader."""

    def __init__(self, led: LedPartition) -> None:
        self.led = led
        self.metrics = led.metrics
        self.problems: dict[str, HeadwaterError] = {}
        """By job: why it did not come to its end the last time. `LocalLogDamaged` of "look for
        losses" asks for another local log; `OtherRecords` of "compare" too."""
        self._chosen: dict[str, Job] = {}
        self._leads = False
        self._deleting = False
        self._deleted = False
        self._retries: dict[str, tuple[int, float]] = {}
        """By job: how often it failed in a row, and when it is tried again."""
        self._told_lost: list[range] = []
        self._busy = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """Whether the epoch has begun here, and no newer one was heard of."""
        return self._leads and not self.led.voice.is_over

    async def run(self) -> None:
        """Run all jobs again and again; returns when a newer leader was heard of.

        `StreamGone`: the stream was deleted, and there is nothing to lead.
        """
        while True:
            try:
                async with self._busy:
                    await self._round(self._is_due)
            except Fenced as fenced:
                # Whoever deletes a stream speaks as a newer leader of it.
                await self._look_at_stream()
                _log.info("the tier of %s is left: %s", self.led.leader.partition, fenced)
                return
            await runtime.sleep(self._pause_s())

    async def run_once(self) -> None:
        """All jobs, until nothing is due.

        `Fenced`: a newer leader was heard of, and this one is over. `StreamGone`: the stream was
        deleted.

        What goes wrong with one job is told by `problems` and tried again in the next round; the
        others do their work.
        """
        async with self._busy:
            await self._round(lambda name: True)
            while self.led.is_behind:
                await self._round(self._is_due)

    async def _round(self, is_due: Callable[[str], bool]) -> None:
        await self._look_at_stream()
        if is_due("begin"):
            await self._tried("begin", self._begin)
        if not self._leads:
            return
        self.led.is_behind = False
        if is_due("choose jobs"):
            await self._tried("choose jobs", self._choose_jobs)
        for name, job in self._chosen.items():
            if is_due(name) and not self._is_held(name):
                await self._tried(name, self._after_settling(job))
        if not self._deleting:
            await self._tried("look for losses", self._note_loss)

    def _is_held(self, name: str) -> bool:
        """Whether a job waits for the tier and the local log to agree; giving the tier up is a way
        out."""
        return self.led.differs_at is not None and "compare" in self._chosen and name != "compare"

    def _pause_s(self) -> float:
        """Until the next round, or until a job that failed is tried again."""
        now_s = runtime.monotonic_s()
        interval_s = 0.0 if self.led.is_behind else self.led.config.interval_s
        first = [self._retries[one][1] for one in ("begin", "choose jobs") if one in self._retries]
        failed = [
            at_s
            for name, (_, at_s) in self._retries.items()
            if name in self._chosen and not self._is_held(name)
        ]
        return max(0.0, (first[0] if first else min([now_s + interval_s, *failed])) - now_s)

    def _is_due(self, name: str) -> bool:
        """Whether a job did not fail just now: one that does slows down no other."""
        return name not in self._retries or runtime.monotonic_s() >= self._retries[name][1]

    def configure(self, config: TierConfig) -> None:
        """Go by other settings, from the next job on at the latest; `tiering` from the next round
        on, so that it can be stopped and turned on again."""
        self.led.configure(config)

    async def delete_partition(self) -> bool:
        """Delete all that the tier has of this partition; whether that has come to its end.

        Until it has, every further round goes on with it, also under the next leader.
        """
        self._deleting = True
        await self.run_once()
        return self._deleted

    async def scrub(self, *, mend: bool) -> ScrubResult:
        """Look whether the tier has what it says, beside the jobs; and mend it between two rounds.

        Reading all of a tier takes hours, in which the log goes on being copied.
        """
        led = self.led
        async with self._busy:
            await self._look_at_stream()
            await self._begin()
            await led.voice.settle()
        seen = await scrub_partition(
            led.metadata,
            led.storage,
            led.register,
            orphan_grace_ms=led.config.orphan_grace_ms,
            rate=led.rate,
            mend=mend,
        )
        async with self._busy:
            await led.voice.settle()
            await led.check_leads()
            return await repair(led, seen) if mend else seen

    async def _look_at_stream(self) -> None:
        """Stop where the stream is gone. Where that cannot be told, the jobs do their work."""
        await self._tried("look at the stream", self.led.register.stream.check)

    async def _begin(self) -> None:
        if not self._leads:
            await self.led.begin()
            self._leads = True

    async def _choose_jobs(self) -> None:
        self._chosen = {}
        self._chosen = self._jobs()
        for name in {name for jobs in _JOBS.values() for name in jobs} - self._chosen.keys():
            self._is_well(name)  # nobody tries that any more

    def _jobs(self) -> dict[str, Job]:
        if self._deleted:
            return {}
        self._deleting = self._deleting or self.led.metadata.delete_state() is not None
        if self._deleting:
            return {"delete partition": self._delete_partition}
        return _JOBS[self.led.config.tiering]

    async def _delete_partition(self, led: LedPartition) -> None:
        await delete_partition(led)
        self._deleted = True

    def _after_settling(self, job: Job) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            # What a job reads must not change by an event that is still on its way.
            await self.led.voice.settle()
            await job(self.led)

        return run

    async def _tried(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Fenced:
            self.led.voice.is_over = True
            raise
        except StreamGone as gone:
            self.led.voice.is_over = True
            self.problems[name] = gone
            _log.error("%s", gone)
            raise
        except Bug:
            raise
        except HeadwaterError as error:
            self.metrics.failures[name] += 1
            self.problems[name] = error
            failures, _ = self._retries.get(name, (0, 0.0))
            pause_s = self.led.config.pause_s(failures)
            self._retries[name] = failures + 1, runtime.monotonic_s() + pause_s
            passing = isinstance(error, Unavailable | OutcomeUnknown)
            level = logging.INFO if passing else logging.WARNING
            _log.log(level, "%s of %s: %s", name, self.led.leader.partition, error)
        else:
            self._is_well(name)
            self.metrics.succeeded_ms[name] = runtime.wall_ms()

    def _is_well(self, name: str) -> None:
        self.problems.pop(name, None)
        self._retries.pop(name, None)

    async def _note_loss(self) -> None:
        lost, local = await missing_ranges(self.led), self.led.local
        self.metrics.missing_lsns = sum(map(len, lost))
        self.metrics.lag_lsns = max(0, local.current_lsn() - self.led.tiered_lsn())
        if lost and lost != self._told_lost:
            _log.error(
                "LSNs %s of %s are neither remote nor in the local log: they are lost, and "
                "the local log is kept. Restore them, or let a retention move the log start",
                ", ".join(f"{lsns.start} to {lsns.stop - 1}" for lsns in lost[:10]),
                self.led.leader.partition,
            )
        self._told_lost = lost
        if self.led.damage is not None:
            raise self.led.damage
