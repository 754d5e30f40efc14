"""Writes a DataFrame to a table, as a batch or by micro-batches, and reads a table."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.core import runtime
from headwater.core.errors import Bug, Contended, NotSupported, OutcomeUnknown, Refused
from headwater.spark import table_columns
from headwater.spark.errors import message_first
from headwater.spark.table_files import (
    WRITTEN_FILE_COLUMNS,
    FilePlan,
    ReadPlan,
    read_files_task,
    write_files_task,
)
from headwater.spark.versions import arrow_schema, spark_schema
from headwater.store.locations import FileRoot
from headwater.table import commit as commits
from headwater.table.commit import WHILE_COMMITTING, CommitToken, WriteResult
from headwater.table.data_files import FLOOR, FilesRefused, WrittenFile, discard_files
from headwater.table.reference import TableReference

GROW_ATTEMPTS: Final = 10
COMPRESSION: Final = "zstd"
_log: Final = logging.getLogger("headwater")
_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"


def query_id_of(batch: DataFrame, checkpoint_location: str | None, *, is_remote: bool) -> str:
    """The id of the query that this micro-batch belongs to.

    The query's name or the checkpoint's address cannot be used instead: if the checkpoint is
    deleted, the query starts again with batch 0, which would be taken for the old one and skipped.
    """
    if not is_remote:
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID_PROPERTY)
        if query_id is None:
            raise Bug("a micro-batch has no query id")
        return str(query_id)
    # Spark stores the id in the checkpoint before the first micro-batch.
    row = batch.sparkSession.read.text(f"{checkpoint_location}/metadata").first()
    if row is None:
        raise Refused(f"the checkpoint {checkpoint_location} has no query id")
    return str(json.loads(row[0])["id"])


class TableOptions(NamedTuple):
    """How a table is written. Pickled to the process that runs the micro-batches."""

    properties: dict[str, str]
    evolve: bool
    keep_snapshots: int
    file_bytes: int


def write_batch_to_table(
    df: DataFrame,
    target: TableReference,
    options: TableOptions,
    app: str | None,
    version: int,
    *,
    is_query: bool = False,
) -> WriteResult:
    """Add the rows of a DataFrame as one snapshot, unless the table has this version already.

    Without an application the write cannot be repeated, so the rows are always added.
    """
    catalog = target.open_catalog()
    columns = table_columns.arrow_columns(df.schema)
    table, columns = _prepare_table(catalog, target.table, options, columns)
    writer = runtime.new_ulid()
    token = CommitToken(app or f"batch-{writer}", version, writer, app is not None, is_query)
    existing = commits.find_commit(table.metadata, token)
    if existing is not None:
        return WriteResult(existing.snapshot_id, 0, 0, already_committed=True)
    root = target.file_root(table)
    files = _write_files(df, table, root, columns, options.file_bytes)
    if not files:
        return WriteResult(None, 0, 0, already_committed=False)
    keep = options.keep_snapshots
    try:
        committed = commits.commit_files(catalog, target.table, files, token, keep_snapshots=keep)
    except (Contended, FilesRefused):
        _discard_files(root, files)  # the files are in no snapshot and never will be
        raise
    if committed.is_ours:
        rows = sum(file.rows for file in files)
        return WriteResult(committed.snapshot_id, rows, len(files), already_committed=False)
    # A duplicate of this attempt was faster: its files are in the table and ours are not.
    if committed.is_ours is False:
        _discard_files(root, files)
    return WriteResult(committed.snapshot_id, 0, 0, already_committed=True)


def _discard_files(root: FileRoot, files: list[WrittenFile]) -> None:
    failed = discard_files(root, files)
    if failed:
        _log.warning(
            "%d files that are in no snapshot could not be deleted: %s …", len(failed), failed[0]
        )


def start_query(
    df: DataFrame,
    target: TableReference,
    options: TableOptions,
    *,
    checkpoint_location: str | None,
    query_name: str | None,
    trigger: Mapping[str, Any] | None,
) -> StreamingQuery:
    """Start a streaming query that adds a snapshot for every micro-batch."""
    is_remote = type(df).__module__.startswith("pyspark.sql.connect")
    if is_remote and checkpoint_location is None:
        raise Refused(
            "on a remote server the query's id is read from its checkpoint: name one "
            "(checkpoint_location=…)"
        )
    _check_query(df, target, options)
    query_id: str | None = None

    @message_first
    def write_batch(batch: DataFrame, batch_id: int) -> None:
        nonlocal query_id
        query_id = query_id or query_id_of(batch, checkpoint_location, is_remote=is_remote)
        write_batch_to_table(batch, target, options, query_id, batch_id, is_query=True)

    writer = df.writeStream.foreachBatch(write_batch)
    if checkpoint_location is not None:
        writer = writer.option("checkpointLocation", checkpoint_location)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


def _check_query(df: DataFrame, target: TableReference, options: TableOptions) -> None:
    """Refuse columns that no micro-batch could write, before the query starts."""
    columns = table_columns.arrow_columns(df.schema)
    with contextlib.suppress(NoSuchTableError):
        table = target.open_catalog().load_table(target.table)
        table_columns.check_fits(
            table, table_columns.with_table_names(table, columns), may_grow=options.evolve
        )


def _prepare_table(
    catalog: Catalog, name: str, options: TableOptions, columns: pa.Schema
) -> tuple[Table, pa.Schema]:
    """Create or change the table for these columns; returns it and the columns with its names."""
    unknown: CommitStateUnknownException | None = None
    for _ in range(GROW_ATTEMPTS):
        try:
            with commits.keeping_unknown(name, unknown):
                try:
                    table = catalog.load_table(name)
                except NoSuchTableError:
                    _create(catalog, name, options, columns)
                    continue
                columns = table_columns.with_table_names(table, columns)
                table_columns.check_fits(table, columns, may_grow=options.evolve)
                if not table_columns.needs_new_columns(table, columns):
                    return table, columns
                table_columns.add_columns(table, columns)
        except CommitFailedException:
            continue  # another writer changed it first: load it again
        except CommitStateUnknownException as error:
            unknown = error  # load it again to see whether it changed
    if unknown is not None:
        raise OutcomeUnknown(f"{name}: its columns may have been changed: {unknown}") from unknown
    raise Contended(
        f"{name}: its columns could not be changed: other commits came first every time"
    )


def _create(catalog: Catalog, name: str, options: TableOptions, columns: pa.Schema) -> None:
    namespace = name.rpartition(".")[0]
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace_if_not_exists(namespace)
    properties = {
        **WHILE_COMMITTING,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
        **options.properties,
    }
    # Another writer may have created it: the caller loads it again.
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(name, columns, properties=properties)


def _write_files(
    df: DataFrame, table: Table, root: FileRoot, columns: pa.Schema, file_bytes: int
) -> list[WrittenFile]:
    schema, order = table_columns.file_columns(table, columns)
    codec = table.properties.get("write.parquet.compression-codec", COMPRESSION)
    plan = FilePlan(
        root=root,
        folder=f"{table.location().rstrip('/')}/data",
        schema=schema.serialize().to_pybytes(),
        order=order,
        target_bytes=file_bytes,
        compression="none" if codec == "uncompressed" else codec,
        above=table.properties.get(FLOOR),
    )
    rows = df.mapInArrow(write_files_task(plan), WRITTEN_FILE_COLUMNS).collect()
    return [WrittenFile(row["location"], row["bytes"], bytes(row["footer"])) for row in rows]


def table_as_dataframe(
    spark: SparkSession, target: TableReference, snapshot_id: int | None, columns: Sequence[str]
) -> DataFrame:
    """A DataFrame of the table; executors read its files through the store."""
    loaded = target.load()
    scan = loaded.scan(snapshot_id=snapshot_id, selected_fields=tuple(columns))
    locations = []
    for task in scan.plan_files():
        if task.delete_files:
            raise NotSupported(
                f"{target.table} has delete files, which cannot be applied here: use pyiceberg"
            )
        locations.append((task.file.file_path,))
    arrow = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    schema = spark_schema(arrow)
    plan = ReadPlan(
        root=target.file_root(loaded),
        schema=arrow_schema(schema).serialize().to_pybytes(),
        field_ids=[field.field_id for field in scan.projection().fields],
    )
    files = spark.createDataFrame(locations, "location string")
    return files.repartition(max(1, len(locations))).mapInArrow(read_files_task(plan), schema)
