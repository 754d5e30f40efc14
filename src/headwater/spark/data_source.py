"""The data source that Spark finds by the name `headwater`.

Spark makes one wherever it needs one: in the planning worker, in the driver's source runner, on
executors. Making it, and making a reader or writer from it, opens nothing and asks nobody.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class HeadwaterDataSource(DataSource):
    """Streams as DataFrames: batch and streaming, reading and writing."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` is given."""
        return "headwater"
