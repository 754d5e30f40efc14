"""`to_table`: a DataFrame into a table, once for a batch, for ever for a stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
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
from pyiceberg.table import Table, TableProperties
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headwater.core import runtime
from headwater.core.errors import Contended, OutcomeUnknown
from headwater.spark.files import WRITTEN, FilePlan, Place, task
from headwater.spark.plain_errors import sentence_first
from headwater.spark.table import commit as commits
from headwater.spark.table import shape
from headwater.spark.table import token as tokens
from headwater.spark.table.commit import WHILE_COMMITTING, Commit
from headwater.spark.table.data_files import FLOOR, FilesRefused, Written, discard
from headwater.spark.table.query_id import QueryId
from headwater.spark.table.target import Target
from headwater.spark.table.token import Token

GROW_ATTEMPTS: Final = 10
COMPRESSION: Final = "zstd"

_log: Final = logging.getLogger("headwater")


class WriteOptions(NamedTuple):
    """How a table is written. It is pickled to wherever a micro-batch is driven from."""

    properties: dict[str, str]
    evolve: bool
    keep_snapshots: int
    file_bytes: int


def write(
    df: DataFrame,
    target: Target,
    options: WriteOptions,
    app: str | None,
    version: int,
    *,
    is_query: bool = False,
) -> Commit:
    """The rows of a DataFrame as one snapshot, unless this version of this application is there.

    Without an application nobody can ask for the same again: it is written.
    """
    catalog = target.open_catalog()
    columns = shape.arrow_columns(df.schema)
    table, columns = _prepared(catalog, target.table, options, columns)
    writer = runtime.new_ulid()
    token = Token(app or f"batch-{writer}", version, writer, app is not None, is_query)
    there = tokens.find(table.metadata, token)
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


def _discard(place: Place, files: list[Written]) -> None:
    left = discard(place, files)
    if left:
        _log.warning(
            "%d files that no snapshot names could not be removed: %s …", len(left), left[0]
        )


def start(
    df: DataFrame,
    target: Target,
    options: WriteOptions,
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
        write(batch, target, options, names.of(batch), batch_id, is_query=True)

    writer = df.writeStream.foreachBatch(write_batch)
    if checkpoint_location is not None:
        writer = writer.option("checkpointLocation", checkpoint_location)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


def _check_before(df: DataFrame, target: Target, options: WriteOptions) -> None:
    """Refuse what no micro-batch could write, before there is a query that fails with it."""
    columns = shape.arrow_columns(df.schema)
    with contextlib.suppress(NoSuchTableError):
        table = target.open_catalog().load_table(target.table)
        shape.check_fits(table, shape.as_spelled(table, columns), may_grow=options.evolve)


def _is_remote(df: DataFrame) -> bool:
    return type(df).__module__.startswith("pyspark.sql.connect")


def _prepared(
    catalog: Catalog, name: str, options: WriteOptions, columns: pa.Schema
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
                columns = shape.as_spelled(table, columns)
                shape.check_fits(table, columns, may_grow=options.evolve)
                if not shape.missing_columns(table, columns):
                    return table, columns
                shape.grow(table, columns)
        except CommitFailedException:
            continue  # another writer changed it first: look again
        except CommitStateUnknownException as error:
            unknown = error  # the answer was lost: look again
    if unknown is not None:
        raise OutcomeUnknown(f"{name}: its columns may have been changed: {unknown}") from unknown
    raise Contended(f"{name}: its columns could not be changed; others won every time")


def _create(catalog: Catalog, name: str, options: WriteOptions, columns: pa.Schema) -> None:
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
    df: DataFrame, table: Table, place: Place, columns: pa.Schema, file_bytes: int
) -> list[Written]:
    schema, order = shape.file_columns(table, columns)
    plan = FilePlan(
        place=place,
        folder=f"{table.location().rstrip('/')}/data",
        schema=schema.serialize().to_pybytes(),
        order=order,
        target_bytes=file_bytes,
        compression=_codec(table.properties.get("write.parquet.compression-codec", COMPRESSION)),
        above=table.properties.get(FLOOR),
    )
    rows = df.mapInArrow(task(plan), WRITTEN).collect()
    return [Written(row["location"], row["bytes"], bytes(row["footer"])) for row in rows]


def _codec(iceberg_name: str) -> str:
    return "none" if iceberg_name == "uncompressed" else iceberg_name
