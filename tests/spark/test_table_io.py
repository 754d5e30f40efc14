"""What a micro-batch goes through, with a DataFrame that runs in this process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType as IcebergLong
from pyiceberg.types import NestedField
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import LongType, StringType, StructType

from headwater.core.errors import Bug, Contended, OutcomeUnknown, Refused, Unavailable
from headwater.spark import table_columns, table_io
from headwater.spark.table_io import TableOptions, query_id_of
from headwater.store.locations import FileRoot
from headwater.table import commit as commits
from headwater.table.catalog import RegisterCatalog
from headwater.table.commit import CommittedVersion, WriteResult
from headwater.table.data_files import FilesRefused
from headwater.table.reference import TableReference, table_reference
from tests.table.test_catalog import interrupted
from tests.table.test_commit import raced
from tests.table.warehouse import ORDERS, Warehouse, made, stored

OPTIONS = TableOptions(properties={}, evolve=True, keep_snapshots=100, file_bytes=1 << 20)


class Frame:
    """As much of a DataFrame as writing one takes."""

    def __init__(self, *ids: int, city: str | None = None) -> None:
        self.schema = StructType().add("id", LongType()).add("name", StringType())
        self._rows: dict[str, list[Any]] = {"id": list(ids), "name": [str(id) for id in ids]}
        if city is not None:
            self.schema = self.schema.add("city", StringType())
            self._rows["city"] = [city] * len(ids)
        self._out: list[dict[str, Any]] = []

    def mapInArrow(self, work: Any, _: str) -> Frame:
        columns = table_columns.arrow_columns(self.schema)
        batch = pa.RecordBatch.from_pydict(self._rows, schema=columns)
        self._out = [row for out in work(iter([batch])) for row in out.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._out


def write(
    monkeypatch: pytest.MonkeyPatch, catalog: RegisterCatalog, frame: Any, version: int = 0
) -> WriteResult:
    monkeypatch.setattr(TableReference, "open_catalog", lambda _: catalog)
    target = table_reference(ORDERS, catalog.root.url, None, {})
    return table_io.write_batch_to_table(frame, target, OPTIONS, "query", version)


def data_files(warehouse: Warehouse) -> list[str]:
    return [key for key in warehouse.objects._objects if "/data/" in key]


def test_a_batch_makes_the_table_and_is_written_once(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    assert write(monkeypatch, catalog, Frame(1, 2)).rows == 2
    assert write(monkeypatch, catalog, Frame(1, 2)).already_committed
    assert stored(catalog) == [1, 2]
    assert len(data_files(warehouse)) == 1, "the replay looked before it wrote"


def test_files_of_a_commit_that_never_lands_are_removed(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise Contended("others won")

    monkeypatch.setattr(commits, "commit_files", lose)
    with pytest.raises(Contended):
        write(monkeypatch, warehouse.catalog(), Frame(1))
    assert data_files(warehouse) == []


def test_files_that_cannot_be_removed_are_named(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise Contended("others won")

    async def refuse(*_: object) -> None:
        raise Unavailable("not today")

    monkeypatch.setattr(commits, "commit_files", lose)
    monkeypatch.setattr("headwater.store.store.Store.delete", refuse)
    with pytest.raises(Contended):
        write(monkeypatch, warehouse.catalog(), Frame(1))
    assert "1 files that are in no snapshot could not be deleted" in caplog.text


def test_files_of_a_commit_that_may_have_landed_are_kept(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_sight(*_: object, **__: object) -> None:
        raise OutcomeUnknown("nobody answers")

    monkeypatch.setattr(commits, "commit_files", lose_sight)
    with pytest.raises(OutcomeUnknown):
        write(monkeypatch, warehouse.catalog(), Frame(1))
    assert len(data_files(warehouse)) == 1


def test_files_that_a_version_long_passed_may_have_in_the_table_are_kept(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(*_: object, **__: object) -> CommittedVersion:
        return CommittedVersion(None, is_ours=None)

    monkeypatch.setattr(commits, "commit_files", passed)
    assert write(monkeypatch, warehouse.catalog(), Frame(1)).already_committed
    assert len(data_files(warehouse)) == 1


@pytest.mark.parametrize("fault", ["answer lost", "never sent"])
def test_a_table_whose_making_was_not_answered_is_written_all_the_same(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    catalog, backend = interrupted(warehouse)
    backend.fault = fault
    assert write(monkeypatch, catalog, Frame(1)).rows == 1
    assert stored(warehouse.catalog()) == [1]


def test_two_writers_may_add_columns_at_once(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = warehouse.catalog()
    made(other)

    def add_a_column() -> None:
        table = other.load_table(ORDERS)
        with table.update_schema() as update:
            update.add_column("street", table.schema().find_type("name"))

    catalog = raced(warehouse, add_a_column)
    assert write(monkeypatch, catalog, Frame(1, city="x")).rows == 1
    names = other.load_table(ORDERS).schema().column_names
    assert sorted(names) == ["city", "id", "name", "street"]


def test_columns_that_others_always_change_first_are_given_up(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CommitFailedException("another commit came first")

    made(warehouse.catalog())
    monkeypatch.setattr(table_columns, "add_columns", refuse)
    with pytest.raises(Contended, match="columns could not be changed"):
        write(monkeypatch, warehouse.catalog(), Frame(1, city="x"))


def test_a_change_of_columns_that_may_have_landed_is_not_called_failed(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        def away(*_: object) -> None:
            raise Unavailable("no route to host")

        monkeypatch.setattr(RegisterCatalog, "load_table", away)
        raise CommitStateUnknownException("no answer")

    made(warehouse.catalog())
    monkeypatch.setattr(table_columns, "add_columns", unknown)
    with pytest.raises(OutcomeUnknown, match="no answer; then: no route"):
        write(monkeypatch, warehouse.catalog(), Frame(1, city="x"))


def test_files_for_a_table_that_is_another_by_now_are_removed_and_written_again_in_its_folder(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    honest = commits.commit_files

    def replaced(*asked: Any, **more: Any) -> Any:
        catalog.drop_table(ORDERS)
        made(catalog)
        return honest(*asked, **more)

    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit_files", replaced)
        with pytest.raises(FilesRefused):
            write(patch, catalog, Frame(1))
    assert data_files(warehouse) == []
    assert write(monkeypatch, catalog, Frame(1)).rows == 1
    folder = catalog.root.key(catalog.load_table(ORDERS).location())
    assert [key.startswith(f"{folder}/data/") for key in data_files(warehouse)] == [True]


def test_a_table_with_identifier_fields_is_refused_in_plain_words(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    catalog.create_namespace("shop")
    id = NestedField(1, "id", IcebergLong(), required=True)
    name = NestedField(2, "name", IcebergString(), required=False)
    catalog.create_table(ORDERS, Schema(id, name, identifier_field_ids=[1]))
    with pytest.raises(Refused, match=r"identifier fields \(id\).*appends rows") as refused:
        write(monkeypatch, catalog, Frame(1))
    assert "pydantic" not in str(refused.value)
    assert data_files(warehouse) == []


@pytest.mark.parametrize(
    ("written", "stored", "says"),
    [
        (pa.map_(pa.int64(), pa.string()), pa.map_(pa.int32(), pa.string()), "m.key is bigint"),
        (
            pa.map_(pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.string()),
            pa.map_(pa.struct([("a", pa.int32())]), pa.string()),
            "m.key.b int is new",
        ),
        (
            pa.list_(pa.map_(pa.map_(pa.string(), pa.int64()), pa.string())),
            pa.list_(pa.map_(pa.map_(pa.string(), pa.int32()), pa.string())),
            "m.element.key.value is bigint",
        ),
    ],
)
def test_other_keys_of_a_map_are_refused_before_the_query_starts(
    warehouse: Warehouse, written: pa.DataType, stored: pa.DataType, says: str
) -> None:
    table = made(warehouse.catalog(), pa.schema([("m", stored)]))
    with pytest.raises(Refused, match=f"{says}.*keys of a map"):
        table_columns.check_fits(table, pa.schema([("m", written)]), may_grow=True)


def test_narrower_keys_of_a_map_and_wider_values_fit_a_table(warehouse: Warehouse) -> None:
    table = made(warehouse.catalog(), pa.schema([("m", pa.map_(pa.int64(), pa.int32()))]))
    columns = pa.schema([("m", pa.map_(pa.int32(), pa.int64()))])
    table_columns.check_fits(table, columns, may_grow=True)
    table_columns.add_columns(table, columns)
    assert str(table.schema().find_type("m")) == "map<long, long>"


def test_a_table_is_found_in_whichever_catalog_was_named(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def load(name: str, **properties: str) -> RegisterCatalog:
        asked.append((name, properties))
        return warehouse.catalog()

    monkeypatch.setattr("headwater.table.reference.load_catalog", load)
    table_reference(ORDERS, None, "prod", {}).open_catalog()
    table_reference(ORDERS, None, {"name": "x", "uri": "http://host"}, {}).open_catalog()
    assert asked == [("prod", {}), ("x", {"uri": "http://host"})]


def test_a_table_of_another_catalog_stands_where_that_says(warehouse: Warehouse) -> None:
    class Elsewhere:
        catalog = None

        def location(self) -> str:
            return "s3a://bucket/db/orders"

    elsewhere: Any = Elsewhere()
    place = table_reference(ORDERS, None, "prod", {"region": "eu-west-1"}).file_root(elsewhere)
    assert place == FileRoot("s3://bucket/db/orders?region=eu-west-1", "s3a://bucket/db/orders")


def test_a_drop_that_may_still_land_is_not_called_failed(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = "never sent"
    with pytest.raises(CommitStateUnknownException, match="may still land"):
        catalog.drop_table(ORDERS)
    assert warehouse.catalog().table_exists(ORDERS)


class Batch:
    """A micro-batch whose session answers as Spark's does, and counts how often it is asked."""

    def __init__(self, running: str | None = None, kept: str | None = None) -> None:
        self.asked: list[str] = []
        self._running = running
        self._kept = kept

    sparkSession = property(lambda self: self)
    sparkContext = property(lambda self: self)
    read = property(lambda self: self)

    def getLocalProperty(self, name: str) -> str | None:
        self.asked.append(name)
        return self._running

    def text(self, path: str) -> Batch:
        self.asked.append(path)
        return self

    def first(self) -> tuple[str] | None:
        return None if self._kept is None else (self._kept,)


def test_a_query_of_this_process_tells_its_id() -> None:
    batch: Any = Batch(running="q")
    assert query_id_of(batch, None, is_remote=False) == "q"
    assert batch.asked == ["sql.streaming.queryId"]


def test_a_query_of_a_remote_server_is_known_by_its_checkpoint() -> None:
    batch: Any = Batch(kept='{"id":"q"}')
    assert query_id_of(batch, "/checkpoint", is_remote=True) == "q"
    assert batch.asked == ["/checkpoint/metadata"]


def test_a_query_that_cannot_be_named_is_not_written() -> None:
    remote: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    target = table_reference(ORDERS, None, "prod", {})
    with pytest.raises(Refused, match="checkpoint_location="):
        table_io.start_query(
            remote, target, OPTIONS, checkpoint_location=None, query_name=None, trigger=None
        )
    nameless: Any = Batch()
    with pytest.raises(Refused, match="has no query id"):
        query_id_of(nameless, "/checkpoint", is_remote=True)
    with pytest.raises(Bug):
        query_id_of(nameless, None, is_remote=False)
