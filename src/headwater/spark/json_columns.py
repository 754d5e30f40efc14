"""JSON to typed columns, in the JVM; whatever does not fit wholly is kept beside them.

    orders = from_json(spark.readStream.format("headwater")…, "id long, amount decimal(10,2)")

Nothing is dropped silently: of a row that does not fit wholly and exactly, the text as it came
stands in `_rescued_data`, which is null where everything fitted. `json_fit` says what fits.
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
        read_again(text, given).alias(_READ),
    ).withColumn(_READ, whole_object(F.col(_TEXT), F.col(_READ)))
    text, parsed, is_object = F.col(_TEXT), F.col(_PARSED), F.col(_READ).isNotNull()
    # Where the whole is no object, what a lenient parser made of its beginning does not count.
    typed = [F.when(is_object, parsed.getField(field.name)).alias(field.name) for field in wanted]
    is_typed = parsed.isNotNull() & parsed.getField(_CORRUPT).isNull()
    is_same = fits_exactly(F.col(_READ), parsed, wanted, given)
    fits = is_typed & ~has_half_characters(text) & is_same
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


# Whether a row's JSON came through its typed columns wholly and exactly.
#
# Spark's parser takes the first value of a text and leaves the rest, passes over names that the
# schema does not have, takes the last of two fields with one name, rounds decimals, and cuts what
# a date, a time or a small number cannot hold. So each text is read a second time, into variants,
# which keep what is there, and the two are compared.
#
# Not counted as a change: a `float` or `double` holds the nearest number that it has, as it
# always does, unless that is infinity; a time is the same moment in another zone.


_END: Final = "__headwater_end"
_FIELDS: Final = "map<string,variant>"
_MAX_DIGITS: Final = 38
_TIME_OF_DAY: Final = r"[T ].*[1-9]"
_FIRST, _SECOND = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F]"
_HALF: Final = f"{_FIRST}(?!{_SECOND})|(?<!{_FIRST}){_SECOND}"
_BELOW_MICROSECONDS: Final = r"\.\d{6}\d*[1-9]"


def read_again(text: Column, options: Mapping[str, str]) -> Column:
    """The fields of a text as variants, in an array with a mark behind them.

    Spark reads one value and ignores what follows it. Between brackets, what follows makes the
    array longer, cuts it off before the mark, or breaks it.
    """
    enclosed = F.concat(F.lit("["), text, F.lit(f'\n,{{"{_END}":0}}]'))
    # Spark Connect sends no options as a map of nothing to nothing, which is refused.
    return F.from_json(enclosed, f"array<{_FIELDS}>", dict(options) or None)


def whole_object(text: Column, read: Column) -> Column:
    """The fields of a text that is one JSON object and nothing else; null for every other."""
    is_whole = (
        (F.size(read) == 2)
        & F.map_contains_key(F.get(read, F.lit(1)), _END)
        & ~F.contains(text, F.lit(_END))
    )
    return F.when(is_whole & F.is_valid_utf8(text), F.get(read, F.lit(0)))


def has_half_characters(text: Column) -> Column:
    r"""Whether a text escapes one half of a character without the other, such as "\ud800".

    No string can hold it: Spark puts a question mark in its place, and some versions of it in a
    variant too, so that the two look the same.
    """
    return F.contains(text, F.lit(r"\u")) & F.rlike(text, F.lit(_HALF))


def fits_exactly(
    fields: Column, parsed: Column, wanted: StructType, options: Mapping[str, str]
) -> Column:
    """Whether `parsed` has every one of the fields, each once, and as it was.

    Says nothing of values with another type: Spark tells of those in its corrupt record.
    """
    # Whoever gives a format says what belongs to a date.
    dates_are_cut = not any(name.lower() == "dateformat" for name in options)
    return _Fit(dates_are_cut).fields(fields, parsed, wanted)


class _Fit:
    """Compares what was read with what was parsed, where the two may differ."""

    def __init__(self, dates_are_cut: bool) -> None:
        self._changing: tuple[type[DataType], ...] = (
            *(DecimalType, FloatType, DoubleType, ByteType, StringType, StructType),
            *(TimestampType, TimestampNTZType),
            *((DateType,) if dates_are_cut else ()),
        )

    def fields(self, fields: Column, parsed: Column, wanted: StructType) -> Column:
        names = F.array(*(F.lit(name) for name in wanted.names)).cast("array<string>")
        keys = F.map_keys(fields)
        # The intersection has each name once: a strange one and a second one both make it smaller.
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

    def _same(self, value: Column, came: Column, kind: DataType) -> Column:
        """Of what came as null, Spark's corrupt record tells whether it was something else."""
        return came.isNull() | F.coalesce(self._kept(value, came, kind), F.lit(False))

    def _kept(self, value: Column, came: Column, kind: DataType) -> Column:
        if isinstance(kind, StructType):
            # A transformation of one, so that the fields are taken apart once for all of them.
            inner = F.array(_as(value, _FIELDS))
            return F.transform(inner, lambda fields: self.fields(fields, came, kind))[0]
        if isinstance(kind, ArrayType):
            same = F.zip_with(
                _as(value, "array<variant>"),
                came,
                lambda item, one: self._same(item, one, kind.elementType),
            )
            return F.forall(same, lambda one: one)
        if isinstance(kind, MapType):
            same = F.map_zip_with(
                _as(value, _FIELDS),
                came,
                lambda _, item, one: self._same(item, one, kind.valueType),
            )
            return F.forall(F.map_values(same), lambda one: one)
        return _leaf_kept(value, came, kind)


def _leaf_kept(value: Column, came: Column, kind: DataType) -> Column:
    text = _as(value, "string")
    if isinstance(kind, StringType):
        # A number, an object or an array becomes its text, perhaps with another order of names.
        # What begins otherwise was a string, and is the same: most are not looked at.
        begins = (came < ":") | F.startswith(came, F.lit("{")) | F.startswith(came, F.lit("["))
        return ~begins | (text == came) | (text == _as(F.try_parse_json(came), "string"))
    if isinstance(kind, DecimalType):
        digits = kind.precision - kind.scale
        if kind.precision == _MAX_DIGITS:
            return text == came.cast("variant").cast("string")
        return text.try_cast(DecimalType(_MAX_DIGITS, _MAX_DIGITS - digits)) == came
    if isinstance(kind, FloatType | DoubleType):
        is_infinite = F.abs(came) == F.lit(float("inf"))
        return ~is_infinite | (F.schema_of_variant(value) == "STRING")
    if isinstance(kind, ByteType):
        return text == came.cast("string")
    if isinstance(kind, DateType):
        return ~F.rlike(text, F.lit(_TIME_OF_DAY))
    return ~F.rlike(text, F.lit(_BELOW_MICROSECONDS))


def _as(value: Column, kind: str) -> Column:
    return F.try_variant_get(value, "$", kind)
