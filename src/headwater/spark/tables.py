"""Iceberg tables from Spark: `to_table` and `read_table`.

pyiceberg is an optional dependency, so it is imported when one of them is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession

from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.core.settings import whole_number

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from headwater.table.commit import WriteResult


FILE_BYTES: Final = 64 * MIB
KEEP_SNAPSHOTS: Final = 100


def to_table(
    df: DataFrame,
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    checkpoint_location: str | None = None,
    query_name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    properties: Mapping[str, str] | None = None,
    evolve: bool = True,
    keep_snapshots: int = KEEP_SNAPSHOTS,
    file_bytes: int = FILE_BYTES,
    store_options: Mapping[str, str] | None = None,
) -> StreamingQuery | WriteResult:
    """Append a DataFrame to an Iceberg table, exactly once; and create the table if needed.

    For a streaming DataFrame, starts a query that adds a snapshot for every micro-batch, and
    returns it. A batch DataFrame is written before this returns a `WriteResult`.

    `table`: `namespace.name`.
    `warehouse`: the address of the store for the table and its catalog; or
    `catalog`: another catalog of pyiceberg, by its name in the configuration or its properties.
    `checkpoint_location`, `query_name`, `trigger`: as for `DataStreamWriter`; the trigger is a
    mapping, `{"availableNow": True}`.
    `txn_app_id`, `txn_version`: for a batch that may be repeated: a version that is in the table,
    or an older one, is not written again.
    `evolve`: whether columns may be added to the table, and widened.
    `keep_snapshots`: older snapshots expire, which keeps commits fast.
    `file_bytes`: about how large a data file gets.
    `store_options`: options of the store, such as an endpoint; never a credential.
    """
    # This import first: without pyiceberg, its error says how to install it.
    from headwater.table.reference import table_reference

    if keep_snapshots < 1:
        raise Refused("keep_snapshots must be at least 1: the newest snapshot is the table")
    target = table_reference(table, warehouse, catalog, store_options or {})
    from headwater.spark import table_io

    options = table_io.TableOptions(dict(properties or {}), evolve, keep_snapshots, file_bytes)
    if df.isStreaming:
        if txn_app_id is not None or txn_version is not None:
            raise Refused(
                "txn_app_id and txn_version are for batches: a query has its own id and batch "
                "numbers, which its checkpoint stores"
            )
        return table_io.start_query(
            df,
            target,
            options,
            checkpoint_location=checkpoint_location,
            query_name=query_name,
            trigger=trigger,
        )
    if (txn_app_id is None) != (txn_version is None):
        raise Refused("txn_app_id and txn_version belong together: give both or neither")
    if checkpoint_location or query_name or trigger:
        raise Refused("checkpoint_location, query_name and trigger are for streaming DataFrames")
    # Stored as text in the table: one that is not a number would make every later write fail.
    version = 0 if txn_version is None else whole_number("txn_version", txn_version, at_least=0)
    return table_io.write_batch_to_table(df, target, options, txn_app_id, version)


def read_table(
    spark: SparkSession,
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    store_options: Mapping[str, str] | None = None,
    snapshot_id: int | None = None,
    columns: Sequence[str] = ("*",),
) -> DataFrame:
    """Read an Iceberg table as a DataFrame. Executors read through the store, without any jar.

    The DataFrame shows the table as it is when this is called, or at `snapshot_id`. `warehouse`,
    `catalog` and `store_options` are those of `to_table`.
    """
    from headwater.table.reference import table_reference

    target = table_reference(table, warehouse, catalog, store_options or {})
    from headwater.spark import table_io

    return table_io.table_as_dataframe(spark, target, snapshot_id, columns)
