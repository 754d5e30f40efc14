"""Whether a store does what Headwater relies on: a suite to run on one's own bucket.

    report = await check_store(open_store("s3://bucket/prefix"))
    assert report.safe, report.verdict

It writes below one fresh folder and removes what it wrote, also after a failure. Several
popular S3-protocol servers lose conditional writes now and then and say nothing; only a race
shows it. A pass is therefore evidence and not proof: `repeat` gathers more of it.

A check ends in one of four ways. `fail` is an answer that breaks what Headwater relies on.
`unfinished` is no answer at all (a network, a permission, a full disk): it says nothing about
the store, and nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal

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
from headwater.store import conformance_checks as alone
from headwater.store import conformance_races as races
from headwater.store.conformance_bench import (
    LARGE_BYTES,
    LISTED,
    Bench,
    Sizes,
    Skip,
    Violation,
    each,
)
from headwater.store.keys import check_prefix
from headwater.store.stats import OperationStats
from headwater.store.store import Store

Status = Literal["pass", "fail", "skipped", "unfinished"]

DEFAULT_PREFIX: Final = "headwater-check"
# After so many failed deletes the store is not asked for more.
FAILED_DELETES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and why Headwater needs it."""

    name: str
    claim: str
    run: Callable[[Bench], Awaitable[str]]
    is_race: bool = False


CHECKS: Final = (
    Check(
        "read-your-write",
        "An object can be read as soon as it is written, because whoever is told of a record "
        "reads it at once.",
        alone.read_your_write,
    ),
    Check(
        "ranges",
        "Any range of an object can be read, with its version, because readers take single "
        "records and footers out of large objects.",
        alone.ranges,
    ),
    Check(
        "head",
        "Size and version can be had without the bytes, because looking must stay cheap.",
        alone.head,
    ),
    Check(
        "overwrite",
        "An overwritten object shows its new content at once, because a stale read would bring "
        "back decisions that were already replaced.",
        alone.overwrite,
    ),
    Check(
        "empty-object",
        "An object may be empty, because markers are.",
        alone.empty_object,
    ),
    Check(
        "create-if-absent",
        "Creating what exists is refused, because a number in a sequence is taken once.",
        alone.create_if_absent,
    ),
    Check(
        "replace-if-unchanged",
        "Replacing succeeds on the version named and on no other, because a change made on old "
        "knowledge would undo somebody else's.",
        alone.replace_if_unchanged,
    ),
    Check(
        "version-changes",
        "Different contents have different versions, because otherwise a change in between "
        "goes unseen.",
        alone.version_changes,
    ),
    Check(
        "identical-rewrite",
        "Whether equal bytes have equal versions is good to know: Headwater puts a nonce into "
        "every conditionally written object, so both are fine.",
        alone.identical_rewrite,
    ),
    Check(
        "list",
        "A listing is ordered and complete right after a write or a delete, because recovery "
        "finds by listing what no index names yet.",
        alone.list_complete,
    ),
    Check(
        "list-start-after",
        "A listing begins strictly above a given key, because readers go on where they stopped.",
        alone.list_start_after,
    ),
    Check(
        "list-folder",
        "Listing folder a does not show ab, because one log must not see another's objects.",
        alone.list_folder,
    ),
    Check(
        "list-pages",
        "A listing of more than one page is whole, because logs have more than 1,000 objects.",
        alone.list_pages,
    ),
    Check(
        "delete",
        "Deleting is visible at once and may be repeated, because cleaning up is retried.",
        alone.delete,
    ),
    Check(
        "large-object",
        "An object sent in parts reads back whole and as a stream, because segments are large.",
        alone.large_object,
    ),
    Check(
        "race-replace",
        "Of writers that replace the same version only one succeeds, because every other one "
        "would erase an accepted change.",
        races.race_replace,
        is_race=True,
    ),
    Check(
        "race-create",
        "Of writers that create the same key exactly one succeeds, because a second one would "
        "erase an accepted record.",
        races.race_create,
        is_race=True,
    ),
    Check(
        "race-register",
        "A register changed by many at once loses no change, because logs keep their heads in one.",
        races.race_register,
        is_race=True,
    ),
    Check(
        "race-sequence",
        "A sequence appended to by many at once is dense and holds each entry once, because logs "
        "are made of them.",
        races.race_sequence,
        is_race=True,
    ),
)


class CheckResult(msgspec.Struct, frozen=True):
    """How one check ended."""

    name: str
    claim: str
    status: Status
    detail: str
    duration_s: float


class OperationReport(msgspec.Struct, frozen=True):
    """What one kind of request did, since the store was opened."""

    requests: int
    failures: int
    retries: int
    p50_ms: float
    p99_ms: float


