"""JSON to typed columns, in the JVM; what does not fit is kept beside them.

    orders = from_json(spark.readStream.format("headwater")…, "id long, amount decimal(10,2)")

A value that is no JSON object, a field that the schema does not name, a field whose value has
another type: none of them is dropped silently. They stand in `_rescued_data`, which is null where
everything fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from headwater.core.errors import Refused

RESCUED: Final = "_rescued_data"
_CORRUPT: Final = "__headwater_corrupt"
_TEXT: Final = "__headwater_text"
_KEYS: Final = "__headwater_keys"
_PARSED: Final = "__headwater_parsed"
_OURS: Final = frozenset({"mode", "columnnameofcorruptrecord"})
_NESTED: Final = (StructType, ArrayType, MapType)


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

    `rescued` holds, as JSON, the fields of a row that the schema does not name or whose value has
    another type; of nested columns the whole field. A value that is no JSON object stands there
    as it is, or as `{"base64": …}` if it is not even text.
    """
    wanted = _struct(schema)
    _check(df, wanted, column, rescued, options or {})
    others = [F.col(_quoted(name)) for name in df.columns if name != column]
    text = F.col(_quoted(column))
    if isinstance(df.schema[column].dataType, BinaryType):
        text = text.cast("string")
    permissive = {
        **(options or {}),
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    parsed = F.from_json(text, with_corrupt, permissive)
    keys = F.json_object_keys(text)
    # Staged, so that each row is parsed once and not once for each column.
    staged = df.select(*others, text.alias(_TEXT), parsed.alias(_PARSED), keys.alias(_KEYS))
    is_object = F.col(_KEYS).isNotNull()
    # Where the whole is no object, what a lenient parser made of its beginning does not count.
    typed = [
        F.when(is_object, F.col(f"{_PARSED}.{_quoted(field.name)}")).alias(field.name)
        for field in wanted
    ]
    return staged.select(*typed, _rescued(wanted, is_object).alias(rescued), *others)


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


def _rescued(wanted: StructType, is_object: Column) -> Column:
    """What did not fit, as JSON; null where everything did."""
    text, parsed = F.col(_TEXT), F.col(_PARSED)
    names = F.array(*(F.lit(name) for name in wanted.names)).cast("array<string>")
    strange = F.size(F.array_except(F.col(_KEYS), names)) > 0
    mistyped = parsed[_CORRUPT].isNotNull()
    # Reached only by rows that do not fit: the second parse is theirs alone.
    fields = F.from_json(text, "map<string,variant>")
    top = F.map_filter(fields, lambda name, value: ~_fits(wanted, name, value))
    whole = F.map_filter(fields, lambda name, value: ~_is_plain(wanted, name))
    unfit = F.when(mistyped & (F.size(top) == 0), whole).otherwise(top)
    not_text = F.to_json(F.struct(F.base64(text.cast("binary")).alias("base64")))
    return (
        F.when(text.isNull(), F.lit(None).cast("string"))
        .when(~F.is_valid_utf8(text), not_text)
        .when(~is_object, text)
        .when(strange | mistyped, F.to_json(unfit))
    )


def _fits(wanted: StructType, name: Column, value: Column) -> Column:
    """Whether a field is in the schema, and came through as something where it was something."""
    fits = F.lit(False)
    for field in wanted:
        came = F.col(f"{_PARSED}.{_quoted(field.name)}").isNotNull()
        fits = F.when(name == field.name, came | F.is_variant_null(value)).otherwise(fits)
    return fits


def _is_plain(wanted: StructType, name: Column) -> Column:
    """Whether a field holds one value: what went wrong inside others shows nowhere else."""
    plain = [field.name for field in wanted if not isinstance(field.dataType, _NESTED)]
    return name.isin(plain)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
