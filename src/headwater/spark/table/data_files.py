"""Data files as a snapshot names them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from headwater.spark.files import Written


def described(table: Table, files: list[Written]) -> list[DataFile]:
    """The files as a snapshot names them, with the statistics that let readers skip them."""
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.metadata.properties)
    ids = parquet_path_to_id_mapping(schema)
    return [_described(table, file, plan, ids) for file in files]


def _described(table: Table, file: Written, plan: Any, ids: dict[str, int]) -> DataFile:
    metadata = pq.read_metadata(pa.BufferReader(file.footer))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=plan,
        parquet_column_mapping=ids,
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
