"""Which table is meant, and in which catalog."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from headwater.core.errors import NotFound, Refused
from headwater.store.locations import FileRoot
from headwater.table.catalog import RegisterCatalog


class TableReference(NamedTuple):
    """A table and its catalog. It is pickled to the process that runs a query's micro-batches."""

    table: str
    warehouse: str | None
    catalog: dict[str, str] | str | None
    store_options: dict[str, str]

    def open_catalog(self) -> Catalog:
        """Open the catalog of the table."""
        if isinstance(self.catalog, str):
            return load_catalog(self.catalog)
        if self.catalog is not None:
            properties = dict(self.catalog)
            return load_catalog(properties.pop("name", "default"), **properties)
        assert self.warehouse is not None
        return _register_catalog(self.warehouse)

    def load(self) -> Table:
        """Load the table; `NotFound` if there is none."""
        try:
            return self.open_catalog().load_table(self.table)
        except NoSuchTableError as error:
            raise NotFound(f"there is no table {self.table}") from error

    def file_root(self, table: Table) -> FileRoot:
        """Where the files of the table are stored."""
        if isinstance(table.catalog, RegisterCatalog):
            return table.catalog.root
        return FileRoot.of_table(table.location(), **self.store_options)


@functools.cache
def _register_catalog(warehouse: str) -> RegisterCatalog:
    # One for each process, because it caches the metadata that it wrote last.
    return RegisterCatalog("headwater", warehouse=warehouse)


def table_reference(
    table: str,
    warehouse: str | None,
    catalog: Mapping[str, str] | str | None,
    store_options: Mapping[str, str],
) -> TableReference:
    """Check how a table is named; `Refused` says what to change."""
    if "." not in table:
        raise Refused(f"{table!r}: a table belongs to a namespace: write it as namespace.table")
    if (warehouse is None) == (catalog is None):
        raise Refused("name a warehouse (s3://bucket/prefix) or a catalog of pyiceberg, not both")
    if warehouse is not None:
        warehouse = FileRoot.at(warehouse, **store_options).url
    if isinstance(catalog, Mapping):
        catalog = dict(catalog)
    return TableReference(table, warehouse, catalog, dict(store_options))


def load(
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Table:
    """Load a table with pyiceberg: to scan it, read its history or pass it to Polars."""
    return table_reference(table, warehouse, catalog, store_options or {}).load()
