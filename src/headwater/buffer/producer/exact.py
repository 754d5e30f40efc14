"""Whether values arrive as they are in the type of their column.

Arrow, told a type, makes what it can of a value: 1 of 1.5, a date of a datetime, bytes of text; and
of a dict it takes the fields that it knows. Here whatever would come back as something else is
refused. Columns are looked at in bulk: the set of their Python types tells nearly always that there
is nothing to look for.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import Refused

_SHOWN: Final = 60
_NO_LISTS: Final = str | bytes | bytearray | memoryview
"""Python iterates over them, so Arrow takes an empty one for an empty list of anything."""
_FAILURES: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


class _Rule(NamedTuple):
    """What a type takes."""

    fits: Callable[[pa.DataType], bool]
    plain: Callable[[type], bool]
    """Whether a Python type is taken as it is; what is of another must come back the same."""
    takes: str


_RULES: Final = (
    _Rule(pa.types.is_boolean, lambda kind: kind is bool, "True or False"),
    _Rule(pa.types.is_integer, lambda kind: kind is int, "whole numbers"),
    _Rule(
        pa.types.is_floating,
        lambda kind: issubclass(kind, float),
        "numbers that it holds exactly: float(…) rounds",
    ),
    _Rule(
        pa.types.is_decimal,
        lambda kind: kind in (Decimal, int),
        "Decimals and whole numbers",
    ),
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
    _Rule(
        pa.types.is_date,
        lambda kind: kind is date,
        "dates: of a datetime, .date()",
    ),
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
    """Refuse values that a column of type `kind` would change or drop, naming record and value.

    `is_declared`: a user chose the type, so a date may be given as a number of days, a time as
    microseconds, and a time in UTC without its zone. In an inferred type those are other values.
    Values `from_json` may be text, which Arrow parses, but no numbers for dates and times; the
    error names no record, because the caller counts the lines.
    """
    look = _Look(is_declared=is_declared, from_json=from_json)
    try:
        look.at(column, values, kind)
    except _Misfit as misfit:
        row = None if from_json else _first_misfit(look, column, values, kind)
        where = "" if row is None else f"record {row}, "
        raise Refused(f"{where}column {misfit}") from None


def exact_array(
    column: str, values: Sequence[Any], kind: pa.DataType, *, is_declared: bool = True
) -> pa.Array:
    """The values as a column of a known type; `Refused` names the record that is none."""
    check_exact(column, values, kind, is_declared=is_declared)
    try:
        return pa.array(values, kind)
    except _FAILURES as error:
        value = _first_failure(values, kind)
        row = next(row for row, found in enumerate(values) if found is value)
        raise Refused(
            f"record {row}, column {column!r}: {_shown(value)} is no {kind}: {error}"
        ) from error


def _first_misfit(look: _Look, column: str, values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The first record that does not fit by itself."""
    for row, value in enumerate(values):
        try:
            look.at(column, [value], kind)
        except _Misfit:
            return row
    return None


class _Look:
    """Looks at the values of one column, and at what is within them."""

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
        known = [value for value in values if value is not None]
        try:
            if pa.types.is_struct(kind):
                self._at_structs(place, known, kind)
            elif pa.types.is_map(kind):
                pairs = list(chain.from_iterable(map(_pairs, known)))
                self.at(f"{place}.key", [key for key, _ in pairs], kind.key_type)
                self.at(f"{place}.value", [value for _, value in pairs], kind.item_type)
            else:
                if any(issubclass(one, _NO_LISTS | Mapping) for one in types):
                    raise _Misfit(f"{place!r} is {kind}: it takes lists")
                self.at(f"{place}.element", list(chain.from_iterable(known)), kind.value_type)
        except (TypeError, ValueError) as error:
            raise _Misfit(f"{place!r} is {kind}: {error}") from error

    def _at_structs(self, place: str, known: list[Any], kind: pa.StructType) -> None:
        rows = [_mapping(place, value, kind) for value in known]
        names = [field.name for field in kind]
        strange = set().union(*rows).difference(names)
        if strange:
            lines = [_undeclared(place, name, rows, names) for name in sorted(strange, key=str)]
            raise _Misfit(f"{place!r} is {kind}, and what is given does not fit:{''.join(lines)}")
        for field in kind:
            self.at(f"{place}.{field.name}", [row.get(field.name) for row in rows], field.type)

    def _at_plain(
        self, place: str, values: Iterable[Any], kind: pa.DataType, types: set[type]
    ) -> None:
        rule = next((rule for rule in _RULES if rule.fits(kind)), None)
        if rule is None:
            return
        odd = {one for one in types if not rule.plain(one)}
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
        if kind.tz is None and aware is not None:
            raise _Misfit(
                f"{place!r} is {kind}, without a zone, and {aware} has one: give it without "
                "(.replace(tzinfo=None), in the zone that you mean), or declare timestamp[us, UTC]"
            )
        if kind.tz is not None and not self._is_declared:
            naive = next((time for time in times if time.tzinfo is None), None)
            if naive is not None:
                raise _Misfit(
                    f"{place!r}: some times have a zone, and {naive} has none: give it one, as in "
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
    for value, found in zip(odd, back, strict=True):
        if found is not None and not _is_same(value, found):
            raise _misfit(place, value, kind, rule)


def _first_failure(values: Sequence[Any], kind: pa.DataType) -> Any:
    for value in values:
        try:
            pa.array([value], kind).to_pylist()
        except _FAILURES:
            return value
    return values[0]


def _is_same(value: Any, found: Any) -> bool:
    if isinstance(value, datetime) and isinstance(found, datetime) and value.tzinfo is None:
        found = found.replace(tzinfo=None)
    if type(value) is float and value == 0 and math.copysign(1, value) < 0:
        return isinstance(found, float)  # no other type has -0.0
    try:
        return bool(value == found) or bool(value != value and found != found)
    except (TypeError, ValueError):
        return False


def _check_range(place: str, floats: list[float], kind: pa.DataType, rule: _Rule) -> None:
    """A float is rounded, as everybody expects; but not to infinity."""
    found = pa.array(floats, kind)
    if pc.any(pc.is_inf(found)).as_py():
        for value, back in zip(floats, found.to_pylist(), strict=True):
            if math.isinf(back) and not math.isinf(value):
                raise _misfit(place, value, kind, rule)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """The pairs of what Arrow makes a map of."""
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
    """A struct as a dict; Arrow takes pairs for one as well.

    Arrow makes a struct of nulls of `''` and `[]`, and drops the second pair of the same name.
    """
    if isinstance(value, Mapping):
        return value
    try:
        found = {} if isinstance(value, _NO_LISTS) else dict(value)
        if found and len(found) == len(value):
            return found
    except (TypeError, ValueError):
        pass
    given = f"{_shown(value)} ({type(value).__name__})"
    raise _Misfit(f"{place!r} is {kind}, which takes dicts, not {given}")


def _undeclared(place: str, name: Any, rows: list[Any], names: list[str]) -> str:
    given = [row[name] for row in rows if name in row]
    try:
        what = str(pa.array(given).type)
    except _FAILURES:
        what = type(given[0]).__name__
    known = {known.lower(): known for known in names}
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1)
    meant = f" (did you mean {known[near[0]]!r}?)" if near else ""
    return f"\n  {place}.{name}  {what} is given, and not declared{meant}"


def _misfit(place: str, value: Any, kind: pa.DataType, rule: _Rule) -> _Misfit:
    given = f"{_shown(value)} ({type(value).__name__})"
    return _Misfit(f"{place!r}: {given} is no {kind}, which takes {rule.takes}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
