"""The name by which Spark finds the data source: `spark.read.format("headwater")`."""

from headwater.spark.data_source import HeadwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
