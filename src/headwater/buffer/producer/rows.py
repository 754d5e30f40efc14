"""Dicts and frames made into columns, with every value unchanged.

The stream has the types of its columns; Arrow infers those of other columns from the rows of the
call. Reserved names (`_key`, `_headers`, …) have the types of the record model in either case.

Arrow converts values to a type where it can: 1.5 to 1, a datetime to a date, text to bytes; and it
drops the fields of a dict that a struct does not have. Here a value that would come back as
another one is refused. Columns are checked in bulk: nearly always the set of their Python types
shows that no value can change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.conversion import extended_type
from headwater.buffer.producer.call import is_whole_text, plain_column
from headwater.buffer.records import HEADERS, OPERATION, RESERVED
from headwater.core.errors import Refused
from headwater.core.settings import closest

_SHOWN: Final = 60
_NO_LISTS: Final = str | bytes | bytearray | memoryview
"""Python iterates over them, so Arrow takes an empty one for an empty list of anything."""
_FAILURES: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


def listed_rows(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows as a list; `Refused` unless they are dicts."""
    listed: list[Any] = list(rows)
    others = {type(row).__name__ for row in listed if not isinstance(row, Mapping)}
    if isinstance(rows, Mapping):
        others = {type(rows).__name__}
    if others:
        raise Refused(f"produce_rows takes dicts, one for each record, not {min(others)}")
    return listed


def table_of(
    listed: list[Mapping[str, Any]], schema: pa.Schema | None, *, may_widen: bool = False
) -> pa.Table:
    """The rows as one table; a key that a row lacks is null there.

    `may_widen`: the types of `schema` were inferred, and become wider if values do not fit.
    """
    names = list(dict.fromkeys(name for row in listed for name in row))
    declared = {} if schema is None else {field.name: field.type for field in schema}
    if listed and not names:
        # A table without columns has no rows either: these would be lost silently.
        if not declared:
            raise Refused(
                "rows without any column, on a stream without columns: there is nothing to carry "
                "them. Give them a column, or declare a schema"
            )
        names = list(declared)
    columns = {name: _column(name, listed, declared, may_widen) for name in names}
    return pa.table(columns)


def _column(
    name: Any, rows: list[Mapping[str, Any]], declared: Mapping[str, Any], may_widen: bool
) -> pa.Array:
    values = [row.get(name) for row in rows]
    if not isinstance(name, str) or not is_whole_text(name):
        raise Refused(f"{name!r} is not a column name: names are text, without lone surrogates")
    try:
        if name in (HEADERS, OPERATION):
            return pa.array(plain_column(name, values), RESERVED[name])
        kind = RESERVED.get(name, declared.get(name))
        if kind is None:
            return _inferred(name, values)
        if name in RESERVED or not may_widen:
            return _exact_array(name, values, kind)
        return _widened(name, values, kind)
    except _FAILURES as error:
        raise Refused(f"column {name!r}: {error}") from error


def _inferred(name: str, values: list[Any]) -> pa.Array:
    column = pa.array(values)
    check_exact(name, values, column.type, is_declared=False)
    if pa.types.is_decimal(column.type) and column.type.bit_width <= 128:
        # Arrow infers the digits of these values; the next ones may have more before the point.
        return column.cast(pa.decimal128(38, column.type.scale))
    return column


