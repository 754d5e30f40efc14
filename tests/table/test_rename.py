"""A table that is renamed has one name at every moment, wherever the rename stops or stands still.

Each case lets a renamer die, or stand still, at one of its writes; another writer then does
something to one of the names; a renamer that stood still goes on after that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

from headwater.core.errors import (
    Conflict,
    Contended,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from headwater.store import Backend, MemoryBackend, Store, Version
from headwater.store.backend import Condition, Unreachable
from headwater.store.objects import Buffer
from headwater.table.catalog import RegisterCatalog
from headwater.table.pointers import Pointers
from headwater.testing import simulate
from tests.table.warehouse import COLUMNS, IMPATIENT, ORDERS, Warehouse, append, made, stored

WRITES = (1, 2, 3, 4)
"""A rename writes that many pointers: leave, arrive, free the old name, say that it is free."""
FIRST, SECOND, OTHER = "first/metadata.json", "second/metadata.json", "other/metadata.json"

Change = Callable[[Pointers], Awaitable[None]]


class Renamer(MemoryBackend):
    """The store, as a renamer sees it that dies or stands still at one of its writes."""

    def __init__(self, inner: MemoryBackend) -> None:
        super().__init__()
        self._objects = inner._objects
        self.stops_at = 0
        self.lands = False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self._count = 0
        self._is_dead = False

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self._is_dead:
            raise OutcomeUnknown("it is dead")
        self._count += "catalog/tables/" in key
        if self._count != self.stops_at:
            return await super().put(key, data, condition)
        self.stops_at = 0
        if self.meanwhile is not None:
            await self.meanwhile()
            return await super().put(key, data, condition)
        if self.lands:
            await super().put(key, data, condition)
        self._is_dead = True
        raise OutcomeUnknown("killed here")


def pointers(backend: Backend) -> Pointers:
    return Pointers(Store(backend, policy=IMPATIENT))


async def names(catalog: Pointers) -> dict[str, str]:
    """Every table by the place of its metadata: a place that has two names fails."""
    found: dict[str, str] = {}
    for table in await catalog.tables("shop"):
        location = await catalog.location("shop", table)
        assert location not in found, f"{location} is {found[location]} and {table}"
        found[location] = table
    return found


async def create_the_old_name(catalog: Pointers) -> None:
    with contextlib.suppress(Conflict):
        await catalog.point("shop", "orders", None, OTHER)


async def take_the_new_name(catalog: Pointers) -> None:
    with contextlib.suppress(Conflict):
        await catalog.point("shop", "sales", None, OTHER)


async def commit_by_the_old_name(catalog: Pointers) -> None:
    with contextlib.suppress(Conflict):
        await catalog.point("shop", "orders", FIRST, SECOND)


async def commit_by_the_new_name(catalog: Pointers) -> None:
    with contextlib.suppress(Conflict):
        await catalog.point("shop", "sales", FIRST, SECOND)


async def drop_the_new_name(catalog: Pointers) -> None:
    with contextlib.suppress(Conflict):
        await catalog.point("shop", "sales", FIRST, None)


async def rename_on(catalog: Pointers) -> None:
    with contextlib.suppress(NotFound):
        await catalog.rename("shop", "sales", "shop", "archive")


async def rename_back(catalog: Pointers) -> None:
    with contextlib.suppress(NotFound, Conflict):
        await catalog.rename("shop", "sales", "shop", "orders")


async def rename_elsewhere(catalog: Pointers) -> None:
    with contextlib.suppress(NotFound):
        await catalog.rename("shop", "orders", "shop", "elsewhere")


CHANGES: list[Change] = [
    create_the_old_name,
    take_the_new_name,
    commit_by_the_old_name,
    commit_by_the_new_name,
    drop_the_new_name,
    rename_on,
    rename_back,
    rename_elsewhere,
]


def _case(stops_at: int, change: Change, *, lands: bool, dies: bool) -> None:
    """What is there in the end is what was there after the change, under one name each.

    A table that was dropped stays dropped, one that was committed has its commit, one that was
    created is there.
    """

    async def main(_: object) -> None:
        objects = MemoryBackend(versions_by_content=True)
        others, renamer = pointers(objects), Renamer(objects)
        await others.create_namespace("shop", {})
        await others.point("shop", "orders", None, FIRST)
        renamer.stops_at, renamer.lands = stops_at, lands
        then: set[str] = set()

        async def meanwhile() -> None:
            await change(others)
            then.update(await names(others))
            if change is not drop_the_new_name:
                assert len(then & {FIRST, SECOND}) == 1, "the table is under no name"

        if not dies:
            renamer.meanwhile = meanwhile
        with contextlib.suppress(OutcomeUnknown, Conflict, NotFound, Contended):
            await pointers(renamer).rename("shop", "orders", "shop", "sales")
        if dies:
            await meanwhile()
        assert set(await names(others)) == then
        assert set(await names(pointers(objects))) == then
        # Either name can be used again, and no rename is left half done.
        for table in ("orders", "sales"):
            with contextlib.suppress(Conflict):
                await others.point("shop", table, None, f"{table}/metadata.json")
        left = await names(others)
        assert then <= set(left)
        assert {"orders", "sales"} <= set(left.values())

    simulate(main)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("stops_at", WRITES)
def test_a_rename_that_died_leaves_every_table_one_name(
    stops_at: int, lands: bool, change: Change
) -> None:
    _case(stops_at, change, lands=lands, dies=True)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stops_at", WRITES)
def test_a_rename_that_stood_still_takes_nothing_from_others(stops_at: int, change: Change) -> None:
    _case(stops_at, change, lands=True, dies=False)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("stops_at", WRITES)
def test_asking_again_finishes_a_rename_that_died(stops_at: int, lands: bool) -> None:
    async def main(_: object) -> None:
        objects = MemoryBackend(versions_by_content=True)
        others, renamer = pointers(objects), Renamer(objects)
        await others.create_namespace("shop", {})
        await others.point("shop", "orders", None, FIRST)
        renamer.stops_at, renamer.lands = stops_at, lands
        with contextlib.suppress(OutcomeUnknown):
            await pointers(renamer).rename("shop", "orders", "shop", "sales")
        if "orders" in (await names(others)).values():
            assert await others.rename("shop", "orders", "shop", "sales") == FIRST
        else:
            with contextlib.suppress(NotFound):  # it is finished, or is finished now
                await others.rename("shop", "orders", "shop", "sales")
            with pytest.raises(NotFound, match=r"it is shop\.sales now"):
                await others.location("shop", "orders")
        assert await names(others) == {FIRST: "sales"}

    simulate(main)


def test_a_rename_that_the_next_writer_would_finish_is_not_called_failed() -> None:
    """Its first write landed, then the store was away."""

    async def main(_: object) -> None:
        objects = MemoryBackend(versions_by_content=True)
        others, renamer = pointers(objects), Renamer(objects)
        await others.create_namespace("shop", {})
        await others.point("shop", "orders", None, FIRST)

        async def away() -> None:
            raise Unreachable("no route to host")

        renamer.stops_at, renamer.meanwhile = 2, away
        with pytest.raises(OutcomeUnknown, match=r"being renamed to shop\.sales"):
            await pointers(renamer).rename("shop", "orders", "shop", "sales")

    simulate(main)


def test_a_table_created_under_the_old_name_survives_a_rename_that_stood_still(
    warehouse: Warehouse,
) -> None:
    renamers: list[Renamer] = []

    def seen(backend: Backend) -> Backend:
        assert isinstance(backend, MemoryBackend)
        renamers.append(Renamer(backend))
        return renamers[-1]

    catalog, slow = warehouse.catalog(), warehouse.catalog(seen)
    made(catalog)
    append(catalog, [1, 2, 3], "first", 0)
    later = catalog._create_staged_table("shop.orders", COLUMNS)
    catalog._write_metadata(later.metadata, later.io, later.metadata_location)

    async def created() -> None:
        store = Store(warehouse.objects, policy=IMPATIENT)
        await Pointers(store).point("shop", "orders", None, later.metadata_location)

    renamers[-1].stops_at, renamers[-1].meanwhile = 3, created
    slow.rename_table(ORDERS, "shop.sales")
    assert stored(catalog) == []
    append(catalog, [4], "second", 0)
    assert stored(catalog) == [4]
    moved = catalog.load_table("shop.sales").scan().to_arrow().column("id").to_pylist()
    assert sorted(moved) == [1, 2, 3]
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(ORDERS, "shop.sales")


def test_what_is_renamed_is_told_by_name_though_it_cannot_be_read(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = warehouse.catalog()
    made(catalog)

    def away(*_: object) -> object:
        raise Unavailable("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(RegisterCatalog, "_table", away)
        with pytest.raises(OutcomeUnknown, match=r"shop\.sales has this name now"):
            catalog.rename_table(ORDERS, "shop.sales")
    with pytest.raises(NoSuchTableError):
        catalog.load_table(ORDERS)
    assert catalog.table_exists("shop.sales")


def test_a_table_that_comes_late_gets_no_folder_that_another_has(warehouse: Warehouse) -> None:
    """Its folder was chosen before another table had the name, and was renamed."""
    catalog, slow = warehouse.catalog(), warehouse.catalog()
    catalog.create_namespace("shop")
    choose = slow._get_default_warehouse_location
    chosen: list[str] = []

    def overtaken(database_name: str, table_name: str) -> str:
        chosen.append(choose(database_name, table_name))
        if len(chosen) == 1:
            catalog.create_table(ORDERS, COLUMNS)
            catalog.rename_table(ORDERS, "shop.sales")
        return chosen[-1]

    slow._get_default_warehouse_location = overtaken  # type: ignore[method-assign]
    table = slow.create_table(ORDERS, COLUMNS)
    assert table.location() != catalog.load_table("shop.sales").location() == chosen[0]


def test_a_pointer_that_cannot_be_read_ends_no_rename() -> None:
    async def main(_: object) -> None:
        objects = MemoryBackend(versions_by_content=True)
        others = pointers(objects)
        await others.create_namespace("shop", {})
        with pytest.raises(NotFound):
            await others.rename("shop", "orders", "shop", "sales")
        await others.point("shop", "orders", None, FIRST)
        with pytest.raises(HeadwaterError):
            await others.rename("shop", "orders", "shop", "orders")
        assert await names(others) == {FIRST: "orders"}

    simulate(main)
