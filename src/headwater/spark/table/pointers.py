"""Which metadata file is a table's present one: a register for each table, and each namespace.

    catalog/namespaces/<namespace>.json
    catalog/tables/<namespace>/<table>.json

Always holds:

- a pointer moves from where it was read to another location by a conditional write, or not at all;
- a table that is dropped leaves its register behind, empty: a register that was deleted could come
  back by a request that was long under way, and nobody would know that it did.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from headwater.core.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown, Refused
from headwater.store import Register, Store

NAMESPACES: Final = "catalog/namespaces"
TABLES: Final = "catalog/tables"
RESERVED: Final = frozenset({"catalog", "metadata", "streams"})
"""Folders that have another meaning where a warehouse shares its root with streams."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


class TablePointer(msgspec.Struct, frozen=True):
    """Where a table's metadata stands; None once it is dropped."""

    metadata_location: str | None
    moved_to: str | None = None
    """The name it has instead, with `was` where it stood: a rename that was cut short goes on."""
    was: str | None = None


class Namespace(msgspec.Struct, frozen=True):
    """A namespace and what was said of it."""

    properties: dict[str, str]
    is_dropped: bool = False


class Pointers:
    """The registers of one catalog."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Tables

    async def location(self, namespace: str, table: str) -> str:
        """Where a table's metadata stands; `NotFound` if there is no such table."""
        pointer = await self._pointer(namespace, table)
        if pointer is None or pointer.metadata_location is None:
            moved = f"; it is {pointer.moved_to} now" if pointer and pointer.moved_to else ""
            raise NotFound(f"there is no table {namespace}.{table}{moved}")
        return pointer.metadata_location

    async def was_used(self, namespace: str, table: str) -> bool:
        """Whether there is, or ever was, a table of this name."""
        return await self._pointer(namespace, table) is not None

    async def point(
        self, namespace: str, table: str, expected: str | None, location: str | None
    ) -> None:
        """Move a pointer from where it is expected to `location`; None is "no such table".

        `Conflict`: it stood elsewhere, and this move will never be made. `OutcomeUnknown`: it may
        have been made, or may still be.
        """

        def change(now: TablePointer | None) -> TablePointer:
            present = None if now is None else now.metadata_location
            if present != expected:
                raise Conflict(f"table {namespace}.{table} is at {present}", current=present)
            return TablePointer(location)

        register = self._table(namespace, table)
        try:
            await register.update(change)
        except OutcomeUnknown:
            # A metadata file has a name of its own: where the pointer shows it, it was moved.
            pointer = await self._pointer(namespace, table)
            if location is None or pointer is None or pointer.metadata_location != location:
                raise

    async def rename(self, namespace: str, table: str, to_namespace: str, to_table: str) -> None:
        """Give a table another name. What was cut short half-way is finished by asking again."""
        new = f"{to_namespace}.{to_table}"
        target = await self._pointer(to_namespace, to_table)
        if target is not None and target.metadata_location is not None:
            raise AlreadyExists(f"table {new} exists")

        def leave(now: TablePointer | None) -> TablePointer:
            if (
                now is not None
                and now.metadata_location is None
                and now.moved_to == new
                and now.was
            ):
                return now
            if now is None or now.metadata_location is None:
                raise NotFound(f"there is no table {namespace}.{table}")
            return TablePointer(None, moved_to=new, was=now.metadata_location)

        old = self._table(namespace, table)
        left = (await old.update(leave)).value
        try:
            await self.point(to_namespace, to_table, None, left.was)
        except Conflict:
            # Another table took the name meanwhile: this one would be under neither.
            await old.update(lambda now: TablePointer(left.was) if now in (None, left) else now)
            raise
        await old.update(lambda _: TablePointer(None, moved_to=new))

    async def tables(self, namespace: str) -> list[str]:
        """The tables of a namespace."""
        found = []
        async for name in self._names(f"{TABLES}/{_checked(namespace)}"):
            pointer = await self._pointer(namespace, name)
            if pointer is not None and pointer.metadata_location is not None:
                found.append(name)
        return found

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

    def _table(self, namespace: str, table: str) -> Register[TablePointer]:
        key = f"{TABLES}/{_checked(namespace)}/{_checked(table)}.json"
        return Register(self._store, key, TablePointer)

    def _namespace(self, name: str) -> Register[Namespace]:
        return Register(self._store, f"{NAMESPACES}/{_checked(name)}.json", Namespace)

    async def _pointer(self, namespace: str, table: str) -> TablePointer | None:
        try:
            return (await self._table(namespace, table).read()).value
        except NotFound:
            return None

    async def _names(self, folder: str) -> AsyncIterator[str]:
        async for meta in self._store.list(folder):
            name = meta.key[len(folder) + 1 :]
            if name.endswith(".json") and "/" not in name:
                yield name.removesuffix(".json")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name!r} is no name for a table or namespace here: letters, digits, _ and - are"
        )
    return name
