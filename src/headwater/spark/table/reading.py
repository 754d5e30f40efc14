"""A table as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, SparkSession

from headwater.core.errors import NotSupported
from headwater.spark.files import ReadPlan, read_task
from headwater.spark.table.target import Target
from headwater.spark.versions import arrow_schema, spark_schema


def table_as_dataframe(
    spark: SparkSession, target: Target, snapshot_id: int | None, columns: Sequence[str]
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
    return files.repartition(max(1, len(locations))).mapInArrow(read_task(plan), schema)
