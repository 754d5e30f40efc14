"""Pointers: which metadata file of a table is current. A register for each table and namespace.

    catalog/namespaces/<namespace>.json
    catalog/tables/<namespace>/<table>.json

Always holds:

- a pointer moves from the location that was read to another by a conditional write, or not at all;
- dropping a table leaves an empty register behind: a delayed write could recreate a deleted
  register, and nothing would show that it did;
- a table has exactly one name at any time. A rename is four writes: the old pointer names where
  its table *leaves* to; the new pointer names where the table *arrived* from; the old name is
  freed; the new pointer drops the arrival. The table has its new name from the second write on.
  Every writer that reads a pointer with either mark finishes the rename first.

A rename that was paused does no harm when it continues: the table arrives only at a pointer that
has not changed since the rename began (`to_changes`), and the old name is freed only if its pointer
has not changed since it left. Freeing the old name unconditionally would be wrong: a new table may
have been created under it meanwhile.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    Contended,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
    staying_unknown,
)
from headwater.store import Register, Store

NAMESPACES: Final = "catalog/namespaces"
TABLES: Final = "catalog/tables"
RESERVED: Final = frozenset({"catalog", "metadata", "streams"})
"""Folders with another use if a warehouse and streams share a root."""
RENAMES_MAX: Final = 16
"""How many renames by others one change of a pointer finishes before it gives up."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


class Departure(msgspec.Struct, frozen=True):
    """The destination of a table that is being renamed."""

    to: str
    to_changes: int
    """`changes` of the destination's pointer when the rename began: it must still be that."""


class Arrival(msgspec.Struct, frozen=True):
    """Where a renamed table came from; removed once the old name is free."""

    name: str
    changes: int
    """`changes` of the old pointer when its table left."""


class TablePointer(msgspec.Struct, frozen=True):
    """Where a table's metadata is stored."""

    metadata_location: str | None
    """None if there is no table of this name."""
    changes: int
    """Counts the changes of this pointer, so that every version of it is different."""
    leaving: Departure | None = None
    arrived: Arrival | None = None
    moved_to: str | None = None
    """The new name of the last table that had this name."""

    @property
    def is_in_rename(self) -> bool:
        """Whether a rename of this pointer's table is not finished."""
        return self.leaving is not None or self.arrived is not None


class Namespace(msgspec.Struct, frozen=True):
    """A namespace and its properties."""

    properties: dict[str, str]
    is_dropped: bool = False


class NameWasUsed(Conflict):
    """Another table had this name before, so its files may be in the folder of the name."""


class _RenameUnderWay(Exception):
    """A rename has to be finished first."""

    def __init__(self, pointer: TablePointer) -> None:
        super().__init__()
        self.pointer = pointer


class _NameTaken(Exception):
    """The pointer of the new name changed after the rename began."""


class _PointerMoved(Exception):
    """A pointer changed after it was read."""


