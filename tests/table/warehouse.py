"""What tests of tables begin with: a catalog, a table, files that are in no snapshot yet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Properties

from headwater.core import runtime
from headwater.core.retry import RetryPolicy
from headwater.spark import table_columns
from headwater.spark.table_files import FilePlan, write_files_task
from headwater.store import Backend, MemoryBackend, Store
from headwater.store.address import _memory
from headwater.table.catalog import RegisterCatalog
from headwater.table.commit import CommittedVersion, CommitToken, commit_files
from headwater.table.data_files import FLOOR, WrittenFile

ORDERS = "shop.orders"
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
KEEP = 100

IMPATIENT = RetryPolicy(attempts=1)
"""No second attempt, hence no wait: what a lost answer means is for the caller to find out."""

_numbers = itertools.count(1)


class Instant(runtime.RealRuntime):
    """Waits are over at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Warehouse:
    """Objects in memory, for executors as they are, and for catalogs through a bad day."""

    def __init__(self) -> None:
        self.name = f"warehouse-{next(_numbers)}"
        self.url = f"memory://{self.name}"
        self.objects = _memory[self.name] = MemoryBackend()

    def catalog(
        self,
        seen: Callable[[Backend], Backend] = lambda backend: backend,
        kind: type[RegisterCatalog] = RegisterCatalog,
        policy: RetryPolicy = IMPATIENT,
    ) -> RegisterCatalog:
        """A catalog of its own, with the store as it sees it."""
        store = Store(seen(self.objects), url=self.url, policy=policy)
        return kind("test", store=store, warehouse=self.url)


def made(
    catalog: RegisterCatalog, columns: pa.Schema = COLUMNS, properties: Properties = EMPTY_DICT
) -> Table:
    """A table that is there."""
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table(ORDERS, columns, properties=properties)


def written(catalog: RegisterCatalog, ids: Sequence[int]) -> list[WrittenFile]:
    """A data file with these rows, as a task leaves it."""
    table = catalog.load_table(ORDERS)
    schema, order = table_columns.file_columns(table, COLUMNS)
    plan = FilePlan(
        root=catalog.root,
        folder=f"{table.location()}/data",
        schema=schema.serialize().to_pybytes(),
        order=order,
        target_bytes=1 << 26,
        compression="zstd",
        above=table.properties.get(FLOOR),
    )
    rows = pa.RecordBatch.from_pydict({"id": ids, "name": [str(id) for id in ids]}, schema=COLUMNS)
    told = [row for batch in write_files_task(plan)(iter([rows])) for row in batch.to_pylist()]
    return [WrittenFile(row["location"], row["bytes"], row["footer"]) for row in told]


def append(
    catalog: RegisterCatalog, ids: Sequence[int], app: str, version: int, *, keep: int = KEEP
) -> CommittedVersion:
    """Commit these rows as a version of an application."""
    token = CommitToken(app, version, runtime.new_ulid())
    return commit_files(catalog, ORDERS, written(catalog, ids), token, keep_snapshots=keep)


def stored(catalog: RegisterCatalog) -> list[int]:
    """The ids in the table, in order."""
    found: list[Any] = catalog.load_table(ORDERS).scan().to_arrow().column("id").to_pylist()
    return sorted(found)
