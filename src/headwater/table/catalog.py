"""A pyiceberg catalog that needs only a store: no server, no database, no lock.

    catalog = RegisterCatalog("orders", warehouse="s3://bucket/warehouse")

A commit writes a new metadata file and then moves the table's pointer to it by one conditional
write.

Always holds: `CommitFailedException` means that the commit did not land and never will, because
pyiceberg then deletes what it wrote for it. An unknown outcome is `CommitStateUnknownException`.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, TypeVar

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
from pyiceberg.io import PY_IO_IMPL, WAREHOUSE, FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View

from headwater.core import portal, runtime
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    Contended,
    HeadwaterError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
)
from headwater.store import Store
from headwater.store.locations import FileRoot
from headwater.table.file_io import StoreFileIO
from headwater.table.pointers import NameWasUsed, Pointers

try:
    from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
except ModuleNotFoundError as error:
    # The first import of pyiceberg wherever headwater.table is imported.
    raise ModuleNotFoundError(
        f"Iceberg tables need pyiceberg ({error}): pip install 'pyiceberg>=0.12,<0.13'",
        name=error.name,
    ) from error

_log: Final = logging.getLogger("headwater")

CREATE_ATTEMPTS: Final = 5

T = TypeVar("T")
Name = str | Identifier


class RegisterCatalog(MetastoreCatalog):
    """Namespaces of one level, and tables, as registers in the warehouse's own store."""

    def __init__(self, name: str, *, store: Store | None = None, **properties: str) -> None:
        if WAREHOUSE not in properties:
            raise Refused("a catalog in a store needs its address: warehouse=s3://bucket/prefix")
        super().__init__(name, **properties)
        self.place = FileRoot.at(properties[WAREHOUSE])
        # What pyiceberg puts files under, and shows: without options.
        implementation = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"
        self.properties = {**properties, WAREHOUSE: self.place.base, PY_IO_IMPL: implementation}
        self._store = store
        self._last: tuple[str, TableMetadata] | None = None

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self._store or self.place.store())

    # Tables

    def create_table(
        self,
        identifier: Name,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Make a table; its namespace is there."""
        for _ in range(CREATE_ATTEMPTS):
            staged = self._create_staged_table(
                identifier, schema, location, partition_spec, sort_order, properties
            )
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            try:
                self._point_new(staged.name(), staged.metadata_location, staged.metadata)
            except NameWasUsed:
                if location is not None:
                    raise
                continue  # since the folder was chosen: another one is, the next time
            return self._table(staged.name(), staged.metadata_location, staged.metadata)
        raise CommitFailedException(f"{identifier}: not created: others keep using the name")

    def register_table(
        self, identifier: Name, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Take in a table whose metadata stands below the warehouse."""
        name = self.identifier_to_database_and_table(identifier)
        self.place.key(metadata_location)
        if overwrite and self.table_exists(identifier):
            self._move(name, self._location(name), metadata_location)
        else:
            self._point_new(name, metadata_location)
        return self._changed(name, metadata_location)

    def load_table(self, identifier: Name) -> Table:
        """A table as it stands."""
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        while True:
            location = self._location(name)
            try:
                return self._table(name, location, self._metadata(location))
            except FileNotFoundError:
                # Swept, if the table has moved on since its pointer was read.
                if self._location(name) == location:
                    raise

    def drop_table(self, identifier: Name) -> None:
        """Forget a table; its files stay."""
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        self._move(name, self._location(name), None)

    def purge_table(self, identifier: Name) -> None:
        """Forget a table, and delete its files; one that cannot be deleted is left with a warning.

        `CommitFailedException`, and nothing is deleted, if the name shows something else by then:
        the table may have another name, and its files are in use.
        """
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        table = self.load_table(identifier)
        files = _files_of(table)
        self._move(name, table.metadata_location, None)
        for location in files:
            try:
                table.io.delete(location)
            except (HeadwaterError, OSError) as error:
                # The table is dropped by now: a file that is left keeps no other. pyiceberg's
                # `FileIO.delete` raises a PermissionError where a store says `Denied`.
                _log.warning("%s is left of a purged table: %s", location, error)

    def rename_table(self, from_identifier: Name, to_identifier: Name) -> Table:
        """Give a table another name; its files stay where they are."""
        old = self.identifier_to_database_and_table(from_identifier, NoSuchTableError)
        new = self.identifier_to_database_and_table(to_identifier)
        if not self.namespace_exists(new[0]):
            raise NoSuchNamespaceError(f"there is no namespace {new[0]}")
        try:
            location = _wait(self._pointers.rename(*old, *new))
        except NotFound as error:
            raise NoSuchTableError(str(error)) from error
        except (AlreadyExists, Conflict) as error:
            raise TableAlreadyExistsError(f"table {'.'.join(new)} exists") from error
        return self._changed(new, location)

    def list_tables(self, namespace: Name) -> list[Identifier]:
        """The tables of a namespace."""
        name = self._existing(namespace)
        return [(name, table) for table in _wait(self._pointers.tables(name))]

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Apply updates to a table, if it still is what they require."""
        name = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        try:
            current: Table | None = self.load_table(name)
        except NoSuchTableError:
            current = None
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return _response(current.metadata, current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        if current is None:
            self._commit_new(name, staged)
        else:
            self._swap(name, current.metadata_location, staged)
        self._last = (staged.metadata_location, staged.metadata)
        return _response(staged.metadata, staged.metadata_location)

    def _swap(self, name: tuple[str, str], expected: str, staged: StagedTable) -> None:
        new = staged.metadata_location
        try:
            _wait(self._pointers.point(*name, expected, new))
        except (Conflict, Contended) as error:
            raise CommitFailedException(f"another commit came first: {error}") from error
        except OutcomeUnknown as error:
            if not self._has_landed(name, new):
                raise CommitStateUnknownException(str(error)) from error

    def _has_landed(self, name: tuple[str, str], location: str) -> bool:
        """Whether a commit can be seen; if not, or if looking fails, it may have landed still."""
        try:
            now = self.load_table(name)
        except Exception as error:
            # Whatever it is, also that there is no such table: it says nothing of the commit.
            _log.warning("%s: looking for a commit failed: %s", ".".join(name), error)
            return False
        # Others may have committed on top of it since: each names those before it.
        before = {entry.metadata_file for entry in now.metadata.metadata_log}
        return now.metadata_location == location or location in before

    def _commit_new(self, name: tuple[str, str], staged: StagedTable) -> None:
        try:
            self._point_new(name, staged.metadata_location, staged.metadata)
        except NameWasUsed as error:
            raise CommitFailedException(f"{error}: create it again") from error

    def _point_new(
        self, name: Identifier, location: str, metadata: TableMetadata | None = None
    ) -> None:
        """Point a name that is free to a table; to a new one, whose `metadata` these are, only if
        no table had both the name and the folder before."""
        namespace, table = name
        self._existing(namespace)
        folder = super()._get_default_warehouse_location(namespace, table)
        is_first = metadata is not None and metadata.location == folder
        try:
            _wait(self._pointers.point(namespace, table, None, location, is_first=is_first))
        except NameWasUsed:
            raise
        except Conflict as error:
            raise TableAlreadyExistsError(f"table {namespace}.{table} exists") from error
        except OutcomeUnknown as error:
            raise CommitStateUnknownException(str(error)) from error

    def _move(self, name: tuple[str, str], expected: str, location: str | None) -> None:
        try:
            _wait(self._pointers.point(*name, expected, location))
        except (Conflict, Contended) as error:
            raise CommitFailedException(f"another commit came first: {error}") from error
        except OutcomeUnknown as error:
            raise CommitStateUnknownException(str(error)) from error

    def _location(self, name: tuple[str, str]) -> str:
        try:
            return _wait(self._pointers.location(*name))
        except NotFound as error:
            raise NoSuchTableError(str(error)) from error

    def _metadata(self, location: str) -> TableMetadata:
        # A metadata file never changes: what was read or written last need not be read again.
        # Looked at once: queries share a catalog, and another's table may come in between.
        last = self._last
        if last is None or last[0] != location:
            file = self._load_file_io(location=location).new_input(location)
            last = self._last = (location, FromInputFile.table_metadata(file))
        return last[1]

    def _table(self, name: Identifier, location: str, metadata: TableMetadata) -> Table:
        return Table(
            identifier=name,
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(location=location),
            catalog=self,
        )

    def _changed(self, name: Identifier, location: str) -> Table:
        """A table after a change of its pointer, which no failure to read it undoes."""
        try:
            return self._table(name, location, self._metadata(location))
        except (HeadwaterError, OSError) as error:
            raise OutcomeUnknown(
                f"table {'.'.join(name)} has this name now, and could not be read: {error}"
            ) from error

    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        return StoreFileIO({**self.properties, **properties}, place=self.place, store=self._store)

    def _get_default_warehouse_location(self, database_name: str, table_name: str) -> str:
        """The folder of the name, for the first table that has it; after that one of its own.

        The files of a table that was renamed or dropped are still in the first one, and a sweep of
        its successor would take them for leftovers. `_point_new` checks it again: another table
        may have had the name since.
        """
        folder = super()._get_default_warehouse_location(database_name, table_name)
        if _wait(self._pointers.was_used(database_name, table_name)):
            return f"{folder}-{runtime.new_ulid().lower()}"
        return folder

    # Namespaces

    def create_namespace(self, namespace: Name, properties: Properties = EMPTY_DICT) -> None:
        """Make a namespace."""
        name = self.identifier_to_database(namespace)
        try:
            _wait(self._pointers.create_namespace(name, dict(properties)))
        except AlreadyExists as error:
            raise NamespaceAlreadyExistsError(str(error)) from error

    def drop_namespace(self, namespace: Name) -> None:
        """Remove a namespace that has no tables."""
        name = self._existing(namespace)
        tables = self.list_tables(namespace)
        if tables:
            raise NamespaceNotEmptyError(f"namespace {name} has {len(tables)} tables")
        _wait(self._pointers.change_namespace(name, lambda _: None))

    def list_namespaces(self, namespace: Name = ()) -> list[Identifier]:
        """All namespaces; there are none within others."""
        if namespace:
            self._existing(namespace)
            return []
        return [(name,) for name in _wait(self._pointers.namespaces())]

    def load_namespace_properties(self, namespace: Name) -> Properties:
        """What was said of a namespace."""
        name = self.identifier_to_database(namespace, NoSuchNamespaceError)
        try:
            return _wait(self._pointers.namespace(name))
        except NotFound as error:
            raise NoSuchNamespaceError(str(error)) from error

    def update_namespace_properties(
        self, namespace: Name, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Change what is said of a namespace."""
        before = self.load_namespace_properties(namespace)
        summary, _ = self._get_updated_props_and_update_summary(before, removals, updates)
        gone = removals or set()

        def change(now: dict[str, str]) -> dict[str, str]:
            return {k: v for k, v in now.items() if k not in gone} | dict(updates)

        _wait(self._pointers.change_namespace(self.identifier_to_database(namespace), change))
        return summary

    def _existing(self, namespace: Name) -> str:
        self.load_namespace_properties(namespace)
        return self.identifier_to_database(namespace)

    # Views

    def list_views(self, namespace: Name) -> list[Identifier]:
        """None: there are tables only."""
        return []

    def view_exists(self, identifier: Name) -> bool:
        """There are tables only."""
        return False

    def load_view(self, identifier: Name) -> View:
        """There are tables only."""
        raise NoSuchViewError(f"there is no view {identifier}: this catalog has tables only")

    def drop_view(self, identifier: Name) -> None:
        """There are tables only."""
        raise NoSuchViewError(f"there is no view {identifier}: this catalog has tables only")

    def register_view(self, identifier: Name, metadata_location: str) -> NoReturn:
        """There are tables only."""
        raise NotSupported("this catalog has tables only")


def _files_of(table: Table) -> list[str]:
    """Every file that a table names, its metadata last."""
    metadata = table.metadata
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    data = {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    logged = {entry.metadata_file for entry in metadata.metadata_log}
    return [*sorted(data), *manifests, *sorted(lists | logged), table.metadata_location]


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
    return portal.shared().call(coroutine)


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse(metadata=metadata, **{"metadata-location": location})
