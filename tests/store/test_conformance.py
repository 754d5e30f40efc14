"""The suite passes on right stores and fails on wrong ones, each for the right reason."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headwater.core.errors import Refused, Unavailable
from headwater.core.limits import MIB
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition, Unreachable
from headwater.store.conformance import CHECKS, WORST, CheckProgress, StoreReport, check_store
from headwater.store.objects import Buffer
from tests.store import wrong
from tests.store.scripted import virtual

NAMES = [check.name for check in CHECKS]


async def check_quickly(store: Store, **sizes: int) -> StoreReport:
    small = {"writers": 4, "increments": 20, "racers": 8, "keys": 4, "large_bytes": 20 * MIB}
    return await check_store(store, **(small | sizes))  # type: ignore[arg-type]


def failures(report: StoreReport) -> set[str]:
    assert not report.named("unfinished"), report.verdict
    return set(report.named("fail"))


def test_a_right_store_is_safe_and_left_as_it_was(any_store: Store) -> None:
    async def run() -> tuple[StoreReport, list[str]]:
        await any_store.put("somebody/else", b"here before")
        # Of more than a page there is in memory alone: elsewhere a thousand writes take seconds,
        # and what lists pages is tested by itself.
        pages = {} if any_store.url.startswith("memory") else {"increments": 5, "listed": 20}
        report = await check_quickly(any_store, **pages)
        return report, [meta.key async for meta in any_store.list()]

    report, keys = asyncio.run(run())
    assert report.safe, report.verdict
    assert report.named("pass") == NAMES
    assert report.left_behind == []
    assert keys == ["somebody/else"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (wrong.LosesUpdates, {"race-replace", "race-register"}),
        (wrong.CreatesTwice, {"race-create", "race-register", "race-numbered-log"}),
        (
            wrong.IgnoresConditions,
            {
                "create-if-absent",
                "replace-if-unchanged",
                "race-replace",
                "race-create",
                "race-register",
                "race-numbered-log",
            },
        ),
        (wrong.RefusesReplacements, {"replace-if-unchanged", "race-replace", "race-register"}),
        (wrong.ListsUnordered, {"list", "list-start-after", "list-folder", "list-pages"}),
        (wrong.ListsLate, {"list", "list-start-after", "list-folder", "list-pages"}),
        (wrong.ListsOnePage, {"list-pages"}),
        (wrong.ListsByText, {"list-folder"}),
        (
            wrong.KeepsVersions,
            {"replace-if-unchanged", "version-changes", "race-replace", "race-register"},
        ),
        (wrong.ShortSuffixes, {"ranges"}),
        (wrong.WrongRanges, {"ranges", "large-object"}),
        (wrong.ReadsStale, {"overwrite"}),
        (wrong.WrongHead, {"head"}),
        (wrong.KeepsDeleted, {"list", "delete"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@virtual
async def test_a_wrong_store_fails_exactly_there(
    kind: type[MemoryBackend], expected: set[str]
) -> None:
    report = await check_quickly(Store(kind()))
    assert failures(report) == expected
    assert not report.safe
    assert report.verdict.startswith("this store is NOT safe: ")


@virtual
async def test_distance_alone_fails_nothing() -> None:
    assert failures(await check_quickly(Store(wrong.Distant()))) == set()


@virtual
async def test_lost_updates_are_counted_and_come_first_in_the_verdict() -> None:
    report = await check_quickly(Store(wrong.IgnoresConditions()), increments=10)
    assert "race-replace: 30 of 40 accepted updates were lost" in report.verdict
    assert "do not use this store" in report.verdict


@virtual
async def test_a_rare_loss_is_found_by_repeating() -> None:
    once = await check_store(Store(wrong.LosesSeldom(1500)), only=["race-replace"], increments=10)
    assert once.safe
    often = await check_store(
        Store(wrong.LosesSeldom(1500)), only=["race-replace"], increments=10, repeat=200
    )
    [result] = [check for check in often.checks if check.status != "skipped"]
    assert result.status == "fail"
    assert "1 of 80 accepted updates were lost" in result.detail
    assert "of 200 rounds" in result.detail


@virtual
async def test_what_cannot_be_deleted_is_named() -> None:
    backend = wrong.RefusesDeletes()
    report = await check_quickly(Store(backend))
    assert report.named("fail") == []
    assert "delete" in report.named("unfinished")
    assert not report.safe
    assert "AccessDenied" in report.verdict
    assert report.left_behind == sorted(backend._objects)


@virtual
async def test_an_unfinished_check_does_not_call_a_store_unsafe() -> None:
    class NoParts(MemoryBackend):
        async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
            if "large-object" in key:
                raise Unavailable("500 InternalError")
            return await super().put(key, data, condition)

    report = await check_quickly(Store(NoParts()))
    assert report.named("unfinished") == ["large-object"]
    assert len(report.named("pass")) == len(NAMES) - 1
    assert not report.safe
    assert report.verdict.startswith("undecided: large-object could not finish: ")


@virtual
async def test_a_store_that_goes_away_is_not_asked_any_further() -> None:
    class GoesAway(MemoryBackend):
        requests = 0

        async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
            GoesAway.requests += 1
            if GoesAway.requests > 20:
                raise Unreachable("connection refused")
            return await super().put(key, data, condition)

    report = await check_quickly(Store(GoesAway()))
    [unfinished] = report.named("unfinished")
    after = NAMES[NAMES.index(unfinished) + 1 :]
    assert report.named("skipped") == after
    assert len(after) > 5


@virtual
async def test_a_store_that_was_never_reached_raises_its_error() -> None:
    class Nowhere(MemoryBackend):
        async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
            raise Unreachable("connection refused")

    with pytest.raises(Unavailable, match="connection refused"):
        await check_store(Store(Nowhere()))


@virtual
async def test_it_cleans_up_when_it_is_interrupted() -> None:
    backend = MemoryBackend()

    def interrupt(progress: CheckProgress) -> None:
        if progress.check == "race-replace":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await check_store(Store(backend), report=interrupt)
    assert backend._objects == {}


@virtual
async def test_two_runs_do_not_meet() -> None:
    store = Store(MemoryBackend())
    first, second = await asyncio.gather(check_quickly(store), check_quickly(store))
    assert first.safe
    assert second.safe
    assert first.prefix != second.prefix


@virtual
async def test_the_watcher_sees_every_check_begin_advance_and_end() -> None:
    seen: list[CheckProgress] = []
    report = await check_store(
        Store(MemoryBackend()), increments=5, racers=4, keys=3, report=seen.append
    )
    assert [progress.result for progress in seen if progress.result] == report.checks
    assert [progress.check for progress in seen if not progress.result and not progress.total] == (
        NAMES
    )
    race = [step.done for step in seen if step.check == "race-replace" and step.total == 40]
    assert race == list(range(1, 41))


@virtual
async def test_the_report_counts_requests_and_reads_as_json() -> None:
    store = Store(MemoryBackend())
    report = await check_quickly(store)
    read = msgspec.json.decode(report.to_json())
    assert read["safe"] is True
    assert read["verdict"] == report.verdict
    assert [check["name"] for check in read["checks"]] == NAMES
    assert read["requests"] == store.stats.requests > 1000
    assert read["operations"]["put_if_unchanged"]["requests"] >= 80


@virtual
async def test_checks_can_be_chosen_and_skipped() -> None:
    store = Store(MemoryBackend())
    report = await check_store(store, only=["list-pages", "large-object", "head"], listed=0)
    assert report.named("pass") == ["head", "large-object"]
    assert len(report.named("skipped")) == len(NAMES) - 2
    with pytest.raises(Refused, match="no such check: heed"):
        await check_store(store, only=["heed"])
    with pytest.raises(Refused, match="at least 1"):
        await check_store(store, writers=0)


def test_every_check_says_why_in_one_sentence() -> None:
    for check in CHECKS:
        assert check.claim.endswith("."), check.name
        assert ". " not in check.claim, check.name
    assert set(WORST) <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
