"""What commits leave behind is removed, and nothing that a snapshot names."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from headwater.core import portal, runtime
from headwater.core.errors import Unavailable
from headwater.table import commit as commits
from headwater.table import metadata_sweep
from headwater.table.catalog import RegisterCatalog
from headwater.table.metadata_sweep import list_metadata_files, sweep
from tests.table.warehouse import ORDERS, Warehouse, append, made, stored


def metadata_files(warehouse: Warehouse) -> set[str]:
    return {key for key in warehouse.objects._objects if key.startswith("shop/orders/metadata/")}


def swept(catalog: RegisterCatalog, *, grace_ms: int = metadata_sweep.GRACE_MS) -> int:
    """What a commit that makes no new snapshot sweeps."""
    table = catalog.load_table(ORDERS)
    before = list_metadata_files(table)
    changed = table.transaction().set_properties({"swept": "yes"}).commit_transaction()
    return sweep(changed, before, grace_ms=grace_ms)


def test_obsolete_metadata_goes_and_every_snapshot_stays_readable(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(40):
        append(catalog, [version], "query", version, keep=5)
    assert swept(catalog) == 0, "all of it is younger than the grace"
    before = metadata_files(warehouse)
    removed = swept(warehouse.catalog(), grace_ms=-1)
    after = metadata_files(warehouse)
    assert removed == len(before - after) > 50
    table = warehouse.catalog().load_table(ORDERS)
    assert stored(warehouse.catalog()) == list(range(40))
    for snapshot in table.metadata.snapshots:
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert rows == snapshot.sequence_number
    append(warehouse.catalog(), [40], "query", 40, keep=5)
    assert stored(warehouse.catalog()) == list(range(41))


def test_what_is_not_icebergs_stays(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    strange = "shop/orders/metadata/notes.txt"
    portal.shared().call(warehouse.objects.put(strange, b"mine"))
    swept(catalog, grace_ms=-1)
    assert strange in metadata_files(warehouse)
    assert any("/data/" in key for key in warehouse.objects._objects)


@pytest.mark.parametrize("clock_h", [-1000, 0, 1000])
def test_a_sweeper_that_stood_still_leaves_what_was_committed_meanwhile(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, clock_h: int
) -> None:
    """Also where the store's clock is set back or forward before the others commit."""
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(3):
        append(catalog, [version], "query", version, keep=1)
    table = catalog.load_table(ORDERS)
    before = list_metadata_files(table)
    mine = table.transaction().set_properties({"mine": "yes"}).commit_transaction()
    clock_ms = runtime.wall_ms() + clock_h * 3_600_000
    monkeypatch.setattr(runtime.current(), "wall_ms", lambda: clock_ms)
    for version in (3, 4, 5):
        append(warehouse.catalog(), [version], "query", version)
    there = metadata_files(warehouse)
    assert sweep(mine, before, grace_ms=-1) > 0
    gone = there - metadata_files(warehouse)
    assert gone <= {meta.key for meta in before}
    assert stored(warehouse.catalog()) == [0, 1, 2, 3, 4, 5]


