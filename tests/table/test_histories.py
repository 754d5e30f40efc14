"""Histories of tables under every fault: a sample, and proof that they can fail.

Each planted bug is a mistake that was made here, or an easy one to make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from headwater.core import portal
from headwater.core.errors import Conflict, NotFound
from headwater.table import commit as commits
from headwater.table import metadata_sweep, orphans, pointers
from headwater.table.catalog import RegisterCatalog
from headwater.table.data_files import FLOOR
from headwater.table.file_io import StoreFileIO
from headwater.table.pointers import Arrival, Pointers, TablePointer
from tests.planted import NOTICED, expect_noticed
from tests.torture.surroundings import Replacement
from tests.torture.table_scenarios import SCENARIOS, table_history

HISTORIES_TO_CATCH_A_BUG = 100
CAUGHT = (*NOTICED, OSError, ValueError, KeyError)


async def frees_whatever_is_there(self: Pointers, name: str, pointer: TablePointer | None) -> None:
    """The last step of a rename goes over any pointer that the old name has by then."""
    if pointer is not None and pointer.leaving is not None and await self._arrive(name, pointer):
        name, pointer = pointer.leaving.to, await self._read_pointer(pointer.leaving.to)
    if pointer is None or pointer.arrived is None:
        return
    arrival = pointer.arrived
    await self._table(arrival.name).update(
        lambda now: TablePointer(None, (now.changes if now else 0) + 1, moved_to=name)
    )
    settled = msgspec.structs.replace(pointer, changes=pointer.changes + 1, arrived=None)
    with contextlib.suppress(pointers._PointerMoved):
        await self._replace(name, pointer, settled)


async def arrives_wherever_it_is_free(self: Pointers, name: str, left: TablePointer) -> bool:
    """A rename that stood still brings a table back that was dropped, or moved on."""
    departure = left.leaving
    assert departure is not None

    def arrive(now: TablePointer | None) -> TablePointer:
        if now is not None and now.metadata_location is not None:
            if now.arrived == Arrival(name, left.changes):
                return now
            raise pointers._NameTaken
        changes = (now.changes if now else 0) + 1
        return TablePointer(left.metadata_location, changes, arrived=Arrival(name, left.changes))

    try:
        await self._table(departure.to).update(arrive)
    except pointers._NameTaken:
        stays = TablePointer(left.metadata_location, left.changes + 1)
        with contextlib.suppress(pointers._PointerMoved):
            await self._replace(name, left, stays)
        return False
    return True


async def leaves_its_name_free(self: Pointers, *names: str) -> str:
    """A rename as it once was: the old name is free before the new one is taken."""
    name, new = ".".join(names[:2]), ".".join(names[2:])
    left: list[str] = []

    def leave(now: TablePointer | None) -> TablePointer:
        if now is None or now.metadata_location is None:
            raise NotFound(name)
        left.append(now.metadata_location)
        return TablePointer(None, now.changes + 1, moved_to=new)

    target = await self._read_pointer(new)
    if target is not None and target.metadata_location is not None:
        raise Conflict(new)
    await self._table(name).update(leave)
    await self.point(names[2], names[3], None, left[-1])
    return left[-1]


@contextlib.contextmanager
def hides_the_unknown(*_: object) -> Iterator[None]:
    """Whatever fails is what is told."""
    yield


def hides_it_in_the_catalog(self: RegisterCatalog, name: tuple[str, str], location: str) -> bool:
    """The same, one floor down."""
    now = self.load_table(name)
    before = {entry.metadata_file for entry in now.metadata.metadata_log}
    return now.metadata_location == location or location in before


def sweeps_by_the_writers_clock(table: Table, before: Any, *, grace_ms: int = 0) -> int:
    """As it once was: lists after the commit, and compares its own clock with the store's."""
    files = table.io
    assert isinstance(files, StoreFileIO)
    needed = metadata_sweep._referenced(table)
    oldest_ms = table.metadata.last_updated_ms - grace_ms
    now = [
        meta
        for meta in metadata_sweep.list_metadata_files(table)
        if meta.modified_ms < oldest_ms and files.root.location(meta.key) not in needed
    ]

    async def remove() -> None:
        for meta in now:
            await files.store.delete(meta.key)

    portal.shared().call(remove())
    return len(now)


def raises_no_floor(loaded: Callable[[], Table], first: Table, floor: str) -> Table:
    """As it once was: looks once more what is named, and removes the rest."""
    return loaded()


def raises_the_floor_of_the_name(loaded: Callable[[], Table], first: Table, floor: str) -> Table:
    """Whichever table has the name by now."""
    for _ in range(orphans.FLOOR_ATTEMPTS):
        table = loaded()
        if table.properties.get(FLOOR, "") >= floor:
            return table
        with contextlib.suppress(CommitFailedException):
            table.transaction().set_properties({FLOOR: floor}).commit_transaction()
    return loaded()


PLANTED: dict[str, list[Replacement]] = {
    "rename-frees-whatever-is-there": [(Pointers, "_finish_rename", frees_whatever_is_there)],
    "rename-arrives-wherever-it-is-free": [(Pointers, "_arrive", arrives_wherever_it_is_free)],
    "rename-leaves-its-name-free": [(Pointers, "rename", leaves_its_name_free)],
    "rename-is-not-finished-first": [(TablePointer, "is_in_rename", property(lambda _: False))],
    "files-of-any-table": [(commits, "check_files_belong", lambda *_: None)],
    "unknown-is-hidden": [
        (commits, "keeping_unknown", hides_the_unknown),
        (pointers, "staying_unknown", hides_the_unknown),
        (RegisterCatalog, "_has_landed", hides_it_in_the_catalog),
    ],
    "sweep-by-the-writers-clock": [(metadata_sweep, "sweep", sweeps_by_the_writers_clock)],
    "orphans-without-a-floor": [(orphans, "_raise_floor", raises_no_floor)],
    "orphans-of-the-name": [(orphans, "_raise_floor", raises_the_floor_of_the_name)],
    "floor-looked-at-too-early": [(commits._SameFloor, "validate", lambda *_: None)],
    "token-is-not-looked-for": [(commits, "find_commit", lambda *_: None)],
}
FIRST_SEEDS = {
    "rename-frees-whatever-is-there": 18,
    "files-of-any-table": 12,
    "rename-arrives-wherever-it-is-free": 138,
    "rename-is-not-finished-first": 11,
    "sweep-by-the-writers-clock": 38,
    "orphans-of-the-name": 86,
    "floor-looked-at-too-early": 37,
    "unknown-is-hidden": 10,
}
"""Where not to begin at 0: what takes a stall at one moment is seldom seen."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: table_history(seed, *PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=FIRST_SEEDS.get(bug, 0),
        by=CAUGHT,
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert table_history(5) == table_history(5)
    assert table_history(5) != table_history(6)
