"""A DataFrame written to a table: once as a batch, or by every micro-batch of a query; and read."""

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
from headwater.spark.errors import sentence_first
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
from headwater.table import commit as tokens
from headwater.table.commit import WHILE_COMMITTING, Commit, CommitToken
from headwater.table.data_files import FLOOR, FilesRefused, WrittenFile, discard_files
from headwater.table.reference import TableReference

_PROPERTY: Final = "sql.streaming.queryId"


class QueryId:
    """Finds the id of a query from within one of its micro-batches, once.

    A name that somebody chose, or the checkpoint's address, would not do: whoever deletes the
    checkpoint starts over with batch 0, which would be taken for the old one and never written.
    """

    def __init__(self, checkpoint_location: str | None, *, is_remote: bool) -> None:
        if is_remote and checkpoint_location is None:
            raise Refused(
                "on a remote server the query's id is read from its checkpoint: name one "
                "(checkpoint_location=…)"
            )
        self._found: str | None = None
        self._checkpoint_location = checkpoint_location
        self._is_remote = is_remote

    def of(self, batch: DataFrame) -> str:
        """The id of the query that this micro-batch belongs to."""
        if self._found is None:
            self._found = self._kept(batch) if self._is_remote else _running(batch)
        return self._found

    def _kept(self, batch: DataFrame) -> str:
        """The id that Spark wrote into the checkpoint before the first micro-batch."""
        kept = batch.sparkSession.read.text(f"{self._checkpoint_location}/metadata").first()
        if kept is None:
            raise Refused(f"the checkpoint {self._checkpoint_location} has no id of its query")
        return str(json.loads(kept[0])["id"])


def _running(batch: DataFrame) -> str:
    found = batch.sparkSession.sparkContext.getLocalProperty(_PROPERTY)
    if found is None:
        raise Bug("a micro-batch does not tell which query it belongs to")
    return str(found)


GROW_ATTEMPTS: Final = 10
COMPRESSION: Final = "zstd"

_log: Final = logging.getLogger("headwater")


class TableOptions(NamedTuple):
    """How a table is written. It is pickled to wherever a micro-batch is driven from."""

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
) -> Commit:
    """The rows of a DataFrame as one snapshot, unless this version of this application is there.

    Without an application nobody can ask for the same again: it is written.
    """
    catalog = target.open_catalog()
    columns = table_columns.arrow_columns(df.schema)
    table, columns = _prepared(catalog, target.table, options, columns)
    writer = runtime.new_ulid()
    token = CommitToken(app or f"batch-{writer}", version, writer, app is not None, is_query)
    there = tokens.find_commit(table.metadata, token)
    if there is not None:
        return Commit(there.snapshot_id, 0, 0, was_there=True)
    place = target.place(table)
    files = _written(df, table, place, columns, options.file_bytes)
    if not files:
        return Commit(None, 0, 0, was_there=False)
    keep = options.keep_snapshots
    try:
        done = commits.commit(catalog, target.table, files, token, keep_snapshots=keep)
    except (Contended, FilesRefused):
        _discard(place, files)  # nothing of ours landed, or will
        raise
    if isinstance(done, Commit):
        return done
    # A twin was faster. Its files are in the table; ours are in no snapshot, if that is certain.
    if done.is_ours is False:
        _discard(place, files)
    return Commit(done.snapshot_id, 0, 0, was_there=True)


