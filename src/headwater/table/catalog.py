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

try:
    from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
except ModuleNotFoundError as error:
    # The first import of pyiceberg when headwater.table is imported.
    raise ModuleNotFoundError(
        f"Iceberg tables need pyiceberg ({error}): pip install 'pyiceberg>=0.12,<0.13'",
        name=error.name,
    ) from error
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
from pyiceberg.table import CommitTableResponse, Table
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
from headwater.table.data_files import manifests_of
from headwater.table.file_io import StoreFileIO
from headwater.table.pointers import NameWasUsed, Pointers

_log: Final = logging.getLogger("headwater")

CREATE_ATTEMPTS: Final = 5

T = TypeVar("T")
Name = str | Identifier


class RegisterCatalog(MetastoreCatalog):
    """Namespaces of one level and tables, as registers in the store of the warehouse."""

    def __init__(self, name: str, *, store: Store | None = None, **properties: str) -> None:
        if WAREHOUSE not in properties:
            raise Refused("a catalog in a store needs its address: warehouse=s3://bucket/prefix")
        super().__init__(name, **properties)
        self.root = FileRoot.at(properties[WAREHOUSE])
        # pyiceberg derives locations from it and shows it: without options.
        implementation = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"
        self.properties = {**properties, WAREHOUSE: self.root.base, PY_IO_IMPL: implementation}
        self._store = store
        self._cached: tuple[str, TableMetadata] | None = None

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self._store or self.root.store())

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
        for _ in range(CREATE_ATTEMPTS):
            staged = self._create_staged_table(
                identifier, schema, location, partition_spec, sort_order, properties
            )
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            try:
                self._create_pointer(staged.name(), staged.metadata_location, staged.metadata)
            except NameWasUsed:
                if location is not None:
                    raise
                continue  # the name was used after the folder was chosen: choose another folder
            self._cached = (staged.metadata_location, staged.metadata)
            return self._table(staged.name(), staged.metadata_location)
        raise CommitFailedException(f"{identifier}: not created: other tables keep taking the name")

    def register_table(
        self, identifier: Name, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Add a table whose metadata file is below the warehouse."""
        name = self.identifier_to_database_and_table(identifier)
        self.root.key(metadata_location)
        if overwrite and self.table_exists(identifier):
            self._move_pointer(name, self._metadata_location(name), metadata_location)
        else:
            self._create_pointer(name, metadata_location)
        return self._reload(name, metadata_location)

    def load_table(self, identifier: Name) -> Table:
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        while True:
            location = self._metadata_location(name)
            try:
                return self._table(name, location)
            except FileNotFoundError:
                # Others may have committed and swept this file since the pointer was read.
                if self._metadata_location(name) == location:
                    raise

    def drop_table(self, identifier: Name) -> None:
        """Remove a table from the catalog; its files stay."""
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        self._move_pointer(name, self._metadata_location(name), None)

    def purge_table(self, identifier: Name) -> None:
        """Remove a table and delete its files; a file that cannot be deleted is logged and left.

        `CommitFailedException`, and nothing is deleted, if the table has changed meanwhile: it may
        have another name by now, and its files are in use.
        """
        name = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        table = self.load_table(identifier)
        files = _files_of(table)
        self._move_pointer(name, table.metadata_location, None)
        for location in files:
            try:
                table.io.delete(location)
            except (HeadwaterError, OSError) as error:
                # The table is dropped already, so delete the other files. pyiceberg's own
                # `FileIO.delete` raises PermissionError, not `Denied`.
                _log.warning("%s of a purged table could not be deleted: %s", location, error)

    def rename_table(self, from_identifier: Name, to_identifier: Name) -> Table:
        """Rename a table; its files stay where they are."""
        old = self.identifier_to_database_and_table(from_identifier, NoSuchTableError)
        new = self.identifier_to_database_and_table(to_identifier)
        if not self.namespace_exists(new[0]):
            raise NoSuchNamespaceError(f"there is no namespace {new[0]}")
        try:
            location = _run(self._pointers.rename(*old, *new))
        except NotFound as error:
            raise NoSuchTableError(str(error)) from error
        except (AlreadyExists, Conflict) as error:
            raise TableAlreadyExistsError(f"table {'.'.join(new)} exists") from error
        return self._reload(new, location)

    def list_tables(self, namespace: Name) -> list[Identifier]:
        name = self._checked_namespace(namespace)
        return [(name, table) for table in _run(self._pointers.tables(name))]

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Apply updates to a table if it meets their requirements."""
        name = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        try:
            current: Table | None = self.load_table(name)
        except NoSuchTableError:
            current = None
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return _response(current.metadata, current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        if current is not None:
            self._move_pointer(name, current.metadata_location, staged.metadata_location)
        else:
            try:
                self._create_pointer(name, staged.metadata_location, staged.metadata)
            except NameWasUsed as error:
                raise CommitFailedException(f"{error}: create it again") from error
        self._cached = (staged.metadata_location, staged.metadata)
        return _response(staged.metadata, staged.metadata_location)

    def _has_landed(self, name: tuple[str, str], location: str) -> bool:
        """Whether a commit is visible. If not, or if the read fails, it may still have landed."""
        try:
            table = self.load_table(name)
        except Exception as error:
            # Any error, even a missing table, says nothing about the commit.
            _log.warning("%s: could not check whether a commit landed: %s", ".".join(name), error)
            return False
        # Others may have committed on top of it: metadata names the files before it.
        earlier = {entry.metadata_file for entry in table.metadata.metadata_log}
        return location == table.metadata_location or location in earlier

    def _create_pointer(
        self, name: Identifier, location: str, metadata: TableMetadata | None = None
    ) -> None:
        """Point a free name to a table.

        `metadata` is that of a new table. It gets the folder of its name only if no table had the
        name before.
        """
        namespace, table = name
        self._checked_namespace(namespace)
        folder = super()._get_default_warehouse_location(namespace, table)
        is_first = metadata is not None and metadata.location == folder
        try:
            _run(self._pointers.point(namespace, table, None, location, is_first=is_first))
        except NameWasUsed:
            raise
        except Conflict as error:
            raise TableAlreadyExistsError(f"table {namespace}.{table} exists") from error
        except OutcomeUnknown as error:
            raise CommitStateUnknownException(str(error)) from error

    def _move_pointer(self, name: tuple[str, str], expected: str, location: str | None) -> None:
        try:
            _run(self._pointers.point(*name, expected, location))
        except (Conflict, Contended) as error:
            raise CommitFailedException(f"another commit came first: {error}") from error
        except OutcomeUnknown as error:
            if location is None or not self._has_landed(name, location):
                raise CommitStateUnknownException(str(error)) from error

    def _metadata_location(self, name: tuple[str, str]) -> str:
        try:
            return _run(self._pointers.location(*name))
        except NotFound as error:
            raise NoSuchTableError(str(error)) from error

    def _table(self, name: Identifier, location: str) -> Table:
        # A metadata file never changes, so the last one read or written is cached. The attribute is
        # read once: queries share a catalog, and another thread may replace it.
        files, cached = self._load_file_io(location=location), self._cached
        if cached is None or cached[0] != location:
            metadata = FromInputFile.table_metadata(files.new_input(location))
            cached = self._cached = (location, metadata)
        return Table(
            identifier=name,
            metadata=cached[1],
            metadata_location=location,
            io=files,
            catalog=self,
        )

    def _reload(self, name: Identifier, location: str) -> Table:
        """Load a table whose pointer was changed; a failed read does not undo the change."""
        try:
            return self._table(name, location)
        except (HeadwaterError, OSError) as error:
            raise OutcomeUnknown(
                f"table {'.'.join(name)} has this name now, but could not be read: {error}"
            ) from error

    def _load_file_io(
        self, properties: Properties = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        return StoreFileIO({**self.properties, **properties}, root=self.root, store=self._store)

    def _get_default_warehouse_location(self, database_name: str, table_name: str) -> str:
        """The folder of the name for the first table of that name; a new folder for later ones.

        Files of a table that was renamed or dropped are still in the first folder, and a sweep of
        the next table would delete them as obsolete. `_create_pointer` checks this again, because
        another table may have used the name meanwhile.
        """
        folder = super()._get_default_warehouse_location(database_name, table_name)
        if _run(self._pointers.was_used(database_name, table_name)):
            return f"{folder}-{runtime.new_ulid().lower()}"
        return folder

    # Namespaces

    def create_namespace(self, namespace: Name, properties: Properties = EMPTY_DICT) -> None:
        name = self.identifier_to_database(namespace)
        try:
            _run(self._pointers.create_namespace(name, dict(properties)))
        except AlreadyExists as error:
            raise NamespaceAlreadyExistsError(str(error)) from error

    def drop_namespace(self, namespace: Name) -> None:
        """Drop a namespace that has no tables."""
        name = self._checked_namespace(namespace)
        tables = self.list_tables(namespace)
        if tables:
            raise NamespaceNotEmptyError(f"namespace {name} has {len(tables)} tables")
        _run(self._pointers.change_namespace(name, lambda _: None))

    def list_namespaces(self, namespace: Name = ()) -> list[Identifier]:
        """List all namespaces; they are not nested."""
        if namespace:
            self._checked_namespace(namespace)
            return []
        return [(name,) for name in _run(self._pointers.namespaces())]

    def load_namespace_properties(self, namespace: Name) -> Properties:
        name = self.identifier_to_database(namespace, NoSuchNamespaceError)
        try:
            return _run(self._pointers.namespace(name))
        except NotFound as error:
            raise NoSuchNamespaceError(str(error)) from error

    def update_namespace_properties(
        self, namespace: Name, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        before = self.load_namespace_properties(namespace)
        summary, _ = self._get_updated_props_and_update_summary(before, removals, updates)
        gone = removals or set()

        def change(now: dict[str, str]) -> dict[str, str]:
            return {k: v for k, v in now.items() if k not in gone} | dict(updates)

        _run(self._pointers.change_namespace(self.identifier_to_database(namespace), change))
        return summary

    def _checked_namespace(self, namespace: Name) -> str:
        self.load_namespace_properties(namespace)
        return self.identifier_to_database(namespace)

    # Views

    def list_views(self, namespace: Name) -> list[Identifier]:
        return []

    def view_exists(self, identifier: Name) -> bool:
        return False

    def load_view(self, identifier: Name) -> View:
        raise NoSuchViewError(f"there is no view {identifier}: this catalog has tables only")

    def drop_view(self, identifier: Name) -> None:
        raise NoSuchViewError(f"there is no view {identifier}: this catalog has tables only")

    def register_view(self, identifier: Name, metadata_location: str) -> NoReturn:
        raise NotSupported("this catalog has tables only")


def _files_of(table: Table) -> list[str]:
    """Every file that a table names, its current metadata last."""
    metadata, manifests = table.metadata, manifests_of(table)
    data = {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    logged = {entry.metadata_file for entry in metadata.metadata_log}
    paths = [manifest.manifest_path for manifest in manifests]
    return [*sorted(data), *paths, *sorted(lists | logged), table.metadata_location]


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return portal.shared().call(coroutine)


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse(metadata=metadata, **{"metadata-location": location})
