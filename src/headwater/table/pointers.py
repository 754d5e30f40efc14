"""Which metadata file is a table's present one: a register for each table, and each namespace.

    catalog/namespaces/<namespace>.json
    catalog/tables/<namespace>/<table>.json

Always holds:

- a pointer moves from where it was read to another location by a conditional write, or not at all;
- a table that is dropped leaves its register behind, empty: a register that was deleted could come
  back by a request that was long under way, and nothing would show that it did;
- a table has one name at every moment. A rename is three writes: the old pointer says that its
  table *leaves*, and to which name; the new one says that it *arrived*, and from which; then the
  old one is free. The table has its new name from the second write on. Until the third, both names
  are taken, and every writer that meets either one finishes the rename first.

A rename that stood still does no harm when it goes on: a table arrives only at a pointer that has
not changed since the rename began (`to_changes`), and the old name is freed only if its pointer is
still the one that leaves. Freeing it whatever it says is the obvious alternative: by then it may
point to a table that was created under the name meanwhile.
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
"""Folders that have another meaning where a warehouse shares its root with streams."""
RENAMES_MET: Final = 16
"""So many renames of others are finished on the way to one change of a pointer."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


class Departure(msgspec.Struct, frozen=True):
    """Where a table that is being renamed goes."""

    to: str
    to_changes: int
    """How often the pointer of the new name had changed: it arrives there, or not at all."""


class Arrival(msgspec.Struct, frozen=True):
    """Where a renamed table came from; gone once its old name is free."""

    name: str
    changes: int
    """Of the old pointer when its table left."""


class TablePointer(msgspec.Struct, frozen=True):
    """Where a table's metadata is stored."""

    metadata_location: str | None
    """None: there is no table of this name."""
    changes: int
    """Counts the changes of this pointer, so that no two of them are equal."""
    leaving: Departure | None = None
    arrived: Arrival | None = None
    moved_to: str | None = None
    """The name that the last table of this name has instead."""

    @property
    def is_settled(self) -> bool:
        """Whether no rename is under way here."""
        return self.leaving is None and self.arrived is None


class Namespace(msgspec.Struct, frozen=True):
    """A namespace and what was said of it."""

    properties: dict[str, str]
    is_dropped: bool = False


class NameWasUsed(Conflict):
    """Another table had this name before: its files may be in the folder of the name."""


class _RenameUnderWay(Exception):
    """A rename is under way: it is finished first."""

    def __init__(self, pointer: TablePointer) -> None:
        super().__init__()
        self.pointer = pointer


class _NameTaken(Exception):
    """The new name's pointer changed since the rename began."""


class _PointerMoved(Exception):
    """The old name's pointer changed since it was read."""


