"""Runs the jobs of one led partition, one at a time, until a newer leader begins.

Always holds: no job runs before all earlier events are applied and the first event of this epoch is
published; each job begins when the outcome of the last event is known; after the leader is fenced,
or the stream deleted, nothing more is changed.
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
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.merging import merge_small
from headwater.tier.jobs.removal import delete_partition, remove_due
from headwater.tier.jobs.retention import drop_remote, expire_local, expire_remote
from headwater.tier.jobs.scrub import ScrubResult, repair_findings, scrub_partition

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
    Tiering.DELETE: {"clean up": remove_due, "drop remote": drop_remote},
}


class TierManager:
    """Manages the tier of one partition for its leader."""

    def __init__(self, led: LedPartition) -> None:
        self.led = led
        self.metrics = led.metrics
        self.problems: dict[str, HeadwaterError] = {}
        """By job: the error of its last run. `LocalLogDamaged` of "look for losses" and
        `OtherRecords` of "compare" ask for another local log."""
        self._jobs: dict[str, Job] = {}
        self._leads = False
        self._deleting = False
        self._deleted = False
        self._retries: dict[str, tuple[int, float]] = {}
        """By job: its failures in a row, and when it is retried."""
        self._reported_losses: list[range] = []
        self._busy = asyncio.Lock()

    @property
    def leads(self) -> bool:
        return self._leads and not self.led.publisher.is_fenced

    async def run(self) -> None:
        """Run all jobs in rounds; returns when a newer leader has begun.

        `StreamGone`: the stream was deleted.
        """
        while True:
            try:
                async with self._busy:
                    await self._round(self._is_due)
            except Fenced as fenced:
                # The deletion of a stream publishes under a newer epoch.
                await self._check_stream()
                _log.info("stopped leading the tier of %s: %s", self.led.leader.partition, fenced)
                return
            await runtime.sleep(self._pause_s())

    async def run_once(self) -> None:
        """Run all jobs until nothing is due.

        `Fenced`: a newer leader has begun. `StreamGone`: the stream was deleted. The errors of
        single jobs are in `problems`; those jobs are retried in the next round, and the others go
        on.
        """
        async with self._busy:
            await self._round(lambda name: True)
            while self.led.has_more_work:
                await self._round(self._is_due)

    def configure(self, config: TierConfig) -> None:
        """Use other settings, from the next job on at the latest; `tiering` from the next round on,
        so that it can be turned off and on again."""
        self.led.configure(config)

    async def delete_partition(self) -> bool:
        """Delete all that the tier has of this partition; returns whether that is complete.

        Until then, every further round continues the deletion, also under the next leader.
        """
        self._deleting = True
        await self.run_once()
        return self._deleted

    async def scrub(self, *, repair: bool) -> ScrubResult:
        """Check that the tier has what its events say, while the jobs run. With `repair`, repair it
        between two rounds.

        Reading a whole tier takes hours, in which the log must still be copied.
        """
        led = self.led
        async with self._busy:
            await self._check_stream()
            await self._begin()
            await led.publisher.settle()
        result = await scrub_partition(
            led.metadata,
            led.storage,
            led.register,
            orphan_grace_ms=led.config.orphan_grace_ms,
            rate=led.rate,
            repair=repair,
        )
        async with self._busy:
            await led.publisher.settle()
            await led.check_leads()
            return await repair_findings(led, result) if repair else result

    # Rounds

    async def _round(self, is_due: Callable[[str], bool]) -> None:
        await self._check_stream()
        if is_due("begin"):
            await self._try("begin", self._begin)
        if not self._leads:
            return
        self.led.has_more_work = False
        if is_due("choose jobs"):
            await self._try("choose jobs", self._choose_jobs)
        for name, job in self._jobs.items():
            if is_due(name) and not self._is_held(name):
                await self._try(name, self._after_settling(job))
        if not self._deleting:
            await self._try("look for losses", self._report_losses)

    async def _check_stream(self) -> None:
        """Raise `StreamGone` if the stream was deleted; if that is unknown, the jobs go on."""
        await self._try("look at the stream", self.led.register.check_stream)

    async def _begin(self) -> None:
        if not self._leads:
            await self.led.begin()
            self._leads = True

    async def _choose_jobs(self) -> None:
        self._jobs = {}
        if not self._deleted:
            self._deleting = self._deleting or self.led.metadata.state().delete_state is not None
            deletion: dict[str, Job] = {"delete partition": self._delete_partition}
            self._jobs = deletion if self._deleting else _JOBS[self.led.config.tiering]
        for name in {name for jobs in _JOBS.values() for name in jobs} - self._jobs.keys():
            self._clear_problem(name)  # it is no longer run

    async def _delete_partition(self, led: LedPartition) -> None:
        await delete_partition(led)
        self._deleted = True

    def _after_settling(self, job: Job) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            # A late event must not change the state that a job reads.
            await self.led.publisher.settle()
            await job(self.led)

        return run

    async def _report_losses(self) -> None:
        lost, local = await missing_ranges(self.led), self.led.local
        self.metrics.missing_lsns = sum(map(len, lost))
        self.metrics.lag_lsns = max(0, local.current_lsn() - self.led.tiered_lsn())
        if lost and lost != self._reported_losses:
            _log.error(
                "LSNs %s of %s are neither remote nor in the local log: they are lost, and "
                "the local log is kept. Restore them, or let a retention move the log start",
                ", ".join(f"{lsns.start} to {lsns.stop - 1}" for lsns in lost[:10]),
                self.led.leader.partition,
            )
        self._reported_losses = lost
        if self.led.damages:
            raise self.led.damages[0]

    # Retries

    async def _try(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Fenced:
            self.led.publisher.is_fenced = True
            raise
        except StreamGone as gone:
            self.led.publisher.is_fenced = True
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
            is_transient = isinstance(error, Unavailable | OutcomeUnknown)
            level = logging.INFO if is_transient else logging.WARNING
            _log.log(level, "%s of %s: %s", name, self.led.leader.partition, error)
        else:
            self._clear_problem(name)
            self.metrics.succeeded_ms[name] = runtime.wall_ms()

    def _clear_problem(self, name: str) -> None:
        self.problems.pop(name, None)
        self._retries.pop(name, None)

    def _is_due(self, name: str) -> bool:
        """Whether a job is not waiting for a retry. A waiting job delays no other."""
        return name not in self._retries or runtime.monotonic_s() >= self._retries[name][1]

    def _is_held(self, name: str) -> bool:
        """Whether a job waits until tier and local log have the same records. Dropping what is
        remote does not wait: it is a way out."""
        return self.led.differs_at is not None and "compare" in self._jobs and name != "compare"

    def _pause_s(self) -> float:
        now_s = runtime.monotonic_s()
        interval_s = 0.0 if self.led.has_more_work else self.led.config.interval_s
        first = [self._retries[one][1] for one in ("begin", "choose jobs") if one in self._retries]
        failed = [
            at_s
            for name, (_, at_s) in self._retries.items()
            if name in self._jobs and not self._is_held(name)
        ]
        return max(0.0, (first[0] if first else min([now_s + interval_s, *failed])) - now_s)
