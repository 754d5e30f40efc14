"""Data files that no snapshot names: found and removed when they are old, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwater.core import portal, runtime
from headwater.core.errors import NotFound, Refused
from headwater.spark.table import load, orphans, remove_orphans
from headwater.spark.table.commit import commit
from headwater.spark.table.token import Token
from tests.spark.table.given import KEEP, ORDERS, Warehouse, append, made, stored, written

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
    commit(catalog, ORDERS, files, Token("query", 0, "w"), keep_snapshots=KEEP)
    assert stored(catalog) == [1]


def test_what_is_committed_while_it_looks_stays(
    warehouse: Warehouse, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    files = written(catalog, [1])
    later(1000)
    loads = iter([catalog.load_table(ORDERS)])

    def loaded(*asked: Any, **more: Any) -> Any:
        before = next(loads, None)
        if before is not None:
            commit(catalog, ORDERS, files, Token("query", 0, "w"), keep_snapshots=KEEP)
        return before or load(*asked, **more)

    monkeypatch.setattr(orphans, "load", loaded)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    assert stored(warehouse.catalog()) == [1]


def test_what_others_put_there_stays(warehouse: Warehouse, later: Callable[[float], None]) -> None:
    made(warehouse.catalog())
    portal.shared().call(warehouse.objects.put("shop/orders/data/part-0.parquet", b"theirs"))
    later(1000)
    assert remove_orphans(ORDERS, warehouse=warehouse.url).locations == []
    assert "shop/orders/data/part-0.parquet" in warehouse.objects._objects


def test_less_than_a_day_is_refused(warehouse: Warehouse) -> None:
    made(warehouse.catalog())
    with pytest.raises(Refused, match="still running"):
        remove_orphans(ORDERS, warehouse=warehouse.url, older_than_hours=23)


def test_of_no_table_there_are_none(warehouse: Warehouse) -> None:
    with pytest.raises(NotFound, match=r"shop\.orders"):
        remove_orphans(ORDERS, warehouse=warehouse.url)
