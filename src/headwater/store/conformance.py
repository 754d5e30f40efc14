"""A suite that checks whether a store does what Headwater needs. Run it on your own bucket.

    report = await check_store(open_store("s3://bucket/prefix"))
    assert report.safe, report.verdict

It writes below one new folder and removes what it wrote, also after a failure. Several popular
S3-protocol servers lose conditional writes now and then without an error; only a race shows it. A
pass is therefore evidence and not proof: `repeat` collects more of it.

A check ends in one of four ways. `fail`: the store gave an answer that breaks what Headwater needs.
`unfinished`: there was no answer at all (a network, a permission, a full disk), which proves
nothing about the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from headwater.core import runtime
from headwater.core.errors import (
    Contended,
    Denied,
    HeadwaterError,
    NoSpace,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.settings import did_you_mean
from headwater.store import conformance_checks as checks
from headwater.store import conformance_races as races
from headwater.store.backend import PreconditionFailed
from headwater.store.conformance_checks import (
    LARGE_BYTES,
    LISTED,
    Check,
    CheckFolder,
    CheckSkipped,
    Sizes,
    Violation,
    for_each,
)
from headwater.store.objects import check_prefix
from headwater.store.stats import OperationStats
from headwater.store.store import Store

Status = Literal["pass", "fail", "skipped", "unfinished"]

CHECKS: Final = (
    checks.read_your_write,
    checks.ranges,
    checks.head,
    checks.overwrite,
    checks.empty_object,
    checks.create_if_absent,
    checks.replace_if_unchanged,
    checks.version_changes,
    checks.identical_rewrite,
    checks.list_,
    checks.list_start_after,
    checks.list_folder,
    checks.list_folders,
    checks.list_pages,
    checks.delete,
    checks.large_object,
    races.race_replace,
    races.race_create,
    races.race_register,
    races.race_numbered_log,
)
WORST: Final = (
    "race-replace",
    "race-create",
    "race-register",
    "race-numbered-log",
    "replace-if-unchanged",
    "create-if-absent",
    "version-changes",
)
"""Checks whose failure loses records, worst first."""

DEFAULT_PREFIX: Final = "headwater-check"
# After this many failed deletes no more are sent.
FAILED_DELETES_MAX: Final = 3
CLEAN_UPS_MAX: Final = 3
CLEAN_UP_PAUSE_S: Final = 0.2


class CheckResult(msgspec.Struct, frozen=True):
    name: str
    claim: str
    status: Status
    detail: str
    duration_s: float


class OperationReport(msgspec.Struct, frozen=True):
    """The requests of one kind, since the store was opened."""

    requests: int
    failures: int
    retries: int
    p50_ms: float
    p99_ms: float


class StoreReport(msgspec.Struct, frozen=True):
    """A run of the suite. Requests and cost count from when the store was opened."""

    url: str
    prefix: str
    checks: list[CheckResult]
    left_behind: list[str]
    """Keys that could not be removed; empty after a clean run."""
    requests: int
    cost_usd: float
    operations: dict[str, OperationReport]

    def named(self, status: Status) -> list[str]:
        return [check.name for check in self.checks if check.status == status]

    @property
    def safe(self) -> bool:
        """Whether every check passed or was skipped."""
        return not self.named("fail") and not self.named("unfinished")

    @property
    def verdict(self) -> str:
        """One sentence for people; if several checks failed, about the most severe one."""
        failed = [check for check in self.checks if check.status == "fail"]
        if failed:
            severity = {name: rank for rank, name in enumerate(WORST)}
            worst = min(failed, key=lambda check: severity.get(check.name, len(WORST)))
            more = f" ({len(failed)} checks failed)" if len(failed) > 1 else ""
            return f"this store is NOT safe: {worst.name}: {worst.detail}{more}"
        for check in self.checks:
            if check.status == "unfinished":
                return f"undecided: {check.name} could not finish: {check.detail}"
        passed, skipped = len(self.named("pass")), self.named("skipped")
        but = f", {len(skipped)} skipped ({', '.join(skipped)})" if skipped else ""
        return f"this store is safe for Headwater: {passed} checks passed{but}"

    def to_dict(self) -> dict[str, Any]:
        """All fields and the verdict, as JSON has them."""
        return {"safe": self.safe, "verdict": self.verdict, **msgspec.to_builtins(self)}


class CheckProgress(msgspec.Struct, frozen=True):
    """Passed to a watcher: how much of a check is done, and finally its result."""

    check: str
    done: int = 0
    total: int = 0
    result: CheckResult | None = None


Watcher = Callable[[CheckProgress], None]


async def check_store(
    store: Store,
    *,
    prefix: str = DEFAULT_PREFIX,
    writers: int = 8,
    increments: int = 100,
    racers: int = 64,
    keys: int = 50,
    listed: int = LISTED,
    large_bytes: int = LARGE_BYTES,
    repeat: int = 1,
    only: Collection[str] | None = None,
    report: Watcher | None = None,
) -> StoreReport:
    """Run the suite in a fresh folder below `prefix` and say whether the store is safe.

    `repeat` runs each race so often, up to its first failure. `only` names the checks to run.
    An error is raised only if not even a first object can be written.
    """
    sizes = Sizes(writers, increments, racers, keys, listed, large_bytes)
    if min(writers, increments, racers, keys, repeat) < 1:
        raise Refused("writers, increments, racers, keys and repeat must be at least 1")
    names = [check.name for check in CHECKS]
    for name in only or ():
        if name not in names:
            raise Refused(f"no such check: {name}{did_you_mean(name, names)}")
    folder = f"{check_prefix(prefix)}{runtime.new_ulid()}"
    run = _SuiteRun(store, folder, sizes, repeat, only, report or (lambda _: None))
    await run.reach()
    try:
        results = await run.checks()
    finally:
        left_behind = await run.clean_up()
    return StoreReport(
        url=store.url,
        prefix=folder,
        checks=results,
        left_behind=left_behind,
        requests=store.stats.requests,
        cost_usd=store.stats.cost_usd,
        operations={name: _summary(stats) for name, stats in store.stats.operations.items()},
    )


@dataclass(slots=True)
class _SuiteRun:
    store: Store
    folder: str
    sizes: Sizes
    repeat: int
    only: Collection[str] | None
    watcher: Watcher
    keys: set[str] = field(default_factory=set)
    """Keys that may have to be removed."""

    @property
    def probe(self) -> str:
        return f"{self.folder}/probe"

    async def reach(self) -> None:
        """Write one object, so that an error in the address is raised unchanged."""
        try:
            await self.store.put(self.probe, b"probe")
        except OutcomeUnknown:
            await self._delete([self.probe])
            raise
        self.keys.add(self.probe)

    async def checks(self) -> list[CheckResult]:
        results: list[CheckResult] = []
        stopped = ""
        for check in CHECKS:
            if self.only is not None and check.name not in self.only:
                result = _result(check, "skipped", "not requested", 0.0)
            elif stopped:
                result = _result(check, "skipped", f"the store stopped answering in {stopped}", 0.0)
            else:
                result = await self._one(check)
            if result.status == "unfinished" and not await self._answers():
                stopped = check.name
            results.append(result)
            self.watcher(CheckProgress(check.name, result=result))
        return results

    async def _answers(self) -> bool:
        try:
            await self.store.put(self.probe, b"probe")
        except HeadwaterError:
            return False
        return True

    async def _one(self, check: Check) -> CheckResult:
        self.watcher(CheckProgress(check.name))
        rounds = self.repeat if check.is_race else 1
        started_s = runtime.monotonic_s()
        status, detail = await self._round(check, 0, rounds)
        number = 1
        while status == "pass" and number < rounds:
            status, detail = await self._round(check, number, rounds)
            number += 1
        if rounds > 1:
            detail += f" ({number} of {rounds} rounds)"
        return _result(check, status, detail, runtime.monotonic_s() - started_s)

    async def _round(self, check: Check, number: int, rounds: int) -> tuple[Status, str]:
        def advance(done: int, total: int) -> None:
            self.watcher(CheckProgress(check.name, number * total + done, rounds * total))

        folder = f"{self.folder}/{check.name}-{number}"
        target = CheckFolder(self.store, folder, self.sizes, advance, self.keys)
        try:
            return "pass", await check.run(target)
        except Violation as violation:
            return "fail", self._shortened(str(violation))
        except CheckSkipped as reason:
            return "skipped", str(reason)
        except HeadwaterError as error:
            no_answer = isinstance(error, Unavailable | OutcomeUnknown | Denied | NoSpace)
            is_unfinished = no_answer and not _was_refused(error)
            detail = self._shortened(f"{type(error).__name__}: {error}")
            return "unfinished" if is_unfinished else "fail", detail

    def _shortened(self, detail: str) -> str:
        return detail.replace(f"{self.folder}/", "")

    async def clean_up(self) -> list[str]:
        """Remove what was written. Returns the keys that are still there, as far as is known.

        A write that was interrupted may land a moment later: keys that are listed after a pause are
        removed as well.
        """
        failed = await self._delete(sorted(self.keys | (await self._listed() or set())))
        for _ in range(CLEAN_UPS_MAX):
            await runtime.sleep(CLEAN_UP_PAUSE_S)
            listed = await self._listed()
            if listed is None:
                return failed
            if not listed:
                return []
            await self._delete(sorted(listed))
        return sorted(await self._listed() or failed)

    async def _listed(self) -> set[str] | None:
        try:
            return {meta.key async for meta in self.store.list(self.folder)}
        except HeadwaterError:
            return None  # a store that cannot list: the keys of the checks are known all the same

    async def _delete(self, keys: list[str]) -> list[str]:
        failed: list[str] = []

        async def delete(key: str) -> None:
            if len(failed) >= FAILED_DELETES_MAX:
                failed.append(key)
                return
            try:
                await self.store.delete(key)
            except HeadwaterError:
                failed.append(key)

        await for_each(keys, delete)
        return sorted(failed)


def _was_refused(error: BaseException | None) -> bool:
    """Whether the store refused every attempt although the condition held: that is an answer."""
    while error is not None:
        if isinstance(error, Contended | PreconditionFailed):
            return True
        error = error.__cause__
    return False


def _result(check: Check, status: Status, detail: str, duration_s: float) -> CheckResult:
    return CheckResult(check.name, check.claim, status, detail, duration_s)


def _summary(stats: OperationStats) -> OperationReport:
    return OperationReport(
        requests=stats.requests,
        failures=stats.failures,
        retries=stats.retries,
        p50_ms=round(stats.latency_s.quantile(0.5) * 1000, 3),
        p99_ms=round(stats.latency_s.quantile(0.99) * 1000, 3),
    )
