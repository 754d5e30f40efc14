"""The catalog of registers: names, pointers, and what a commit means when answers are lost."""

from __future__ import annotations

import functools
import gc
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyspark import cloudpickle

from headwater.core import portal
from headwater.core.errors import Denied, NotSupported, OutcomeUnknown, Refused, Unavailable
from headwater.spark.table_files import FilePlan, ReadPlan, read_files_task, write_files_task
from headwater.store import Backend, MemoryBackend, Object, Register, Store, Version
from headwater.store.backend import Condition
from headwater.store.locations import FileRoot
from headwater.store.objects import Buffer, ByteRange
from headwater.table.catalog import RegisterCatalog
from headwater.table.file_io import StoreFileIO
from headwater.table.pointers import Pointers
from tests.table.warehouse import COLUMNS, IMPATIENT, ORDERS, Warehouse, made

SECRET = "wJalrXUtnFEMI"
POINTER = "catalog/tables/shop/orders.json"
ROWS = pa.table({"id": [1], "name": ["one"]}, schema=COLUMNS)


class Interrupted(MemoryBackend):
    """Does to a write of the pointer what a test asks for, and lets everything else through."""

    def __init__(self, inner: Backend) -> None:
        assert isinstance(inner, MemoryBackend)
        super().__init__()
        self.inner = inner
        self._objects = inner._objects
        self.fault = ""
        self.late: list[Callable[[], Awaitable[Version]]] = []
        self.deaf = False

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        fault, self.fault = (self.fault, "") if key == POINTER else ("", self.fault)
        if fault == "never sent":
            raise OutcomeUnknown("connection reset")
        if fault == "unreachable":
            raise Unavailable("no route to host")
        if fault == "lands late":
            self.late.append(functools.partial(self.inner.put, key, bytes(data), condition))
            raise OutcomeUnknown("connection reset")
        landed = await self.inner.put(key, data, condition)
        if fault == "answer lost":
            raise OutcomeUnknown("connection reset")
        if fault == "answer lost, then silence":
            self.deaf = True
            raise OutcomeUnknown("connection reset")
        return landed

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if self.deaf and key == POINTER:
            raise Unavailable("no route to host")
        return await self.inner.get(key, byte_range)


def renamed(catalog: RegisterCatalog, note: str) -> None:
    """Some change of the table."""
    with catalog.load_table(ORDERS).transaction() as transaction:
        transaction.set_properties(note=note)


def note(catalog: RegisterCatalog) -> str | None:
    return catalog.load_table(ORDERS).properties.get("note")


# Names


