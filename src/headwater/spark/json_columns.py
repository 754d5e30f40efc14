"""JSON to typed columns, in the JVM; rows that do not fit also keep their original text.

    orders = from_json(spark.readStream.format("headwater")…, "id long, amount decimal(10,2)")

No value is lost silently: if a row does not fit completely and exactly, its original text is in
`_rescued_data`, which is null for rows that fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.core.errors import Refused

RESCUED: Final = "_rescued_data"
_CORRUPT: Final = "__headwater_corrupt"
_TEXT: Final = "__headwater_text"
_VARIANTS: Final = "__headwater_read"
_PARSED: Final = "__headwater_parsed"
_OWN_OPTIONS: Final = frozenset({"mode", "columnnameofcorruptrecord"})


def from_json(
    df: DataFrame,
    schema: StructType | str,
    *,
    column: str = "value",
    rescued: str = RESCUED,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Replace `column` by the columns of `schema` and `rescued`; other columns follow unchanged.

    `schema`: a `StructType`, or text such as `"id long, at timestamp"`.
    `options`: Spark's options for JSON, such as `timestampFormat`.

    `rescued` has the whole text of a row with a field of another type, a field that is not in the
    schema (at any depth), or a value that its column cannot hold exactly; and of a row that is not
    a single JSON object, whose columns are null. Bytes that are not text are `{"base64": …}`.
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
    # In stages, so that each row is parsed once and not once for each column.
    staged = df.select(
        *others,
        text.alias(_TEXT),
        parsed.alias(_PARSED),
        parse_as_variants(text, given).alias(_VARIANTS),
    ).withColumn(_VARIANTS, whole_object(F.col(_TEXT), F.col(_VARIANTS)))
    text, parsed, is_object = F.col(_TEXT), F.col(_PARSED), F.col(_VARIANTS).isNotNull()
    # If the text is not one object, ignore what the parser made of its beginning.
    typed = [F.when(is_object, parsed.getField(field.name)).alias(field.name) for field in wanted]
    is_typed = parsed.isNotNull() & parsed.getField(_CORRUPT).isNull()
    is_same = fits_exactly(F.col(_VARIANTS), parsed, wanted, given)
    fits = is_typed & ~has_lone_surrogate(text) & is_same
    original = F.when(F.is_valid_utf8(text), text).otherwise(
        F.to_json(F.struct(F.base64(text.cast("binary")).alias("base64")))
    )
    unfit = F.when(text.isNotNull() & ~(is_object & fits), original)
    return staged.select(*typed, unfit.alias(rescued), *others)


def _struct(schema: StructType | str) -> StructType:
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise Refused(f"{schema!r} is not a list of columns: write it as 'id long, at timestamp'")
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
            "or drop the existing columns, or parse into a struct with "
            "pyspark.sql.functions.from_json"
        )
    reserved = [name for name in options if name.lower() in _OWN_OPTIONS]
    if reserved:
        raise Refused(f"option {reserved[0]} is set by from_json, which rescues what does not fit")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# Whether the typed columns have all of a row's JSON, exactly.
#
# Spark's parser ignores what follows the first value of a text and fields that are not in the
# schema, uses the last of two fields with the same name, rounds decimals, and truncates what a
# date, a time or a small number cannot hold. So each text is parsed again, into variants, which
# keep every value, and the two are compared.
#
# Not counted as a change: a `float` or `double` has the nearest number, unless that is infinity; a
# time is the same moment in another zone.


_END: Final = "__headwater_end"
_FIELDS: Final = "map<string,variant>"
_MAX_DIGITS: Final = 38
_TIME_OF_DAY: Final = r"[T ].*[1-9]"
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F]"
_LONE_SURROGATE: Final = f"{_FIRST}(?!{_SECOND})|(?<!{_FIRST}){_SECOND}"
_BELOW_MICROSECONDS: Final = r"\.\d{6}\d*[1-9]"


def parse_as_variants(text: Column, options: Mapping[str, str]) -> Column:
    """The fields of a text as variants, in an array with a marker after them.

    Spark parses one value and ignores what follows. In brackets, what follows makes the array
    longer, ends it before the marker, or makes it invalid.
    """
    enclosed = F.concat(F.lit("["), text, F.lit(f'\n,{{"{_END}":0}}]'))
    # Spark Connect would send empty options as a map without types, which is refused.
    return F.from_json(enclosed, f"array<{_FIELDS}>", dict(options) or None)


def whole_object(text: Column, read: Column) -> Column:
    """The fields of a text that is exactly one JSON object; null for any other text."""
    is_whole = (
        (F.size(read) == 2)
        & F.map_contains_key(F.get(read, F.lit(1)), _END)
        & ~F.contains(text, F.lit(_END))
    )
    return F.when(is_whole & F.is_valid_utf8(text), F.get(read, F.lit(0)))


def has_lone_surrogate(text: Column) -> Column:
    r"""Whether a text escapes one half of a surrogate pair without the other, such as "\ud800".

    No string can hold it: Spark replaces it by a question mark, some versions also in a variant, so
    that the two would be equal.
    """
    return F.contains(text, F.lit(r"\u")) & F.rlike(text, F.lit(_LONE_SURROGATE))


def fits_exactly(
    fields: Column, parsed: Column, wanted: StructType, options: Mapping[str, str]
) -> Column:
    """Whether `parsed` has every field, each once and unchanged.

    Does not check values of another type: those are in Spark's corrupt record.
    """
    # With a format of the user's, the text of a date may differ from ours.
    dates_are_cut = not any(name.lower() == "dateformat" for name in options)
    return _Comparison(dates_are_cut).fields(fields, parsed, wanted)


class _Comparison:
    """Compares the variants with the parsed columns where they may differ."""

    def __init__(self, dates_are_cut: bool) -> None:
        self._changing: tuple[type[DataType], ...] = (
            *(DecimalType, FloatType, DoubleType, ByteType, StringType, StructType),
            *(TimestampType, TimestampNTZType),
            *((DateType,) if dates_are_cut else ()),
        )

    def fields(self, fields: Column, parsed: Column, wanted: StructType) -> Column:
        names = F.array(*(F.lit(name) for name in wanted.names)).cast("array<string>")
        keys = F.map_keys(fields)
        # The intersection has each name once: unknown and repeated names make it smaller.
        found = F.size(F.array_intersect(keys, names)) == F.size(keys)
        for field in wanted:
            if self._may_change(field.dataType):
                value = F.try_element_at(fields, F.lit(field.name))
                found &= self._same(value, parsed.getField(field.name), field.dataType)
        return found

    def _may_change(self, kind: DataType) -> bool:
        if isinstance(kind, ArrayType):
            return self._may_change(kind.elementType)
        if isinstance(kind, MapType):
            return self._may_change(kind.valueType)
        return isinstance(kind, self._changing)

    def _same(self, value: Column, value_parsed: Column, kind: DataType) -> Column:
        """A null is the same: if it was another value, it is in Spark's corrupt record."""
        return value_parsed.isNull() | F.coalesce(
            self._is_kept(value, value_parsed, kind), F.lit(False)
        )

    def _is_kept(self, value: Column, value_parsed: Column, kind: DataType) -> Column:
        if isinstance(kind, StructType):
            # A transformation of one element, so that the fields are extracted only once.
            inner = F.array(_as(value, _FIELDS))
            return F.transform(inner, lambda fields: self.fields(fields, value_parsed, kind))[0]
        if isinstance(kind, ArrayType):
            same = F.zip_with(
                _as(value, "array<variant>"),
                value_parsed,
                lambda item, one: self._same(item, one, kind.elementType),
            )
            return F.forall(same, lambda one: one)
        if isinstance(kind, MapType):
            same = F.map_zip_with(
                _as(value, _FIELDS),
                value_parsed,
                lambda _, item, one: self._same(item, one, kind.valueType),
            )
            return F.forall(F.map_values(same), lambda one: one)
        return _is_leaf_kept(value, value_parsed, kind)


