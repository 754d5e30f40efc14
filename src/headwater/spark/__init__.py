"""The Spark pipeline: streams as DataFrames, batch and streaming, exactly once.

Enters: a stream's records, or a DataFrame. Leaves: a DataFrame, or records in a stream.

Always holds:

- planning reads no batch, and the driver never sees the bytes of a record;
- building a reader or analysing a plan opens nothing and fences nobody;
- rows travel as Arrow batches, and are never looped over.
"""

from headwater.spark.data_source import HeadwaterDataSource
from headwater.spark.json_columns import from_json
from headwater.spark.session import session
from headwater.spark.tables import read_table, to_table

__all__ = ["HeadwaterDataSource", "from_json", "read_table", "session", "to_table"]
