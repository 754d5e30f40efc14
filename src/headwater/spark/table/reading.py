"""A table to look at: for pyiceberg and whoever takes its tables, and for Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from headwater.core.errors import NotFound, NotSupported
from headwater.spark.files import ReadPlan, read_task
from headwater.spark.table.target import Target, checked_target
from headwater.spark.versions import arrow_schema, spark_schema


def load(
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Table:
    """A table as pyiceberg has it: scan it, look at its history, hand it to Polars."""
    return _loaded(_target(table, warehouse, catalog, store_options))


def read(
    spark: SparkSession,
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    store_options: Mapping[str, str] | None = None,
    snapshot_id: int | None = None,
    columns: Sequence[str] = ("*",),
) -> DataFrame:
    """A table as a DataFrame, read by executors through the store: no jar is needed for it.

    It shows the table as it is when this is called, or at `snapshot_id`.
    """
    target = _target(table, warehouse, catalog, store_options)
    found = _loaded(target)
    scan = found.scan(snapshot_id=snapshot_id, selected_fields=tuple(columns))
    locations = []
    for task in scan.plan_files():
        if task.delete_files:
            raise NotSupported(f"{table} has rows deleted by others: read it with pyiceberg")
        locations.append((task.file.file_path,))
    arrow = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    schema = spark_schema(arrow)
    plan = ReadPlan(
        place=target.place(found),
        schema=arrow_schema(schema).serialize().to_pybytes(),
        field_ids=[field.field_id for field in scan.projection().fields],
    )
    files = spark.createDataFrame(locations, "location string")
    return files.repartition(max(1, len(locations))).mapInArrow(read_task(plan), schema)


def _target(
    table: str,
    warehouse: str | None,
    catalog: Mapping[str, str] | str | None,
    store_options: Mapping[str, str] | None,
) -> Target:
    return checked_target(table, warehouse, catalog, store_options=dict(store_options or {}))


def _loaded(target: Target) -> Table:
    try:
        return target.open_catalog().load_table(target.table)
    except NoSuchTableError as error:
        raise NotFound(f"there is no table {target.table}") from error
