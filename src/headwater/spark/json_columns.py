"""JSON to typed columns, in the JVM; whatever does not fit wholly is kept beside them.

    orders = from_json(spark.readStream.format("headwater")…, "id long, amount decimal(10,2)")

Nothing is dropped silently: of a row that does not fit wholly and exactly, the text as it came
stands in `_rescued_data`, which is null where everything fitted. `json_fit` says what fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from headwater.core.errors import Refused
from headwater.spark import json_fit

RESCUED: Final = "_rescued_data"
_CORRUPT: Final = "__headwater_corrupt"
_TEXT: Final = "__headwater_text"
_READ: Final = "__headwater_read"
_PARSED: Final = "__headwater_parsed"
_OURS: Final = frozenset({"mode", "columnnameofcorruptrecord"})


def from_json(
    df: DataFrame,
    schema: StructType | str,
    *,
    column: str = "value",
    rescued: str = RESCUED,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """`column` as the columns of `schema`, then `rescued`, then the other columns as they are.

    `schema`: a `StructType`, or text such as `"id long, at timestamp"`.
    `options`: Spark's options for JSON, such as `timestampFormat`.

    `rescued` holds the whole text of each row that has a field of another type or one that the
    schema does not name, at any depth, or a value that its column cannot hold exactly; and of each
    that is no single JSON object, whose columns are null. Bytes that are no text stand there as
    `{"base64": …}`.
    """
    wanted = _struct(schema)
    given = dict(options or {})
    _check(df, wanted, column, rescued, given)
    others = [F.col(_quoted(name)) for name in df.columns if name != column]
    text = F.col(_quoted(column))
    if isinstance(df.schema[column].dataType, BinaryType):
        text = text.cast("string")
    permissive = {**given, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    parsed = F.from_json(text, with_corrupt, permissive)
    # Staged, so that each row is parsed once and not once for each column.
    staged = df.select(
        *others,
        text.alias(_TEXT),
        parsed.alias(_PARSED),
        json_fit.read_again(text, given).alias(_READ),
    ).withColumn(_READ, json_fit.whole_object(F.col(_TEXT), F.col(_READ)))
    text, parsed, is_object = F.col(_TEXT), F.col(_PARSED), F.col(_READ).isNotNull()
    # Where the whole is no object, what a lenient parser made of its beginning does not count.
    typed = [F.when(is_object, parsed.getField(field.name)).alias(field.name) for field in wanted]
    is_typed = parsed.isNotNull() & parsed.getField(_CORRUPT).isNull()
    is_same = json_fit.fits(F.col(_READ), parsed, wanted, given)
    fits = is_typed & ~json_fit.has_half_characters(text) & is_same
    kept = F.when(F.is_valid_utf8(text), text).otherwise(
        F.to_json(F.struct(F.base64(text.cast("binary")).alias("base64")))
    )
    unfit = F.when(text.isNotNull() & ~(is_object & fits), kept)
    return staged.select(*typed, unfit.alias(rescued), *others)


def _struct(schema: StructType | str) -> StructType:
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise Refused(f"{schema!r} is no list of columns; write it as 'id long, at timestamp'")
    return wanted


def _check(
    df: DataFrame, wanted: StructType, column: str, rescued: str, options: Mapping[str, str]
) -> None:
    if column not in df.columns:
        raise Refused(f"there is no column {column!r}; there are {', '.join(df.columns)}")
    kind = df.schema[column].dataType
    if not isinstance(kind, StringType | BinaryType):
        raise Refused(f"column {column!r} is {kind.simpleString()}; JSON is string or binary")
    taken = ({*df.columns} - {column} | {rescued}) & {*wanted.names}
    if taken:
        raise Refused(
            f"{', '.join(sorted(taken))}: both in the schema and beside column {column!r}. Rename "
            "or drop what is there, or parse into a struct with pyspark.sql.functions.from_json"
        )
    reserved = [name for name in options if name.lower() in _OURS]
    if reserved:
        raise Refused(f"option {reserved[0]} is set by from_json, which rescues what does not fit")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
