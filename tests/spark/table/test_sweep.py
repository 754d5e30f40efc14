"""What commits leave behind is removed, and nothing that a snapshot names."""

from __future__ import annotations

import pytest

from headwater.core import portal, runtime
from headwater.core.errors import Unavailable
from headwater.spark.table import commit as commits
from headwater.spark.table import sweep as sweeps
from headwater.spark.table.sweep import sweep
from tests.spark.table.given import ORDERS, Warehouse, append, made, stored


def metadata_files(warehouse: Warehouse) -> set[str]:
    return {key for key in warehouse.objects._objects if key.startswith("shop/orders/metadata/")}


def test_obsolete_metadata_goes_and_every_snapshot_stays_readable(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(40):
        append(catalog, [version], "query", version, keep=5)
    before = metadata_files(warehouse)
    table = catalog.load_table(ORDERS)
    assert sweep(table) == 0, "all of it is younger than the grace"
    removed = sweep(table, grace_ms=-1)
    after = metadata_files(warehouse)
    assert removed == len(before - after) > 50
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
    sweep(catalog.load_table(ORDERS), grace_ms=-1)
    assert strange in metadata_files(warehouse)
    assert any("/data/" in key for key in warehouse.objects._objects)


def test_a_sweeper_that_stood_still_leaves_what_was_committed_meanwhile(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    mine = catalog.load_table(ORDERS)
    for version in (1, 2, 3):
        append(warehouse.catalog(), [version + 1], "query", version)
    late_ms = runtime.wall_ms() + 100 * sweeps.GRACE_MS
    monkeypatch.setattr(runtime.current(), "wall_ms", lambda: late_ms)
    assert sweep(mine) == 0
    assert stored(warehouse.catalog()) == [1, 2, 3, 4]


def test_a_table_that_was_renamed_is_safe_from_the_next_of_its_name(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    catalog.rename_table(ORDERS, "shop.sales")
    made(catalog)
    append(catalog, [2], "query", 0)
    sweep(catalog.load_table(ORDERS), grace_ms=-1_000_000)
    fresh = warehouse.catalog()
    assert fresh.load_table("shop.sales").scan().to_arrow().column("id").to_pylist() == [1]
    assert stored(fresh) == [2]


def test_every_so_many_commits_sweep(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []
    monkeypatch.setattr(sweeps, "SWEEP_EVERY", 5)
    monkeypatch.setattr(commits, "sweep", lambda table: swept.append(len(table.metadata.snapshots)))
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(11):
        append(catalog, [version], "query", version)
    assert swept == [5, 10]


@pytest.mark.parametrize("error", [Unavailable("not today"), FileNotFoundError("not today")])
def test_a_sweep_that_fails_does_not_undo_the_commit(
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    monkeypatch.setattr(commits, "is_due", lambda _: True)

    def failing(table: object) -> int:
        raise error

    monkeypatch.setattr(commits, "sweep", failing)
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    assert stored(catalog) == [1]
    assert "obsolete metadata stays for now: not today" in caplog.text
