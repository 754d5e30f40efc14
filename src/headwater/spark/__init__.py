"""The Spark pipeline. For builders; users: docs/spark.md, docs/api.md.

Streams as DataFrames, batch and streaming, exactly once.

Enters: a stream's records, or a DataFrame. Leaves: a DataFrame, records in a stream, or rows in an
Iceberg table.

    data_source, options           what Spark finds under the name `headwater`, and its readers
    source, sink                   reading and writing streams
    tables                         `to_table` and `read_table`; table_io, table_columns, table_files
    session, java                  a Spark session that works on this machine
    json_columns                   `from_json`
    metrics                        what source and sink count
    errors, versions               how Spark shows errors, and what its versions can do

Always holds:

- planning reads no batch, and the driver never gets the bytes of a record;
- creating a reader or analysing a plan opens no consumer;
- rows are processed as Arrow batches, never one by one.
"""

from headwater.spark.data_source import HeadwaterDataSource
from headwater.spark.json_columns import from_json
from headwater.spark.session import session
from headwater.spark.tables import read_table, to_table

__all__ = ["HeadwaterDataSource", "from_json", "read_table", "session", "to_table"]