def test_a_commit_sweeps_what_was_there_before_it(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that others commit between this commit and its sweep."""
    monkeypatch.setattr(metadata_sweep, "SWEEP_EVERY", 3)
    monkeypatch.setattr(metadata_sweep, "sweep", partial(sweep, grace_ms=-1_000_000))
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(2):
        append(catalog, [version], "query", version, keep=1)

    class Followed(RegisterCatalog):
        def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
            done = super().commit_table(table, requirements, updates)
            append(catalog, [3], "other", 0)
            return done

    append(warehouse.catalog(kind=Followed), [2], "query", 2, keep=1)
    assert stored(warehouse.catalog()) == [0, 1, 2, 3]


@pytest.mark.parametrize("ahead_h", [-1000, 3, 1000])
def test_the_clock_of_the_sweeper_removes_nothing(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, ahead_h: int
) -> None:
    """How old a file is, the store's clock says, and not that which is in the sweeper's commit."""
    monkeypatch.setattr(metadata_sweep, "SWEEP_EVERY", 2)
    catalog = warehouse.catalog()
    made(catalog)
    stamp_ms = runtime.wall_ms() + ahead_h * 3_600_000

    class Stamped(RegisterCatalog):
        def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
            done = super().commit_table(table, requirements, updates)
            stamped = done.metadata.model_copy(update={"last_updated_ms": stamp_ms})
            return done.model_copy(update={"metadata": stamped})

    stamped = warehouse.catalog(kind=Stamped)
    for version in range(6):
        append(stamped, [version], "query", version, keep=1)
    numbers = [key for key in metadata_files(warehouse) if "snap-" in key]
    assert len(numbers) == 6, "nothing of it is an hour old"
    assert stored(warehouse.catalog()) == [0, 1, 2, 3, 4, 5]


def test_a_table_that_was_renamed_is_safe_from_the_next_of_its_name(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    catalog.rename_table(ORDERS, "shop.sales")
    made(catalog)
    append(catalog, [2], "query", 0)
    swept(catalog, grace_ms=-1_000_000)
    fresh = warehouse.catalog()
    assert fresh.load_table("shop.sales").scan().to_arrow().column("id").to_pylist() == [1]
    assert stored(fresh) == [2]


def test_every_so_many_commits_sweep(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    swept_at: list[int] = []
    monkeypatch.setattr(metadata_sweep, "SWEEP_EVERY", 5)
    monkeypatch.setattr(
        metadata_sweep,
        "sweep",
        lambda table, before: swept_at.append(len(table.metadata.snapshots)),
    )
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(11):
        append(catalog, [version], "query", version)
    assert swept_at == [5, 10]


def test_a_table_of_format_1_lists_nothing_with_its_commits(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits have no numbers: every one of them would be the one that sweeps."""
    listings: list[Any] = []

    def noted(table: Any) -> list[Any]:
        listings.append(table)
        return []

    monkeypatch.setattr(metadata_sweep, "list_metadata_files", noted)
    catalog = warehouse.catalog()
    made(catalog, properties={"format-version": "1"})
    for version in range(3):
        append(catalog, [version], "query", version)
    assert catalog.load_table(ORDERS).metadata.format_version == 1
    assert (stored(catalog), listings) == ([0, 1, 2], [])


@pytest.mark.parametrize("step", ["list_metadata_files", "sweep"])
@pytest.mark.parametrize("error", [Unavailable("not today"), ValueError("not today")])
def test_a_sweep_that_fails_does_not_undo_the_commit(
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    step: str,
) -> None:
    monkeypatch.setattr(metadata_sweep, "is_sweep_due", lambda _: True)

    def failing(*_: object) -> int:
        raise error

    monkeypatch.setattr(metadata_sweep, step, failing)
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    assert stored(catalog) == [1]
    assert "obsolete metadata stays until the next sweep: not today" in caplog.text


def test_what_is_swept_under_whoever_stands_still_is_looked_for_again(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that was read from a pointer, or manifests that a commit goes on from, are gone."""
    catalog, other = warehouse.catalog(), warehouse.catalog()
    made(catalog)
    append(catalog, [0], "query", 0, keep=1)

    def moves_on() -> None:
        for _ in range(2):
            append(other, [len(stored(other))], "other", len(stored(other)), keep=1)
            with other.load_table(ORDERS).transaction() as transaction:
                transaction.set_properties({"write.metadata.previous-versions-max": "1"})
        swept(other, grace_ms=-1)

    steps = [RegisterCatalog._table, commits._append]

    def once(place: int) -> Any:
        def step(*asked: Any) -> Any:
            monkeypatch.undo()
            moves_on()
            return steps[place](*asked)  # type: ignore[operator]

        return step

    fresh = warehouse.catalog()
    monkeypatch.setattr(RegisterCatalog, "_table", once(0))
    assert fresh.load_table(ORDERS).metadata.snapshots
    monkeypatch.setattr(commits, "_append", once(1))
    append(warehouse.catalog(), [99], "query", 1, keep=1)
    assert stored(warehouse.catalog())[-1] == 99