def _discard(place: FileRoot, files: list[WrittenFile]) -> None:
    left = discard_files(place, files)
    if left:
        _log.warning(
            "%d files that no snapshot names could not be removed: %s …", len(left), left[0]
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
    """Begin a streaming query whose micro-batches are snapshots."""
    _check_before(df, target, options)
    names = QueryId(checkpoint_location, is_remote=_is_remote(df))

    @sentence_first
    def write_batch(batch: DataFrame, batch_id: int) -> None:
        write_batch_to_table(batch, target, options, names.of(batch), batch_id, is_query=True)

    writer = df.writeStream.foreachBatch(write_batch)
    if checkpoint_location is not None:
        writer = writer.option("checkpointLocation", checkpoint_location)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


def _check_before(df: DataFrame, target: TableReference, options: TableOptions) -> None:
    """Refuse what no micro-batch could write, before there is a query that fails with it."""
    columns = table_columns.arrow_columns(df.schema)
    with contextlib.suppress(NoSuchTableError):
        table = target.open_catalog().load_table(target.table)
        table_columns.check_fits(
            table, table_columns.as_spelled(table, columns), may_grow=options.evolve
        )


def _is_remote(df: DataFrame) -> bool:
    return type(df).__module__.startswith("pyspark.sql.connect")


def _prepared(
    catalog: Catalog, name: str, options: TableOptions, columns: pa.Schema
) -> tuple[Table, pa.Schema]:
    """The table, made if it is not there, with room for these columns; and its names for them."""
    unknown: CommitStateUnknownException | None = None
    for _ in range(GROW_ATTEMPTS):
        try:
            with commits.in_doubt(name, unknown):
                table = _loaded(catalog, name)
                if table is None:
                    _create(catalog, name, options, columns)
                    continue
                columns = table_columns.as_spelled(table, columns)
                table_columns.check_fits(table, columns, may_grow=options.evolve)
                if not table_columns.missing_columns(table, columns):
                    return table, columns
                table_columns.grow(table, columns)
        except CommitFailedException:
            continue  # another writer changed it first: look again
        except CommitStateUnknownException as error:
            unknown = error  # the answer was lost: look again
    if unknown is not None:
        raise OutcomeUnknown(f"{name}: its columns may have been changed: {unknown}") from unknown
    raise Contended(f"{name}: its columns could not be changed; others won every time")


def _create(catalog: Catalog, name: str, options: TableOptions, columns: pa.Schema) -> None:
    namespace = name.rpartition(".")[0]
    with contextlib.suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace_if_not_exists(namespace)
    properties = {
        **WHILE_COMMITTING,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
        **options.properties,
    }
    # Another writer may have made it: the caller looks again.
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(name, columns, properties=properties)


def _loaded(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _written(
    df: DataFrame, table: Table, place: FileRoot, columns: pa.Schema, file_bytes: int
) -> list[WrittenFile]:
    schema, order = table_columns.file_columns(table, columns)
    plan = FilePlan(
        place=place,
        folder=f"{table.location().rstrip('/')}/data",
        schema=schema.serialize().to_pybytes(),
        order=order,
        target_bytes=file_bytes,
        compression=_codec(table.properties.get("write.parquet.compression-codec", COMPRESSION)),
        above=table.properties.get(FLOOR),
    )
    rows = df.mapInArrow(write_files_task(plan), WRITTEN_FILE_COLUMNS).collect()
    return [WrittenFile(row["location"], row["bytes"], bytes(row["footer"])) for row in rows]


def _codec(iceberg_name: str) -> str:
    return "none" if iceberg_name == "uncompressed" else iceberg_name


def table_as_dataframe(
    spark: SparkSession, target: TableReference, snapshot_id: int | None, columns: Sequence[str]
) -> DataFrame:
    """A table as a DataFrame, read by executors through the store."""
    found = target.load()
    scan = found.scan(snapshot_id=snapshot_id, selected_fields=tuple(columns))
    locations = []
    for task in scan.plan_files():
        if task.delete_files:
            raise NotSupported(f"{target.table} has rows deleted by others: read it with pyiceberg")
        locations.append((task.file.file_path,))
    arrow = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    schema = spark_schema(arrow)
    plan = ReadPlan(
        place=target.place(found),
        schema=arrow_schema(schema).serialize().to_pybytes(),
        field_ids=[field.field_id for field in scan.projection().fields],
    )
    files = spark.createDataFrame(locations, "location string")
    return files.repartition(max(1, len(locations))).mapInArrow(read_files_task(plan), schema)