class Report(msgspec.Struct, frozen=True):
    """A run of the suite. Requests and cost count from when the store was opened."""

    url: str
    prefix: str
    checks: list[CheckResult]
    left_behind: list[str]
    """What could not be removed; empty after a clean run."""
    requests: int
    cost_usd: float
    operations: dict[str, OperationReport]

    def named(self, status: Status) -> list[str]:
        """The checks that ended so."""
        return [check.name for check in self.checks if check.status == status]

    @property
    def safe(self) -> bool:
        """Whether nothing speaks against keeping records in this store."""
        return not self.named("fail") and not self.named("unfinished")

    @property
    def verdict(self) -> str:
        """One sentence for people; of several failures it names the one that loses records."""
        failed = [check for check in self.checks if check.status == "fail"]
        if failed:
            worst = next((check for check in failed if check.name.startswith("race-")), failed[0])
            more = f" ({len(failed)} checks failed)" if len(failed) > 1 else ""
            return f"this store is NOT safe: {worst.name}: {worst.detail}{more}"
        for check in self.checks:
            if check.status == "unfinished":
                return f"undecided: {check.name} could not finish: {check.detail}"
        passed, skipped = len(self.named("pass")), self.named("skipped")
        but = f", {len(skipped)} skipped ({', '.join(skipped)})" if skipped else ""
        return f"this store is safe for Headwater: {passed} checks passed{but}"

    def to_json(self) -> bytes:
        """The report with `safe` and `verdict`, for machines."""
        fields = {"safe": self.safe, "verdict": self.verdict, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)


class Progress(msgspec.Struct, frozen=True):
    """What a watcher is told: so much of a check is done, and in the end how it went."""

    check: str
    done: int = 0
    total: int = 0
    result: CheckResult | None = None


Watcher = Callable[[Progress], None]


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
) -> Report:
    """Run the suite in a fresh folder below `prefix` and say whether the store is safe.

    `repeat` runs each race so often, up to its first failure. `only` names the checks to run.
    An error is raised only if not even a first object can be written.
    """
    sizes = Sizes(writers, increments, racers, keys, listed, large_bytes)
    if min(writers, increments, racers, keys, repeat) < 1:
        raise Refused("writers, increments, racers, keys and repeat are at least 1")
    unknown = sorted(set(only or ()) - {check.name for check in CHECKS})
    if unknown:
        raise Refused(f"no such check: {', '.join(unknown)}")
    folder = f"{check_prefix(prefix)}{runtime.new_ulid()}"
    run = _Run(store, folder, sizes, repeat, only, report or (lambda _: None))
    await run.reach()
    try:
        results = await run.checks()
    finally:
        left_behind = await run.clean_up()
    return Report(
        url=store.url,
        prefix=folder,
        checks=results,
        left_behind=left_behind,
        requests=store.stats.requests,
        cost_usd=store.stats.cost_usd,
        operations={name: _summary(stats) for name, stats in store.stats.operations.items()},
    )


@dataclass(slots=True)
class _Run:
    store: Store
    folder: str
    sizes: Sizes
    repeat: int
    only: Collection[str] | None
    tell: Watcher
    keys: set[str] = field(default_factory=set)
    """What may have to be removed."""

    async def reach(self) -> None:
        """Write one object, so that what is wrong with the address is raised as it is."""
        probe = f"{self.folder}/probe"
        try:
            await self.store.put(probe, b"probe")
        except OutcomeUnknown:
            await self._delete([probe])
            raise
        self.keys.add(probe)

    async def checks(self) -> list[CheckResult]:
        results: list[CheckResult] = []
        stopped = ""
        for check in CHECKS:
            if self.only is not None and check.name not in self.only:
                result = _result(check, "skipped", "not asked for", 0.0)
            elif stopped:
                result = _result(check, "skipped", f"not run, as {stopped} could not finish", 0.0)
            else:
                result = await self._one(check)
            if result.status == "unfinished":
                stopped = check.name
            results.append(result)
            self.tell(Progress(check.name, result=result))
        return results

    async def _one(self, check: Check) -> CheckResult:
        self.tell(Progress(check.name))
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
            self.tell(Progress(check.name, number * total + done, rounds * total))

        folder = f"{self.folder}/{check.name}-{number}"
        bench = Bench(self.store, folder, self.sizes, advance, self.keys)
        try:
            return "pass", await check.run(bench)
        except Violation as violation:
            return "fail", self._shortened(str(violation))
        except Skip as reason:
            return "skipped", str(reason)
        except HeadwaterError as error:
            return _status_of(error), self._shortened(f"{type(error).__name__}: {error}")

    def _shortened(self, detail: str) -> str:
        return detail.replace(f"{self.folder}/", "")

    async def clean_up(self) -> list[str]:
        """Remove what was written. Returns what is still there as far as can be told."""
        failed = await self._delete(sorted(self.keys | await self._listed()))
        return sorted({*failed, *await self._listed()})

    async def _listed(self) -> set[str]:
        try:
            return {meta.key async for meta in self.store.list(self.folder)}
        except HeadwaterError:
            return set()  # a store that cannot list; the keys handed out are known

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

        await each(keys, delete)
        return sorted(failed)


def _status_of(error: HeadwaterError) -> Status:
    # Contended: refused again and again although the condition holds, which is an answer.
    no_answer = isinstance(error, Unavailable | OutcomeUnknown | Denied | NoSpace)
    return "unfinished" if no_answer and not isinstance(error, Contended) else "fail"


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
