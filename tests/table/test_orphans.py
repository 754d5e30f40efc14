"""Data files that no snapshot names: found and removed when they are old, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from headwater.core import portal, runtime
from headwater.core.errors import NotFound, Refused
from headwater.table import commit as commits
from headwater.table import orphans
from headwater.table.catalog import RegisterCatalog
from headwater.table.commit import CommitToken, commit_files
from headwater.table.data_files import FilesRefused, to_data_files
from headwater.table.orphans import remove_orphans
from headwater.table.reference import TableReference
from tests.table.warehouse import KEEP, ORDERS, Warehouse, append, made, stored, written

HOUR_MS = 3_600_000


def data_files(warehouse: Warehouse) -> set[str]:
    return {f"{warehouse.url}/{key}" for key in warehouse.objects._objects if "/data/" in key}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets hours pass."""

    def pass_hours(hours: float) -> None:
        now_ms = runtime.wall_ms() + int(hours * HOUR_MS)
        monkeypatch.setattr(runtime.current(), "wall_ms", lambda: now_ms)

    return pass_hours


def test_what_a_killed_job_left_is_removed_and_every_snapshot_stays_readable(
    warehouse: Warehouse, later: Callable[[float], None]
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    for version in range(3):
        append(catalog, [version], "query", version)
    left = written(catalog, [97, 98, 99])
    later(73)
    before = data_files(warehouse)
    seen = remove_orphans(ORDERS, warehouse=warehouse.url, dry_run=True)
    assert seen.locations == [left[0].location]
    assert seen.size_bytes == left[0].size_bytes
    assert data_files(warehouse) == before
    assert remove_orphans(ORDERS, warehouse=warehouse.url) == seen
    assert before - data_files(warehouse) == {left[0].location}
    table = warehouse.catalog().load_table(ORDERS)
    for snapshot in table.metadata.snapshots:
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        assert rows == snapshot.sequence_number


def test_what_a_running_job_wrote_stays(
    warehouse: Warehouse, later: Callable[[float], None]
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    later(71)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)


def test_what_is_committed_while_it_looks_stays(
    warehouse: Warehouse, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    later(1000)
    loads = iter([catalog.load_table(ORDERS)])

    def loaded(target: TableReference) -> Any:
        before = next(loads, None)
        if before is not None:
            commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
        return before or load(target)

    load = TableReference.load
    monkeypatch.setattr(TableReference, "load", loaded)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    assert stored(warehouse.catalog()) == [1]


@pytest.mark.parametrize("removes_h", [73, 1000])
def test_a_job_that_took_longer_than_it_may_is_refused_and_loses_nothing(
    warehouse: Warehouse, later: Callable[[float], None], removes_h: float
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    slow = written(catalog, [1, 2])
    later(removes_h)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == [slow[0].location]
    with pytest.raises(FilesRefused, match="remove_orphans"):
        commit_files(catalog, ORDERS, slow, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    again = written(catalog, [1, 2])
    commit_files(catalog, ORDERS, again, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(warehouse.catalog()) == [1, 2]


def test_a_job_that_commits_while_orphans_are_removed_is_refused(
    warehouse: Warehouse, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had compared its files with the floor before that rose."""
    catalog = warehouse.catalog()
    made(catalog)
    slow = written(catalog, [1])
    later(73)

    def meanwhile(*asked: Any) -> Any:
        monkeypatch.setattr(commits, "to_data_files", to_data_files)
        assert len(remove_orphans(ORDERS, warehouse=warehouse.url).locations) == 1
        return to_data_files(*asked)

    monkeypatch.setattr(commits, "to_data_files", meanwhile)
    with pytest.raises(FilesRefused, match="remove_orphans"):
        commit_files(catalog, ORDERS, slow, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(warehouse.catalog()) == []


def test_of_two_removals_at_once_the_later_one_does_not_lower_the_floor(
    warehouse: Warehouse, later: Callable[[float], None]
) -> None:
    """What the first one removed could be committed again below it."""
    catalog = warehouse.catalog()
    table = made(catalog)
    lower, higher = (written(catalog, [number])[0] for number in (1, 2))
    later(73)
    loads = iter([catalog.load_table(ORDERS)])

    def loaded() -> Table:
        before = next(loads, None)
        if before is not None:
            assert len(remove_orphans(ORDERS, warehouse=warehouse.url).locations) == 2
        return before or catalog.load_table(ORDERS)

    orphans._raise_floor(loaded, table, lower.location.rpartition("/")[2].partition(".")[0])
    with pytest.raises(FilesRefused, match="remove_orphans"):
        commit_files(catalog, ORDERS, [higher], CommitToken("query", 0, "w"), keep_snapshots=KEEP)


def test_files_of_a_clock_far_behind_lie_above_the_floor(
    warehouse: Warehouse, later: Callable[[float], None]
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    written(catalog, [99])
    later(73)
    remove_orphans(ORDERS, warehouse=warehouse.url)
    later(-10_000)
    append(catalog, [1], "query", 0)
    assert stored(warehouse.catalog()) == [1]


@pytest.mark.parametrize("ahead_h", [-1000, 1000])
def test_how_old_a_file_is_the_stores_clock_says(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, ahead_h: float
) -> None:
    """The machine that removes them has another time."""
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    store_ms = runtime.wall_ms()
    put = warehouse.objects.put

    class Stopped(type(runtime.current())):  # type: ignore[misc]
        def wall_ms(self) -> int:
            return store_ms

    async def stamped(*asked: Any) -> Any:
        with runtime.installed(Stopped()):
            return await put(*asked)

    monkeypatch.setattr(warehouse.objects, "put", stamped)
    now_ms = store_ms + int(ahead_h * HOUR_MS)
    monkeypatch.setattr(runtime.current(), "wall_ms", lambda: now_ms)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(warehouse.catalog()) == [1]


def test_a_directory_whose_clock_was_ahead_once_removes_nothing_of_a_running_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an object that is replaced never gets an earlier time than it had."""
    url = f"file://{tmp_path}"
    catalog = RegisterCatalog("test", warehouse=url)
    made(catalog)
    with monkeypatch.context() as ahead:
        now_ns = runtime.wall_ns() + 365 * 24 * HOUR_MS * 1_000_000
        ahead.setattr(runtime.current(), "wall_ns", lambda: now_ns)
        ahead.setattr(runtime.current(), "wall_ms", lambda: now_ns // 1_000_000)
        remove_orphans(ORDERS, warehouse=url)
    files = written(catalog, [1])
    assert remove_orphans(ORDERS, warehouse=url).locations == []
    commit_files(catalog, ORDERS, files, CommitToken("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == [1]


def test_the_files_of_a_table_that_was_renamed_meanwhile_stay(
    warehouse: Warehouse, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is another table's by the time of the last look, and that names none of them."""
    catalog = warehouse.catalog()
    made(catalog)
    append(catalog, [1], "query", 0)
    written(catalog, [99])
    later(73)
    loads = iter([catalog.load_table(ORDERS)])

    def loaded(target: TableReference) -> Any:
        before = next(loads, None)
        if before is not None:
            catalog.rename_table(ORDERS, "shop.sales")
            made(catalog)
        return before or load(target)

    load = TableReference.load
    monkeypatch.setattr(TableReference, "load", loaded)
    with pytest.raises(Refused, match="another table by now"):
        remove_orphans(ORDERS, warehouse=warehouse.url)
    moved = warehouse.catalog().load_table("shop.sales").scan().to_arrow()
    assert moved.column("id").to_pylist() == [1]


def test_what_others_put_there_stays(warehouse: Warehouse, later: Callable[[float], None]) -> None:
    made(warehouse.catalog())
    portal.shared().call(warehouse.objects.put("shop/orders/data/part-0.parquet", b"theirs"))
    later(1000)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    assert "shop/orders/data/part-0.parquet" in warehouse.objects._objects


def test_less_than_a_day_is_refused(warehouse: Warehouse) -> None:
    made(warehouse.catalog())
    with pytest.raises(Refused, match="running job"):
        remove_orphans(ORDERS, warehouse=warehouse.url, older_than_hours=23)


def test_of_no_table_there_are_none(warehouse: Warehouse) -> None:
    with pytest.raises(NotFound, match=r"shop\.orders"):
        remove_orphans(ORDERS, warehouse=warehouse.url)