def _is_leaf_kept(value: Column, value_parsed: Column, kind: DataType) -> Column:
    text = _as(value, "string")
    if isinstance(kind, StringType):
        # A number, an object or an array becomes its text, perhaps with another order of names.
        # Text that begins otherwise was a string and is unchanged, so most need no comparison.
        begins = (
            (value_parsed < ":")
            | F.startswith(value_parsed, F.lit("{"))
            | F.startswith(value_parsed, F.lit("["))
        )
        return (
            ~begins
            | (text == value_parsed)
            | (text == _as(F.try_parse_json(value_parsed), "string"))
        )
    if isinstance(kind, DecimalType):
        digits = kind.precision - kind.scale
        if kind.precision == _MAX_DIGITS:
            return text == value_parsed.cast("variant").cast("string")
        return text.try_cast(DecimalType(_MAX_DIGITS, _MAX_DIGITS - digits)) == value_parsed
    if isinstance(kind, FloatType | DoubleType):
        is_infinite = F.abs(value_parsed) == F.lit(float("inf"))
        return ~is_infinite | (F.schema_of_variant(value) == "STRING")
    if isinstance(kind, ByteType):
        return text == value_parsed.cast("string")
    if isinstance(kind, DateType):
        return ~F.rlike(text, F.lit(_TIME_OF_DAY))
    return ~F.rlike(text, F.lit(_BELOW_MICROSECONDS))


def _as(value: Column, kind: str) -> Column:
    return F.try_variant_get(value, "$", kind)