class Pointers:
    """The registers of one catalog."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Tables

    async def location(self, namespace: str, table: str) -> str:
        """Where a table's metadata is stored; `NotFound` if there is no such table."""
        name = _full(namespace, table)
        pointer = await self._standing(name)
        if pointer is None or pointer.metadata_location is None:
            moved = f"; it is {pointer.moved_to} now" if pointer and pointer.moved_to else ""
            raise NotFound(f"there is no table {name}{moved}")
        return pointer.metadata_location

    async def was_used(self, namespace: str, table: str) -> bool:
        """Whether there is, or ever was, a table of this name."""
        return await self._pointer(_full(namespace, table)) is not None

    async def point(
        self,
        namespace: str,
        table: str,
        expected: str | None,
        location: str | None,
        *,
        is_first: bool = False,
    ) -> None:
        """Move a pointer from where it is expected to `location`; None is "no such table".

        `is_first`: only if no table ever had this name, else `NameWasUsed`. `Conflict`: it stood
        elsewhere, and this move will never be made. `OutcomeUnknown`: it may have been made, or
        may still be.
        """
        name = _full(namespace, table)

        def change(now: TablePointer | None) -> TablePointer:
            if now is not None and not now.is_settled:
                raise _RenameUnderWay(now)
            present = None if now is None else now.metadata_location
            if present != expected:
                raise Conflict(f"table {name} is at {present}", current=present)
            if is_first and now is not None:
                raise NameWasUsed(f"{name} was the name of another table before")
            return TablePointer(location, _changes(now) + 1)

        for _ in range(RENAMES_MET):
            try:
                await self._table(name).update(change)
                return
            except _RenameUnderWay as met:
                await self._settle_for_another(name, met.pointer)
            except OutcomeUnknown as unknown:
                # A metadata file has a name of its own: where the pointer shows it, it was moved.
                with staying_unknown(unknown):
                    pointer = await self._pointer(name)
                if location is None or pointer is None or pointer.metadata_location != location:
                    raise
                return
        raise Contended(f"table {name}: not changed: it is renamed again and again")

    async def rename(self, namespace: str, table: str, to_namespace: str, to_table: str) -> str:
        """Give a table another name; where its metadata is stored.

        What was cut short half-way is finished by asking again, or by the next writer of either
        name. `OutcomeUnknown`: it may have the new name, or may get it still.
        """
        name, new = _full(namespace, table), _full(to_namespace, to_table)
        left = await self._leave(name, new)
        # From here on the next writer of the old name finishes it, whatever this one comes to.
        with staying_unknown(OutcomeUnknown(f"{name} is being renamed to {new}")):
            arrived = await self._arrive(name, left)
        if not arrived:
            raise AlreadyExists(f"table {new} exists")
        # It has its new name. What is left to do, the next writer of either name does as well.
        with contextlib.suppress(Unavailable, OutcomeUnknown, Refused):
            await self._settle(new, await self._pointer(new))
        assert left.metadata_location is not None
        return left.metadata_location

    async def tables(self, namespace: str) -> list[str]:
        """The tables of a namespace."""
        found = []
        async for name in self._names(f"{TABLES}/{_checked(namespace)}"):
            pointer = await self._standing(_full(namespace, name))
            if pointer is not None and pointer.metadata_location is not None:
                found.append(name)
        return found

    # Renames

    async def _leave(self, name: str, new: str) -> TablePointer:
        """The first write: the old pointer, saying that its table leaves for the new name."""
        for _ in range(RENAMES_MET):
            pointer, target = await self._pointer(name), await self._pointer(new)
            if pointer is not None and pointer.leaving is not None and pointer.leaving.to == new:
                return pointer  # cut short before
            if await self._met_rename(name, pointer) or await self._met_rename(new, target):
                continue
            if pointer is None or pointer.metadata_location is None:
                moved = f"; it is {pointer.moved_to} now" if pointer and pointer.moved_to else ""
                raise NotFound(f"there is no table {name}{moved}")
            if target is not None and target.metadata_location is not None:
                raise AlreadyExists(f"table {new} exists")
            left = msgspec.structs.replace(
                pointer, changes=pointer.changes + 1, leaving=Departure(new, _changes(target))
            )
            with contextlib.suppress(_PointerMoved):
                await self._replace(name, pointer, left)
                return left
        raise Contended(f"table {name}: not renamed: it or {new} kept changing")

    async def _arrive(self, name: str, left: TablePointer) -> bool:
        """The second write; whether the table has its new name. If that is taken, it stays."""
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
            with contextlib.suppress(_PointerMoved):
                await self._replace(name, left, stays)
                return False
        # Others finished it, one way or the other, and the old pointer says which.
        pointer = await self._pointer(name)
        if pointer is None or pointer.changes != left.changes + 1:
            raise OutcomeUnknown(f"{name} may be {departure.to} now: it was changed again since")
        return pointer.moved_to == departure.to

    async def _settle(self, name: str, pointer: TablePointer | None) -> None:
        """Finish the rename that a pointer is part of, if it is part of one."""
        if (
            pointer is not None
            and pointer.leaving is not None
            and await self._arrive(name, pointer)
        ):
            name, pointer = pointer.leaving.to, await self._pointer(pointer.leaving.to)
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
        # Only now: as long as the old pointer says that its table leaves, this says that it came.
        settled = msgspec.structs.replace(pointer, changes=pointer.changes + 1, arrived=None)
        with contextlib.suppress(_PointerMoved):
            await self._replace(name, pointer, settled)

    async def _settle_for_another(self, name: str, pointer: TablePointer) -> None:
        try:
            await self._settle(name, pointer)
        except OutcomeUnknown as error:
            # Of the rename, and not of what is to be done after it: of that nothing is done yet.
            raise Unavailable(f"table {name} is being renamed: {error}") from error

    async def _met_rename(self, name: str, pointer: TablePointer | None) -> bool:
        if pointer is None or pointer.is_settled:
            return False
        await self._settle_for_another(name, pointer)
        return True

    async def _replace(self, name: str, before: TablePointer, after: TablePointer) -> None:
        def change(now: TablePointer | None) -> TablePointer:
            if now != before:
                raise _PointerMoved
            return after

        await self._table(name).update(change)

    async def _standing(self, name: str) -> TablePointer | None:
        """The pointer, as it is for readers: they finish no rename, and see past one."""
        pointer = await self._pointer(name)
        while pointer is not None and pointer.leaving is not None:
            new = pointer.leaving.to
            if _is_arrival(await self._pointer(new), name, pointer):
                return TablePointer(None, pointer.changes, moved_to=new)
            before, pointer = pointer, await self._pointer(name)
            if before == pointer:
                return pointer
        return pointer

    # Namespaces

    async def namespace(self, name: str) -> dict[str, str]:
        """What was said of a namespace; `NotFound` if it does not exist."""
        try:
            found = (await self._namespace(name).read()).value
        except NotFound:
            found = None
        if found is None or found.is_dropped:
            raise NotFound(f"there is no namespace {name}")
        return found.properties

    async def create_namespace(self, name: str, properties: dict[str, str]) -> None:
        """Make a namespace; `AlreadyExists` if it is there."""
        if name in RESERVED:
            raise Refused(f"{name!r} is no name for a namespace: that folder has another meaning")

        def create(now: Namespace | None) -> Namespace:
            if now is not None and not now.is_dropped:
                raise AlreadyExists(f"namespace {name} exists", current=now)
            return Namespace(properties)

        await self._namespace(name).update(create)

    async def change_namespace(
        self, name: str, change: Callable[[dict[str, str]], dict[str, str] | None]
    ) -> None:
        """Change what is said of a namespace; None drops it."""

        def apply(now: Namespace | None) -> Namespace:
            if now is None or now.is_dropped:
                raise NotFound(f"there is no namespace {name}")
            properties = change(now.properties)
            return Namespace(properties or {}, is_dropped=properties is None)

        await self._namespace(name).update(apply)

    async def namespaces(self) -> list[str]:
        """All namespaces."""
        found = []
        async for name in self._names(NAMESPACES):
            if not (await self._namespace(name).read()).value.is_dropped:
                found.append(name)
        return found

    # Registers

    def _table(self, name: str) -> Register[TablePointer]:
        return Register(self._store, f"{TABLES}/{name.replace('.', '/')}.json", TablePointer)

    def _namespace(self, name: str) -> Register[Namespace]:
        return Register(self._store, f"{NAMESPACES}/{_checked(name)}.json", Namespace)

    async def _pointer(self, name: str) -> TablePointer | None:
        try:
            return (await self._table(name).read()).value
        except NotFound:
            return None

    async def _names(self, folder: str) -> AsyncIterator[str]:
        async for meta in self._store.list(folder):
            name = meta.key[len(folder) + 1 :]
            if name.endswith(".json") and "/" not in name:
                yield name.removesuffix(".json")


def _changes(pointer: TablePointer | None) -> int:
    return 0 if pointer is None else pointer.changes


def _is_arrival(target: TablePointer | None, name: str, left: TablePointer) -> bool:
    """Whether a pointer says that this very table arrived, by this very rename."""
    return target is not None and target.arrived == Arrival(name, left.changes)


def _full(namespace: str, table: str) -> str:
    return f"{_checked(namespace)}.{_checked(table)}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name!r} is no name for a table or namespace here: letters, digits, _ and - are"
        )
    return name
