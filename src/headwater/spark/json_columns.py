"""JSON values as typed columns. All of it is the JVM's work: no row passes through Python."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from headwater.core.errors import Refused
from headwater.spark.source.shape import EXTRA, KAFKA

RESCUED: Final = "_rescued_data"


def from_json(frame: DataFrame, schema: StructType | str, *, column: str = "value") -> DataFrame:
    """The fields of a JSON column as columns of their own, typed as `schema` says.

        orders = headwater.spark.from_json(frame, "id BIGINT, price DECIMAL(9, 2)")

    `_rescued_data` has the text of every row that did not fit: no JSON, or a field of another
    type, which then is null. Fields that the schema does not name are left out. The other columns
    follow, Kafka's with a leading underscore, as in a stream of typed rows.
    """
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise Refused(f"{schema!r} names no fields: write them as in id BIGINT, name STRING")
    if column not in frame.columns:
        raise Refused(f"there is no column {column!r}; there are {', '.join(frame.columns)}")
    taken = [name for name in wanted.fieldNames() if name.startswith("_")]
    if taken:
        raise Refused(f"field {taken[0]!r}: names that begin with '_' are Headwater's own")
    text = frame[column].cast("string")
    parsed = F.from_json(
        text,
        StructType([*wanted.fields, StructField(RESCUED, StringType())]),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RESCUED},
    )
    inner = "_headwater_parsed"
    fields = [F.col(inner)[name].alias(name) for name in (*wanted.fieldNames(), RESCUED)]
    others = [_renamed(name) for name in frame.columns if name != column]
    return frame.withColumn(inner, parsed).select(*fields, *others)


def _renamed(name: str) -> Column:
    own = name in KAFKA or name in EXTRA
    return F.col(name).alias(f"_{name}") if own else F.col(name)