class Pointers:
    """The registers of one catalog."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Tables

    async def location(self, namespace: str, table: str) -> str:
        """The location of a table's metadata; `NotFound` if there is no such table."""
        name = _full_name(namespace, table)
        pointer = await self._visible_pointer(name)
        if pointer is None or pointer.metadata_location is None:
            raise _no_table(name, pointer)
        return pointer.metadata_location

    async def was_used(self, namespace: str, table: str) -> bool:
        return await self._read_pointer(_full_name(namespace, table)) is not None

    async def point(
        self,
        namespace: str,
        table: str,
        expected: str | None,
        location: str | None,
        *,
        is_first: bool = False,
    ) -> None:
        """Move a pointer from `expected` to `location`; None means no table.

        `is_first`: only if no table ever had this name, else `NameWasUsed`. `Conflict`: the pointer
        was not at `expected`, and this move will never happen. `OutcomeUnknown`: it may have
        happened, or may still happen.
        """
        name = _full_name(namespace, table)

        def change(now: TablePointer | None) -> TablePointer:
            if now is not None and now.is_in_rename:
                raise _RenameUnderWay(now)
            present = None if now is None else now.metadata_location
            if present != expected:
                raise Conflict(f"table {name} is at {present}", current=present)
            if is_first and now is not None:
                raise NameWasUsed(f"{name} was the name of another table before")
            return TablePointer(location, _changes(now) + 1)

        for _ in range(RENAMES_MAX):
            try:
                await self._table(name).update(change)
                return
            except _RenameUnderWay as met:
                await self._met_rename(name, met.pointer)
            except OutcomeUnknown as unknown:
                # Metadata files have unique names: if the pointer has this one, the move happened.
                with staying_unknown(unknown):
                    pointer = await self._read_pointer(name)
                if location is None or pointer is None or pointer.metadata_location != location:
                    raise
                return
        raise Contended(f"table {name}: not changed: other writers kept renaming it")

    async def rename(self, namespace: str, table: str, to_namespace: str, to_table: str) -> str:
        """Rename a table; returns the location of its metadata.

        An interrupted rename is finished by calling this again, or by the next writer of either
        name. `OutcomeUnknown`: the table may have the new name, or may still get it.
        """
        name, new = _full_name(namespace, table), _full_name(to_namespace, to_table)
        left = await self._leave(name, new)
        # From here on the next writer of the old name finishes the rename if this one fails.
        with staying_unknown(OutcomeUnknown(f"{name} is being renamed to {new}")):
            arrived = await self._arrive(name, left)
        if not arrived:
            raise AlreadyExists(f"table {new} exists")
        # The table has its new name. If the rest fails, the next writer of either name does it.
        with contextlib.suppress(Unavailable, OutcomeUnknown, Refused):
            await self._finish_rename(new, await self._read_pointer(new))
        assert left.metadata_location is not None
        return left.metadata_location

    async def tables(self, namespace: str) -> list[str]:
        names = []
        async for name in self._names(f"{TABLES}/{_check_name(namespace)}"):
            pointer = await self._visible_pointer(_full_name(namespace, name))
            if pointer is not None and pointer.metadata_location is not None:
                names.append(name)
        return names

    # Renames

    async def _leave(self, name: str, new: str) -> TablePointer:
        """First write: mark in the old pointer that its table leaves for the new name."""
        for _ in range(RENAMES_MAX):
            pointer, target = await self._read_pointer(name), await self._read_pointer(new)
            if pointer is not None and pointer.leaving is not None and pointer.leaving.to == new:
                return pointer  # an earlier attempt was interrupted
            if await self._met_rename(name, pointer) or await self._met_rename(new, target):
                continue
            if pointer is None or pointer.metadata_location is None:
                raise _no_table(name, pointer)
            if target is not None and target.metadata_location is not None:
                raise AlreadyExists(f"table {new} exists")
            left = msgspec.structs.replace(
                pointer, changes=pointer.changes + 1, leaving=Departure(new, _changes(target))
            )
            if await self._replace(name, pointer, left):
                return left
        raise Contended(f"table {name}: not renamed: it or {new} kept changing")

    async def _arrive(self, name: str, left: TablePointer) -> bool:
        """Second write: returns whether the table has its new name. If that is taken, it stays."""
        departure = left.leaving
        assert departure is not None

        def arrive(now: TablePointer | None) -> TablePointer:
            if _is_arrival(now, name, left):
                assert now is not None
                return now
            if _changes(now) != departure.to_changes:
                raise _NameTaken
            arrival = Arrival(name, left.changes)
            return TablePointer(left.metadata_location, _changes(now) + 1, arrived=arrival)

        try:
            await self._table(departure.to).update(arrive)
            return True
        except _NameTaken:
            stays = TablePointer(left.metadata_location, left.changes + 1)
            if await self._replace(name, left, stays):
                return False
        # Others finished or cancelled the rename; the old pointer says which.
        pointer = await self._read_pointer(name)
        if pointer is None or pointer.changes != left.changes + 1:
            raise OutcomeUnknown(
                f"{name} may be {departure.to} now: it was changed again meanwhile"
            )
        return pointer.moved_to == departure.to

    async def _finish_rename(self, name: str, pointer: TablePointer | None) -> None:
        """Finish the rename that a pointer is part of, if any."""
        if (
            pointer is not None
            and pointer.leaving is not None
            and await self._arrive(name, pointer)
        ):
            name, pointer = pointer.leaving.to, await self._read_pointer(pointer.leaving.to)
        if pointer is None or pointer.arrived is None:
            return
        arrival = pointer.arrived

        def free(now: TablePointer | None) -> TablePointer:
            if now is None:
                raise NotFound(f"the pointer of {arrival.name} is gone")
            if now.changes != arrival.changes:
                return now
            return TablePointer(None, now.changes + 1, moved_to=name)

        await self._table(arrival.name).update(free)
        # Last: while the old pointer has `leaving`, the new one must have `arrived`.
        finished = msgspec.structs.replace(pointer, changes=pointer.changes + 1, arrived=None)
        await self._replace(name, pointer, finished)

    async def _met_rename(self, name: str, pointer: TablePointer | None) -> bool:
        """Finish the rename of another caller; returns whether there was one."""
        if pointer is None or not pointer.is_in_rename:
            return False
        try:
            await self._finish_rename(name, pointer)
        except OutcomeUnknown as error:
            # The unknown outcome is the rename's; the caller's own change was not attempted.
            raise Unavailable(f"table {name} is being renamed: {error}") from error
        return True

    async def _replace(self, name: str, before: TablePointer, after: TablePointer) -> bool:
        """Returns whether the pointer was still the one before."""

        def change(now: TablePointer | None) -> TablePointer:
            if now != before:
                raise _PointerMoved
            return after

        try:
            await self._table(name).update(change)
        except _PointerMoved:
            return False
        return True

    async def _visible_pointer(self, name: str) -> TablePointer | None:
        """The pointer as readers see it: with a rename applied, but without finishing it."""
        pointer = await self._read_pointer(name)
        while pointer is not None and pointer.leaving is not None:
            new = pointer.leaving.to
            if _is_arrival(await self._read_pointer(new), name, pointer):
                return TablePointer(None, pointer.changes, moved_to=new)
            before, pointer = pointer, await self._read_pointer(name)
            if before == pointer:
                return pointer
        return pointer

    # Namespaces

    async def namespace(self, name: str) -> dict[str, str]:
        """The properties of a namespace; `NotFound` if it does not exist."""
        try:
            stored = (await self._namespace(name).read()).value
        except NotFound:
            stored = None
        if stored is None or stored.is_dropped:
            raise NotFound(f"there is no namespace {name}")
        return stored.properties

    async def create_namespace(self, name: str, properties: dict[str, str]) -> None:
        """Create a namespace; `AlreadyExists` if it exists."""
        if name in RESERVED:
            raise Refused(f"{name!r} cannot be a namespace: that folder has another use")

        def create(now: Namespace | None) -> Namespace:
            if now is not None and not now.is_dropped:
                raise AlreadyExists(f"namespace {name} exists", current=now)
            return Namespace(properties)

        await self._namespace(name).update(create)

    async def change_namespace(
        self, name: str, change: Callable[[dict[str, str]], dict[str, str] | None]
    ) -> None:
        """Change the properties of a namespace; None drops it."""

        def apply(now: Namespace | None) -> Namespace:
            if now is None or now.is_dropped:
                raise NotFound(f"there is no namespace {name}")
            properties = change(now.properties)
            return Namespace(properties or {}, is_dropped=properties is None)

        await self._namespace(name).update(apply)

    async def namespaces(self) -> list[str]:
        names = []
        async for name in self._names(NAMESPACES):
            if not (await self._namespace(name).read()).value.is_dropped:
                names.append(name)
        return names

    # Registers

    def _table(self, name: str) -> Register[TablePointer]:
        return Register(self._store, f"{TABLES}/{name.replace('.', '/')}.json", TablePointer)

    def _namespace(self, name: str) -> Register[Namespace]:
        return Register(self._store, f"{NAMESPACES}/{_check_name(name)}.json", Namespace)

    async def _read_pointer(self, name: str) -> TablePointer | None:
        try:
            return (await self._table(name).read()).value
        except NotFound:
            return None

    async def _names(self, folder: str) -> AsyncIterator[str]:
        async for meta in self._store.list(folder):
            name = meta.key[len(folder) + 1 :]
            if name.endswith(".json") and "/" not in name:
                yield name.removesuffix(".json")


def _no_table(name: str, pointer: TablePointer | None) -> NotFound:
    moved = f"; it is {pointer.moved_to} now" if pointer and pointer.moved_to else ""
    return NotFound(f"there is no table {name}{moved}")


def _changes(pointer: TablePointer | None) -> int:
    return 0 if pointer is None else pointer.changes


def _is_arrival(target: TablePointer | None, name: str, left: TablePointer) -> bool:
    """Whether a pointer says that the table arrived by exactly this rename."""
    return target is not None and target.arrived == Arrival(name, left.changes)


def _full_name(namespace: str, table: str) -> str:
    return f"{_check_name(namespace)}.{_check_name(table)}"


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name!r} cannot be the name of a table or namespace: use letters, digits, _ and -"
        )
    return name