def test_namespaces_are_made_listed_changed_and_dropped(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    catalog.create_namespace("shop", {"owner": "ann", "city": "x"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("shop")
    assert catalog.list_namespaces() == [("shop",)]
    assert catalog.list_namespaces("shop") == []
    summary = catalog.update_namespace_properties("shop", {"city", "none"}, {"owner": "bob"})
    assert (summary.removed, summary.updated, summary.missing) == (["city"], ["owner"], ["none"])
    assert warehouse.catalog().load_namespace_properties("shop") == {"owner": "bob"}
    catalog.drop_namespace("shop")
    assert catalog.list_namespaces() == []
    for gone in (catalog.drop_namespace, catalog.list_tables, catalog.load_namespace_properties):
        with pytest.raises(NoSuchNamespaceError):
            gone("shop")
    catalog.create_namespace("shop")
    assert catalog.load_namespace_properties("shop") == {}


def test_tables_are_made_listed_and_dropped(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table(ORDERS, COLUMNS)
    table = made(catalog)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(ORDERS, COLUMNS)
    assert table.location() == f"{warehouse.url}/shop/orders"
    assert catalog.list_tables("shop") == [("shop", "orders")]
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("shop")
    catalog.drop_table(ORDERS)
    assert catalog.list_tables("shop") == []
    assert not catalog.table_exists(ORDERS)
    with pytest.raises(NoSuchTableError):
        catalog.drop_table(ORDERS)
    again = made(catalog)
    assert again.metadata.table_uuid != table.metadata.table_uuid
    # What is left of the first stays its own.
    assert again.location().startswith(f"{table.location()}-")


def test_a_table_is_renamed(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    table = made(catalog)
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table(ORDERS, "nowhere.orders")
    moved = catalog.rename_table(ORDERS, "shop.sales")
    assert moved.metadata.table_uuid == table.metadata.table_uuid
    assert catalog.list_tables("shop") == [("shop", "sales")]
    with pytest.raises(NoSuchTableError, match=r"it is shop\.sales now"):
        catalog.load_table(ORDERS)
    made(catalog)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(ORDERS, "shop.sales")
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("shop.nothing", "shop.something")


def test_queries_that_share_a_catalog_never_get_each_others_table(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog(kind=Interleaved)
    made(catalog)
    catalog.create_table("shop.bills", COLUMNS)
    bills = catalog.load_table("shop.bills")
    wanted = warehouse.catalog().load_table(ORDERS).metadata.table_uuid
    for _ in range(2):
        assert isinstance(catalog, Interleaved)
        catalog.between = (bills.metadata_location, bills.metadata)
        assert catalog.load_table(ORDERS).metadata.table_uuid == wanted


class Interleaved(RegisterCatalog):
    """A catalog whose other user loads a table after each step of this one."""

    between: tuple[str, TableMetadata] | None = None
    _kept: tuple[str, TableMetadata] | None = None

    @property
    def _cached(self) -> tuple[str, TableMetadata] | None:
        kept, self._kept = self._kept, self.between or self._kept
        return kept

    @_cached.setter
    def _cached(self, value: tuple[str, TableMetadata] | None) -> None:
        self._kept = self.between or value


class Unanswered(RegisterCatalog):
    """Its commits land, and others come on top before it learns that nobody answered."""

    def _move_pointer(self, name: tuple[str, str], expected: str, location: str | None) -> None:
        super()._move_pointer(name, expected, location)
        renamed(RegisterCatalog("other", store=self._store, warehouse=self.root.url), "second")
        reset = OutcomeUnknown("connection reset")
        with mock.patch.object(Pointers, "point", side_effect=reset):
            super()._move_pointer(name, expected, location)


def test_a_commit_without_an_answer_is_found_beneath_those_of_others(warehouse: Warehouse) -> None:
    made(warehouse.catalog())
    renamed(warehouse.catalog(kind=Unanswered), "first")
    assert warehouse.catalog().load_table(ORDERS).properties["note"] == "second"


def test_a_table_is_registered_by_its_metadata(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    first = made(catalog).metadata_location
    renamed(catalog, "second")
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table(ORDERS, first)
    assert catalog.register_table("shop.copy", first).metadata_location == first
    assert catalog.register_table(ORDERS, first, overwrite=True).metadata_location == first
    with pytest.raises(Refused, match="belongs to another store"):
        catalog.register_table("shop.other", "s3://elsewhere/metadata.json")


def test_a_purged_table_leaves_no_file(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    renamed(catalog, "second")
    catalog.purge_table(ORDERS)
    assert [key for key in warehouse.objects._objects if key.startswith("shop/")] == []


@pytest.mark.parametrize("error", [Denied("not yours"), PermissionError("not yours")])
def test_a_purge_leaves_only_files_that_cannot_be_deleted(
    warehouse: Warehouse,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    catalog = warehouse.catalog()
    made(catalog).append(ROWS)
    delete, denied = StoreFileIO.delete, []

    def deny_data(files: StoreFileIO, location: str) -> None:
        if location.endswith(".parquet"):
            denied.append(location)
            raise error
        delete(files, location)

    monkeypatch.setattr(StoreFileIO, "delete", deny_data)
    catalog.purge_table(ORDERS)
    left = [key for key in warehouse.objects._objects if key.startswith("shop/")]
    assert [location.endswith(key) for location, key in zip(denied, left, strict=True)] == [True]
    assert f"{denied[0]} of a purged table could not be deleted: not yours" in caplog.text


def test_a_purge_leaves_a_table_that_was_renamed_meanwhile(warehouse: Warehouse) -> None:
    """And the one that has its name: neither is the one that was to go."""
    catalog = warehouse.catalog()
    made(catalog).append(ROWS)
    load = catalog.load_table

    def loaded(identifier: object) -> Table:
        catalog.load_table = load  # type: ignore[method-assign]
        found = load(identifier)  # type: ignore[arg-type]
        warehouse.catalog().rename_table(ORDERS, "shop.sales")
        made(warehouse.catalog()).append(ROWS)
        return found

    catalog.load_table = loaded  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException):
        catalog.purge_table(ORDERS)
    for name in (ORDERS, "shop.sales"):
        assert warehouse.catalog().load_table(name).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("name", ["shop.a/b", "shop.", "shop.ä", "a.b.c"])
def test_a_name_that_cannot_be_a_key_is_refused(warehouse: Warehouse, name: str) -> None:
    catalog = warehouse.catalog()
    catalog.create_namespace("shop")
    with pytest.raises((Refused, ValueError, NoSuchNamespaceError, NoSuchTableError)):
        catalog.create_table(name, COLUMNS)


@pytest.mark.parametrize("name", ["catalog", "metadata", "streams"])
def test_a_namespace_stays_clear_of_what_streams_and_catalog_keep(
    warehouse: Warehouse, name: str
) -> None:
    with pytest.raises(Refused, match="another use"):
        warehouse.catalog().create_namespace(name)


def test_there_are_no_views(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    catalog.create_namespace("shop")
    assert (catalog.list_views("shop"), catalog.view_exists("shop.v")) == ([], False)
    for gone in (catalog.load_view, catalog.drop_view):
        with pytest.raises(NoSuchViewError):
            gone("shop.v")
    with pytest.raises(NotSupported):
        catalog.register_view("shop.v", "somewhere")


def test_pyiceberg_finds_the_catalog_by_its_name(warehouse: Warehouse) -> None:
    made(warehouse.catalog())
    found = load_catalog(
        "x",
        **{"py-catalog-impl": "headwater.table.RegisterCatalog", "warehouse": warehouse.url},
    )
    assert found.list_tables("shop") == [("shop", "orders")]
    with pytest.raises(Refused, match="warehouse=s3://"):
        RegisterCatalog("x")


# Commits


def test_a_commit_on_what_is_no_longer_there_is_refused(warehouse: Warehouse) -> None:
    catalog, other = warehouse.catalog(), warehouse.catalog()
    made(catalog)
    stale = catalog.load_table(ORDERS)
    with other.load_table(ORDERS).update_schema() as update:
        update.add_column("city", stale.schema().find_type("name"))
    with pytest.raises(CommitFailedException), stale.update_schema() as update:
        update.add_column("street", stale.schema().find_type("name"))
    assert other.load_table(ORDERS).schema().column_names == ["id", "name", "city"]


def interrupted(warehouse: Warehouse) -> tuple[RegisterCatalog, Interrupted]:
    seen: list[Interrupted] = []

    def interrupt(backend: Backend) -> Backend:
        seen.append(Interrupted(backend))
        return seen[-1]

    catalog = warehouse.catalog(interrupt)
    return catalog, seen[-1]


def test_a_commit_whose_answer_was_lost_is_found_to_have_landed(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = "answer lost"
    renamed(catalog, "landed")
    assert note(warehouse.catalog()) == "landed"


def test_a_table_whose_making_was_not_answered_is_there(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    backend.fault = "answer lost"
    made(catalog)
    assert warehouse.catalog().table_exists(ORDERS)


def test_a_commit_nobody_can_tell_about_is_not_called_failed(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = "answer lost, then silence"
    with pytest.raises(CommitStateUnknownException):
        renamed(catalog, "landed")
    assert note(warehouse.catalog()) == "landed"


def test_a_look_that_fails_leaves_a_commit_unknown(warehouse: Warehouse) -> None:
    """Pointers look after a lost answer, and the catalog looks once more after them."""
    made(warehouse.catalog())
    catalog, backend = interrupted(warehouse)
    pointers = Pointers(Store(backend, policy=IMPATIENT))
    now = warehouse.catalog().load_table(ORDERS).metadata_location
    update = Register.update

    async def unknown(self: Any, change: Any) -> Any:
        await update(self, change)
        backend.deaf = True
        raise OutcomeUnknown("connection reset")

    with mock.patch.object(Register, "update", unknown):
        with pytest.raises(OutcomeUnknown, match="connection reset; reading"):
            portal.shared().call(pointers.point("shop", "orders", now, "memory://elsewhere"))
        backend.deaf = False
        now = "memory://elsewhere"
        with pytest.raises(CommitStateUnknownException):
            catalog._move_pointer(("shop", "orders"), now, "memory://another")


def test_a_commit_that_may_still_land_is_not_called_failed(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    for fault in ("never sent", "lands late"):
        backend.fault = fault
        with pytest.raises(CommitStateUnknownException):
            renamed(catalog, fault)
        assert note(warehouse.catalog()) is None


def test_a_commit_that_was_never_asked_for_changes_nothing(warehouse: Warehouse) -> None:
    catalog, backend = interrupted(warehouse)
    made(catalog)
    backend.fault = "unreachable"
    with pytest.raises((OutcomeUnknown, CommitStateUnknownException, Unavailable)):
        renamed(catalog, "unreachable")
    renamed(catalog, "again")
    assert note(warehouse.catalog()) == "again"


def test_a_commit_that_changes_nothing_writes_nothing(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog()
    made(catalog)
    renamed(catalog, "same")
    before = set(warehouse.objects._objects)
    table = catalog.load_table(ORDERS)
    response = catalog.commit_table(table, (), ())
    assert response.metadata_location == table.metadata_location
    assert set(warehouse.objects._objects) == before


# Files


def test_files_are_read_whole_or_in_ranges(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StoreFileIO({"warehouse": warehouse.url})
    with files.new_output(f"{warehouse.url}/a/b").create() as stream:
        stream.write(bytes(range(200)))
    file = files.new_input(f"{warehouse.url}/a/b")
    assert (file.exists(), len(file)) == (True, 200)
    for whole_bytes_max in (1000, 10):
        monkeypatch.setattr("headwater.table.file_io.WHOLE_BYTES_MAX", whole_bytes_max)
        with file.open() as reading:
            reading.seek(150)
            assert reading.read(20) == bytes(range(150, 170))
            reading.seek(-5, 2)
            assert reading.read() == bytes(range(195, 200))
            assert reading.tell() == 200
    files.delete(file)
    missing = files.new_input(f"{warehouse.url}/a/b")
    assert not missing.exists()
    with pytest.raises(FileNotFoundError):
        missing.open()


def test_a_file_that_was_cut_short_is_not_stored(warehouse: Warehouse) -> None:
    files = StoreFileIO({"warehouse": warehouse.url})
    output = files.new_output(f"{warehouse.url}/a/b")
    stream = output.create()
    stream.write(b"half")
    stream.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert not output.exists()


def test_a_file_that_is_dropped_before_it_is_closed_is_not_stored(warehouse: Warehouse) -> None:
    output = StoreFileIO({"warehouse": warehouse.url}).new_output(f"{warehouse.url}/a/b")
    stream = output.create()
    stream.write(b"half")
    del stream
    gc.collect()
    assert not output.exists()


def test_what_travels_to_executors_names_options_and_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[work]\naws_access_key_id=x\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    place = FileRoot.at("s3://bucket/w?profile=work", endpoint="https://host:9000")
    assert place.base == "s3://bucket/w"
    place.store()  # resolves them here, and keeps them here
    assert pickle.loads(pickle.dumps(place)) == place
    assert place.key("s3://bucket/w/db/t/x") == "db/t/x"
    with pytest.raises(Refused):
        FileRoot.at("s3://bucket", secret_access_key="x")
    pickled: Any = cloudpickle.dumps
    plan = FilePlan(place, "s3://bucket/w/db/t/data", b"", [], 1, "zstd")
    for travels in (write_files_task(plan), read_files_task(ReadPlan(place, b"", []))):
        shipped: bytes = pickled(travels)
        assert b"work" in shipped
        assert SECRET.encode() not in shipped
    assert FileRoot.of_table("s3a://bucket/db/t").key("s3a://bucket/db/t/data/x") == "data/x"
    assert FileRoot.of_table("/data/t").key("/data/t/data/x") == "data/x"
