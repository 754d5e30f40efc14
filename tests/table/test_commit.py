"""Exactly once: a version is in the table one time, whoever repeats it, whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import IdentityTransform

from headwater.core import portal, runtime
from headwater.core.errors import (
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import Backend
from headwater.table import commit as commit_module
from headwater.table.catalog import RegisterCatalog
from headwater.table.commit import (
    APP,
    FORGET_AFTER_MS,
    LAST,
    CommittedVersion,
    CommitToken,
    commit_files,
)
from headwater.table.data_files import FilesRefused, discard_files
from headwater.testing import Faults, FaultyStore
from tests.table.test_catalog import interrupted
from tests.table.warehouse import KEEP, ORDERS, Warehouse, append, made, stored, written

POINTER_FAULTS = ["answer lost", "never sent", "lands late"]
SEEDS = 12


class Raced(RegisterCatalog):
    """A catalog whose next commit is overtaken."""

    overtake: Callable[[], object] | None = None

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        first, self.overtake = self.overtake, None
        if first is not None:
            first()
        return super().commit_table(table, requirements, updates)


def raced(warehouse: Warehouse, overtake: Callable[[], object]) -> Raced:
    catalog = warehouse.catalog(kind=Raced)
    assert isinstance(catalog, Raced)
    catalog.overtake = overtake
    return catalog


def test_a_commit_is_one_snapshot_that_says_who_wrote_it(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    done = append(catalog, [1, 2, 3], "query", 7)
    assert done.is_ours
    snapshot = catalog.load_table(ORDERS).current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == done.snapshot_id
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert (said["headwater.query-id"], said["headwater.batch-id"]) == ("query", "7")
    assert said["added-records"] == "3"
    assert stored(catalog) == [1, 2, 3]


def test_a_query_from_an_old_checkpoint_is_refused_and_not_passed_over(
    warehouse: Warehouse,
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(3):
        append(catalog, [version], "query", version)
    files = written(catalog, [1, 2, 3, 4])
    older = CommitToken("query", 1, "another run", is_query=True)
    with pytest.raises(Refused, match="older copy"):
        commit_files(catalog, ORDERS, files, older, keep_snapshots=KEEP)
    last = CommitToken("query", 2, "another run", is_query=True)
    assert commit_files(catalog, ORDERS, files, last, keep_snapshots=KEEP).is_ours is False
    assert stored(catalog) == [0, 1, 2]


def test_a_version_that_is_there_is_not_written_again(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    append(catalog, [2], "query", 1)
    for version in (0, 1):
        landed = append(warehouse.catalog(), [99], "query", version)
        assert landed.is_ours is False
    append(catalog, [3], "another", 0)
    assert stored(catalog) == [1, 2, 3]


def test_a_version_is_known_after_its_snapshot_has_expired(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [0], "old", 5, keep=3)
    for version in range(6):
        append(catalog, [version + 1], "busy", version, keep=3)
    table = catalog.load_table(ORDERS)
    assert len(table.metadata.snapshots) == 3
    said = [one.summary and one.summary.additional_properties for one in table.metadata.snapshots]
    assert all(one is not None and one[APP] == "busy" for one in said)
    for version in (4, 5):
        landed = append(catalog, [99], "old", version, keep=3)
        assert landed.snapshot_id is None
        assert landed.is_ours is (False if version == 5 else None)
    assert stored(catalog) == list(range(7))


def test_whoever_is_overtaken_by_a_stranger_comes_after_it(warehouse: Warehouse) -> None:
    other = warehouse.catalog()
    made(other)
    catalog = raced(warehouse, lambda: append(other, [1], "stranger", 0))
    assert append(catalog, [2], "query", 0).is_ours
    assert stored(other) == [1, 2]


def test_whoever_is_overtaken_by_its_twin_leaves_it_at_that(warehouse: Warehouse) -> None:
    other = warehouse.catalog()
    made(other)
    catalog = raced(warehouse, lambda: append(other, [1], "query", 0))
    landed = append(catalog, [1], "query", 0)
    assert landed.is_ours is False
    assert stored(other) == [1]


def test_retries_are_off_for_tables_that_others_made(warehouse: Warehouse) -> None:
    other = warehouse.catalog()
    made(other)
    assert "commit.retry.num-retries" not in other.load_table(ORDERS).properties
    catalog = raced(warehouse, lambda: append(other, [1], "query", 0))
    append(catalog, [1], "query", 0)
    assert stored(other) == [1]
    assert "commit.retry.num-retries" not in other.load_table(ORDERS).properties


def test_with_pyicebergs_own_retry_a_twin_would_write_twice(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_on = {"commit.retry.num-retries": "4", "commit.retry.min-wait-ms": "0"}
    monkeypatch.setattr(commit_module, "WHILE_COMMITTING", left_on)
    other = warehouse.catalog()
    made(other)
    append(raced(warehouse, lambda: append(other, [1], "query", 0)), [1], "query", 0)
    assert stored(other) == [1, 1]


def test_without_looking_for_its_token_a_replay_would_write_twice(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    monkeypatch.setattr(commit_module, "find_commit", lambda *_: None)
    append(catalog, [1], "query", 0)
    assert stored(catalog) == [1, 1]


@pytest.mark.parametrize("fault", POINTER_FAULTS)
def test_an_answer_that_is_lost_makes_no_second_copy(warehouse: Warehouse, fault: str) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = fault
    done = append(catalog, [1, 2], "query", 0)
    assert done.is_ours
    for request in backend.late:
        with pytest.raises(HeadwaterError):
            portal.shared().call(_awaited(request))
    assert stored(warehouse.catalog()) == [1, 2]


async def _awaited(request: Callable[[], object]) -> None:
    await request()  # type: ignore[misc]


def test_ones_own_late_commit_is_recognised_and_its_files_are_kept(warehouse: Warehouse) -> None:
    """It lands after it was given up, before the next attempt reads."""
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = "lands late"
    reads = RegisterCatalog.load_table
    calls = 0

    def landing(self: RegisterCatalog, identifier: object) -> Table:
        nonlocal calls
        calls += bool(backend.late)
        if calls == 2:
            portal.shared().call(_awaited(backend.late.pop()))
        return reads(self, identifier)  # type: ignore[arg-type]

    catalog.load_table = landing.__get__(catalog)  # type: ignore[method-assign]
    done = append(catalog, [1, 2], "query", 0)
    assert done.is_ours
    assert stored(warehouse.catalog()) == [1, 2]
    assert len(warehouse.catalog().load_table(ORDERS).metadata.snapshots) == 1


def test_a_store_that_never_tells_is_an_unknown_outcome(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)

    put = backend.put

    async def never(key: str, *rest: object) -> object:
        backend.fault = "never sent"
        return await put(key, *rest)  # type: ignore[arg-type]

    backend.put = never  # type: ignore[assignment,method-assign]
    with pytest.raises(OutcomeUnknown):
        append(catalog, [1], "query", 0)
    assert stored(warehouse.catalog()) == []


def test_what_may_have_landed_and_expired_since_is_not_written_again(
    warehouse: Warehouse,
) -> None:
    """A job that names nothing is known by its snapshot alone, and others let that expire."""
    catalog, backend = interrupted(warehouse)
    made(catalog)
    files = written(catalog, [1])

    def away(*_: object) -> bool:
        for version in range(3):
            append(warehouse.catalog(), [version + 2], "other", version, keep=1)
        backend.deaf = False
        return False

    catalog._has_landed = away  # type: ignore[method-assign,assignment]
    backend.fault = "answer lost, then silence"
    job = CommitToken("batch-1", 0, "w", is_repeatable=False)
    with pytest.raises(OutcomeUnknown, match="has expired"):
        commit_files(catalog, ORDERS, files, job, keep_snapshots=KEEP)
    assert stored(warehouse.catalog()) == [1, 2, 3, 4]


def test_others_who_always_win_are_named(warehouse: Warehouse) -> None:
    other = warehouse.catalog()
    made(other)
    catalog = warehouse.catalog(kind=Raced)
    assert isinstance(catalog, Raced)
    won = 0

    def win() -> None:
        nonlocal won
        won += 1
        append(other, [won], "stranger", won, keep=2)
        catalog.overtake = win

    catalog.overtake = win
    with pytest.raises(Contended, match="other commits came first"):
        append(catalog, [0], "query", 0)
    assert stored(other) == list(range(1, won + 1))


def test_a_commit_that_may_have_landed_stays_unknown_whatever_is_refused_after_it(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    answers = iter([CommitStateUnknownException("no answer")])

    def refuse(*_: object) -> CommittedVersion:
        raise next(answers, CommitFailedException("another came first"))

    monkeypatch.setattr(commit_module, "_append", refuse)
    with pytest.raises(OutcomeUnknown, match="no answer"):
        append(catalog, [1], "query", 0)


@pytest.mark.parametrize(
    "error",
    [Unavailable("no route to host"), NoSuchTableError("dropped since"), OSError("cut short")],
)
def test_no_failure_of_the_look_hides_that_a_commit_may_have_landed(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])

    def unknown(*_: object) -> CommittedVersion:
        def away(*_: object) -> Table:
            raise error

        monkeypatch.setattr(RegisterCatalog, "load_table", away)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(commit_module, "_append", unknown)
    with pytest.raises(OutcomeUnknown, match=f"no answer; then: {error}"):
        commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)


def test_a_commit_that_landed_before_the_store_went_away_is_not_called_failed(
    warehouse: Warehouse,
) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    files = written(catalog, [1, 2])
    backend.fault = "answer lost, then silence"
    with pytest.raises(OutcomeUnknown):
        commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    backend.deaf = False
    done = commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert done.is_ours
    assert stored(warehouse.catalog()) == [1, 2]


# Which table


def test_files_of_a_table_that_was_created_again_are_refused(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    catalog.drop_table(ORDERS)
    catalog.create_table(ORDERS, pa.schema([("name", pa.string()), ("id", pa.int64())]))
    with pytest.raises(FilesRefused, match="dropped and created again"):
        commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == []


def test_files_of_a_column_that_is_gone_are_refused(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    with catalog.load_table(ORDERS).update_schema() as update:
        update.delete_column("name")
    with pytest.raises(FilesRefused, match="lost columns"):
        commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == []


def partitioned(catalog: RegisterCatalog) -> None:
    with catalog.load_table(ORDERS).update_spec() as update:
        update.add_field("name", IdentityTransform(), "name_part")


def required(catalog: RegisterCatalog) -> None:
    with catalog.load_table(ORDERS).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("name", required=True)


CHANGES = [(partitioned, "was partitioned since"), (required, "requires the columns name since")]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_files_that_a_changed_table_cannot_hold_are_refused(
    warehouse: Warehouse, change: Callable[[RegisterCatalog], None], why: str
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    change(catalog)
    with pytest.raises(FilesRefused, match=why):
        commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == []


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_a_table_that_changes_during_the_commit_is_looked_at_again(
    warehouse: Warehouse, change: Callable[[RegisterCatalog], None], why: str
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    late = raced(warehouse, lambda: change(catalog))
    with pytest.raises(FilesRefused, match=why):
        commit_files(late, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == []


def test_columns_that_are_renamed_while_a_job_writes_keep_their_statistics(
    warehouse: Warehouse,
) -> None:
    """By name, the least and the greatest `name` would be those of the column called so now."""
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1, 2])
    with catalog.load_table(ORDERS).update_schema() as update:
        update.rename_column("id", "number").rename_column("name", "id")
    commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    table = catalog.load_table(ORDERS)
    assert table.scan(row_filter="number = 2").to_arrow().to_pylist() == [{"number": 2, "id": "2"}]
    assert table.scan(row_filter="id = '1'").to_arrow().to_pylist() == [{"number": 1, "id": "1"}]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_twins_on_a_bad_day_write_each_version_once(warehouse: Warehouse, seed: int) -> None:
    chance = random.Random(seed)
    made(warehouse.catalog())
    faults = Faults(
        fail_before=chance.uniform(0, 0.2),
        lose_response=chance.uniform(0, 0.2),
        own_412=chance.uniform(0, 0.2),
        conflict_409=chance.uniform(0, 0.1),
        throttle=chance.uniform(0, 0.1),
        missing_404=chance.uniform(0, 0.1),
    )

    def bad_day(backend: Backend) -> Backend:
        return FaultyStore(backend, faults, chance, latency_s=0.0)

    given_up = 0
    for version in range(4):
        while True:
            catalog = warehouse.catalog(bad_day, policy=RetryPolicy(attempts=2))
            try:
                append(catalog, [version], "query", version)
                break
            except (HeadwaterError, CommitStateUnknownException):
                given_up += 1  # as a query that fails, and is started again
        # A replay, as after a crash between this commit and Spark's own.
        replay = append(warehouse.catalog(), [version], "query", version)
        assert replay.is_ours is False
    assert stored(warehouse.catalog()) == [0, 1, 2, 3], f"given up {given_up} times"


def test_commits_do_not_grow_with_their_number(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(60):
        append(catalog, [version], "query", version, keep=10)
    table = catalog.load_table(ORDERS)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(table.metadata.snapshots) == 10
    assert len(snapshot.manifests(table.io)) <= commit_module.MERGE_MANIFESTS
    assert stored(catalog) == list(range(60))


def test_snapshots_that_a_tag_holds_do_not_expire(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    done = append(catalog, [0], "query", 0, keep=2)
    assert done.is_ours
    assert done.snapshot_id is not None
    catalog.load_table(ORDERS).manage_snapshots().create_tag(done.snapshot_id, "first").commit()
    for version in range(1, 6):
        append(catalog, [version], "query", version, keep=2)
    tagged = catalog.load_table(ORDERS).scan(snapshot_id=done.snapshot_id).to_arrow()
    assert tagged.column("id").to_pylist() == [0]


def test_applications_that_fell_silent_are_forgotten_in_the_end(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "APPS_MAX", 3)
    catalog = warehouse.catalog()
    made(catalog)
    now_ms = 10 * FORGET_AFTER_MS
    monkeypatch.setattr(runtime, "wall_ms", lambda: now_ms)
    for app in ("a", "b", "c", "d"):
        append(catalog, [1], app, 0)
    kept = [key for key in catalog.load_table(ORDERS).properties if key.startswith(LAST)]
    assert len(kept) == 4, "nobody has been silent for long"
    now_ms += FORGET_AFTER_MS + 1
    append(catalog, [1], "d", 1)
    kept = [key for key in catalog.load_table(ORDERS).properties if key.startswith(LAST)]
    assert sorted(kept) == [f"{LAST}{app}" for app in ("b", "c", "d")]


def test_what_nobody_can_repeat_is_not_remembered(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    once = CommitToken("batch-1", 0, "w", is_repeatable=False)
    commit_files(catalog, ORDERS, written(catalog, [1]), once, keep_snapshots=KEEP)
    assert not [key for key in catalog.load_table(ORDERS).properties if key.startswith(LAST)]


def test_files_that_are_discarded_are_gone(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    assert discard_files(catalog.root, files) == []
    assert not any("/data/" in key for key in warehouse.objects._objects)