def _widened(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values in the type of their column, or in one that the column can be widened to.

    If they fit neither, the column that Arrow infers: the stream then says why not.
    """
    refusal = None
    if not _holds_float32(kind):
        try:
            return _exact_array(name, values, kind, is_declared=False)
        except Refused as error:
            refusal = error
    try:
        inferred = _inferred(name, values)
    except (Refused, *_FAILURES) as error:
        raise refusal or error from None
    try:
        return _exact_array(name, values, extended_type(kind, inferred.type), is_declared=False)
    except Refused:
        return inferred


def _holds_float32(kind: pa.DataType) -> bool:
    """Whether a Python float would be rounded somewhere in this type."""
    if pa.types.is_nested(kind):
        return any(_holds_float32(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_float32(kind))


def arrow_table(data: Any) -> pa.RecordBatch | pa.Table:
    """The columns of anything that has Arrow's C interface, such as a frame or a query result."""
    if isinstance(data, pa.RecordBatch | pa.Table):
        check_pandas_index(data.schema)
        return data
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise Refused(
            "produce_arrow takes a pyarrow RecordBatch or Table, or what has Arrow's C interface "
            f"(__arrow_c_stream__: frames of pandas and polars, results of DuckDB), not "
            f"{type(data).__name__}; for a list of dicts there is produce_rows"
        )
    try:
        table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Refused(f"the columns of a {type(data).__name__} cannot be read: {error}") from error
    check_pandas_index(table.schema)
    return table


def check_pandas_index(schema: pa.Schema) -> None:
    """Refuse a pandas index that is a range other than the row numbers.

    Arrow stores a range in the metadata alone, and no column has its values: they would be lost.
    """
    if b'"range"' not in (schema.metadata or {}).get(b"pandas", b""):
        return
    for index in schema.pandas_metadata.get("index_columns", ()):
        if isinstance(index, dict) and index.get("kind") == "range":
            name, start, step = index.get("name"), index.get("start"), index.get("step")
            if name is not None or start != 0 or step != 1:
                title = "" if name is None else f" {name!r}"
                raise Refused(
                    f"the index{title} of pandas is a range from {start} in steps of {step}, which "
                    "no column holds: reset_index() first, or reset_index(drop=True)"
                )


class _Rule(NamedTuple):
    """The Python values that a column of a type takes."""

    applies: Callable[[pa.DataType], bool]
    is_plain: Callable[[type], bool]
    """Whether a Python type is taken as it is; values of others must come back the same."""
    takes: str


_RULES: Final = (
    _Rule(pa.types.is_boolean, lambda kind: kind is bool, "True or False"),
    _Rule(pa.types.is_integer, lambda kind: kind is int, "whole numbers"),
    _Rule(
        pa.types.is_floating,
        lambda kind: issubclass(kind, float),
        "numbers that it holds exactly: float(…) rounds",
    ),
    _Rule(pa.types.is_decimal, lambda kind: kind in (Decimal, int), "Decimals and whole numbers"),
    _Rule(
        pa.types.is_string,
        lambda kind: issubclass(kind, str),
        "text: str(…) makes text of a value, and .decode() of bytes",
    ),
    _Rule(
        pa.types.is_binary,
        lambda kind: kind in (bytes, bytearray, memoryview),
        "bytes: encode text first, as in text.encode()",
    ),
    _Rule(pa.types.is_date, lambda kind: kind is date, "dates: of a datetime, .date()"),
    _Rule(
        pa.types.is_timestamp,
        lambda kind: kind is datetime,
        "datetimes; where it is declared, whole microseconds since 1970 as well",
    ),
)


class _Misfit(Exception):
    """A value that would become another one."""


def check_exact(
    column: str,
    values: Sequence[Any],
    kind: pa.DataType,
    *,
    is_declared: bool,
    from_json: bool = False,
) -> None:
    """Refuse values that a column of type `kind` would change or drop; the error names them.

    `is_declared`: a user chose the type, so a date may be a number of days, a time
    microseconds, and a time in UTC without its zone. In an inferred type those are other values.
    Values `from_json` may be text, which Arrow parses, but no numbers for dates and times; the
    error names no record, because the caller counts the lines.
    """
    check = _ExactCheck(is_declared=is_declared, from_json=from_json)
    try:
        check.at(column, values, kind)
    except _Misfit as misfit:
        row = None if from_json else _first_misfit(check, column, values, kind)
        where = "" if row is None else f"record {row}, "
        raise Refused(f"{where}column {misfit}") from None


def _exact_array(
    column: str, values: Sequence[Any], kind: pa.DataType, *, is_declared: bool = True
) -> pa.Array:
    """The values as a column of this type; `Refused` names the record that does not fit."""
    check_exact(column, values, kind, is_declared=is_declared)
    try:
        return pa.array(values, kind)
    except _FAILURES as error:
        misfit = _first_failure(values, kind)
        row = next(row for row, value in enumerate(values) if value is misfit)
        raise Refused(
            f"record {row}, column {column!r}: {_shown(misfit)} is no {kind}: {error}"
        ) from error


def _first_misfit(
    check: _ExactCheck, column: str, values: Sequence[Any], kind: pa.DataType
) -> int | None:
    """The first record that does not fit by itself."""
    for row, value in enumerate(values):
        try:
            check.at(column, [value], kind)
        except _Misfit:
            return row
    return None


class _ExactCheck:
    """Checks the values of one column, and what is nested in them."""

    def __init__(self, *, is_declared: bool, from_json: bool) -> None:
        self._is_declared = is_declared
        self._from_json = from_json

    def at(self, place: str, values: Sequence[Any], kind: pa.DataType) -> None:
        """`_Misfit` if a value does not fit."""
        types = set(map(type, values))
        types.discard(type(None))
        if not types:
            return
        if not pa.types.is_nested(kind):
            self._at_plain(place, values, kind, types)
            return
        present = [value for value in values if value is not None]
        try:
            if pa.types.is_struct(kind):
                self._at_structs(place, present, kind)
            elif pa.types.is_map(kind):
                pairs = list(chain.from_iterable(map(_pairs, present)))
                self.at(f"{place}.key", [key for key, _ in pairs], kind.key_type)
                self.at(f"{place}.value", [value for _, value in pairs], kind.item_type)
            else:
                if any(issubclass(one, _NO_LISTS | Mapping) for one in types):
                    raise _Misfit(f"{place!r} is {kind}: it takes lists")
                self.at(f"{place}.element", list(chain.from_iterable(present)), kind.value_type)
        except (TypeError, ValueError) as error:
            raise _Misfit(f"{place!r} is {kind}: {error}") from error

    def _at_structs(self, place: str, present: list[Any], kind: pa.StructType) -> None:
        rows = [_mapping(place, value, kind) for value in present]
        names = [field.name for field in kind]
        strange = set().union(*rows).difference(names)
        if strange:
            lines = [_undeclared(place, name, rows, names) for name in sorted(strange, key=str)]
            raise _Misfit(f"{place!r} is {kind}, and these do not fit:{''.join(lines)}")
        for field in kind:
            self.at(f"{place}.{field.name}", [row.get(field.name) for row in rows], field.type)

    def _at_plain(
        self, place: str, values: Iterable[Any], kind: pa.DataType, types: set[type]
    ) -> None:
        rule = next((rule for rule in _RULES if rule.applies(kind)), None)
        if rule is None:
            return
        odd = {one for one in types if not rule.is_plain(one)}
        if self._from_json:
            odd.discard(str)
        elif self._is_declared and pa.types.is_temporal(kind):
            odd.discard(int)
        if odd:
            _check_same(place, [value for value in values if type(value) in odd], kind, rule)
        if kind == pa.float32():
            _check_range(place, [value for value in values if type(value) is float], kind, rule)
        elif pa.types.is_timestamp(kind):
            self._check_zones(place, values, kind)

    def _check_zones(self, place: str, values: Iterable[Any], kind: pa.TimestampType) -> None:
        times = [value for value in values if isinstance(value, datetime)]
        aware = next((time for time in times if time.tzinfo is not None), None)
        naive = next((time for time in times if time.tzinfo is None), None)
        if kind.tz is None and aware is not None:
            raise _Misfit(
                f"{place!r} is {kind}, without a zone, and {aware} has one: use times without "
                "(.replace(tzinfo=None), in the zone that you mean), or declare timestamp[us, UTC]"
            )
        if kind.tz is not None and not self._is_declared and naive is not None:
            raise _Misfit(
                f"{place!r}: some times have a zone, and {naive} has none: set it, as in "
                ".replace(tzinfo=UTC)"
            )


def _check_same(place: str, odd: list[Any], kind: pa.DataType, rule: _Rule) -> None:
    """Values of types that are not the column's own must come back as they are."""
    for value in odd:
        # To Python True is 1, and 1.0: they would seem to come back.
        if type(value).__name__ in ("bool", "bool_") and not pa.types.is_boolean(kind):
            raise _misfit(place, value, kind, rule)
    try:
        back = pa.array(odd, kind).to_pylist()
    except _FAILURES:
        raise _misfit(place, _first_failure(odd, kind), kind, rule) from None
    for value, result in zip(odd, back, strict=True):
        if result is not None and not _is_same(value, result):
            raise _misfit(place, value, kind, rule)


def _first_failure(values: Sequence[Any], kind: pa.DataType) -> Any:
    for value in values:
        try:
            pa.array([value], kind).to_pylist()
        except _FAILURES:
            return value
    return values[0]


def _is_same(value: Any, result: Any) -> bool:
    if isinstance(value, datetime) and isinstance(result, datetime) and value.tzinfo is None:
        result = result.replace(tzinfo=None)
    if type(value) is float and value == 0 and math.copysign(1, value) < 0:
        return isinstance(result, float)  # no other type has -0.0
    try:
        return bool(value == result) or bool(value != value and result != result)
    except (TypeError, ValueError):
        return False


def _check_range(place: str, floats: list[float], kind: pa.DataType, rule: _Rule) -> None:
    """A float is rounded, as in any language; but not to infinity."""
    rounded = pa.array(floats, kind)
    if pc.any(pc.is_inf(rounded)).as_py():
        for value, back in zip(floats, rounded.to_pylist(), strict=True):
            if math.isinf(back) and not math.isinf(value):
                raise _misfit(place, value, kind, rule)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """The pairs of a value that Arrow makes a map of."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, _NO_LISTS | Set):
        raise ValueError(f"it takes dicts, or lists of pairs, not {type(value).__name__}")
    return [_pair(pair) if isinstance(pair, Mapping) else tuple(pair) for pair in value]


def _pair(entry: Mapping[Any, Any]) -> tuple[Any, Any]:
    """An entry of a map that is written as a dict."""
    if entry.keys() != {"key", "value"}:
        raise ValueError(
            f"an entry has a key and a value, and one has {', '.join(map(str, entry))}"
        )
    return entry["key"], entry["value"]


def _mapping(place: str, value: Any, kind: pa.DataType) -> Mapping[Any, Any]:
    """A struct as a dict. Arrow also makes one of pairs.

    But of `''` and `[]` it makes a struct of nulls, and it drops the second pair of the same name.
    """
    if isinstance(value, Mapping):
        return value
    try:
        fields = {} if isinstance(value, _NO_LISTS) else dict(value)
        if fields and len(fields) == len(value):
            return fields
    except (TypeError, ValueError):
        pass
    raise _Misfit(f"{place!r} is {kind}, which takes dicts, not {_shown_with_type(value)}")


def _undeclared(place: str, name: Any, rows: list[Any], names: list[str]) -> str:
    values = [row[name] for row in rows if name in row]
    try:
        kind = str(pa.array(values).type)
    except _FAILURES:
        kind = type(values[0]).__name__
    near = closest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    return f"\n  {place}.{name}  {kind} is given, and not declared{hint}"


def _misfit(place: str, value: Any, kind: pa.DataType, rule: _Rule) -> _Misfit:
    shown = _shown_with_type(value)
    return _Misfit(f"{place!r}: {shown} is no {kind}, which takes {rule.takes}")


def _shown_with_type(value: Any) -> str:
    return f"{_shown(value)} ({type(value).__name__})"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
