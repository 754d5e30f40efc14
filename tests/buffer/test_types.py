"""Which types a stream carries, which it maps, which it refuses, and casts that change nothing."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.conversion import Inexact, exact_cast
from headwater.buffer.types import carried_schema, carried_type
from headwater.core.errors import Refused


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(),
        pa.int8(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.decimal128(38, 10),
        pa.list_(pa.field("element", pa.int32())),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([pa.field("a", pa.int8(), nullable=False)]),
    ],
    ids=str,
)
def test_what_both_readers_hold_is_carried_as_it_is(kind: pa.DataType) -> None:
    assert carried_type(kind, "c") == kind


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.decimal128(5, 2), pa.decimal128(5, 2)),
        (pa.large_list(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
        (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (
            pa.struct([pa.field("a", pa.uint32(), nullable=False)]),
            pa.struct([pa.field("a", pa.int64(), nullable=False)]),
        ),
    ],
    ids=str,
)
def test_what_fits_a_wider_type_is_mapped(given: pa.DataType, carried: pa.DataType) -> None:
    assert carried_type(given, "c") == carried


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        (pa.timestamp("ns"), "microseconds"),
        (pa.uint64(), "int64"),
        (pa.decimal256(60, 2), "decimal128"),
        (pa.time64("us"), "string"),
        (pa.duration("ms"), "integer"),
        (pa.null(), "give it a type"),
        (pa.month_day_nano_interval(), "cast it"),
        (pa.sparse_union([pa.field("a", pa.int8())]), "cast it"),
    ],
    ids=str,
)
def test_what_a_reader_cannot_hold_is_refused_with_a_cure(kind: pa.DataType, cure: str) -> None:
    with pytest.raises(Refused, match=r"'amount'") as refused:
        carried_schema(pa.schema([pa.field("amount", kind)]))
    assert cure in str(refused.value)


def test_a_refusal_names_the_place_inside_a_nested_column() -> None:
    kind = pa.struct([pa.field("lines", pa.list_(pa.uint64()))])
    with pytest.raises(Refused, match=r"order\.lines\.element"):
        carried_type(kind, "order")


def test_nesting_has_a_bound() -> None:
    kind = pa.int8()
    for _ in range(40):
        kind = pa.list_(kind)
    with pytest.raises(Refused, match="nested more than"):
        carried_type(kind, "c")


NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.decimal128(5, 2), pa.decimal128(20, 5), pa.decimal128(38, 0), pa.decimal128(38, 37)),
)
OTHERS = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"))
EDGES = (0, 1, 7, 127, 128, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
    return st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        fields.map(lambda found: pa.struct(list(found.items()))),
    )


kinds = st.recursive(st.sampled_from(NUMBERS + NUMBERS + OTHERS), _nested, max_leaves=3)


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, as Python has them; edges are more frequent than by chance."""
    if pa.types.is_integer(kind):
        top = 2 ** (kind.bit_width - 1) - 1
        edges = [edge * sign for edge in EDGES for sign in (1, -1) if edge <= top]
        found: st.SearchStrategy[Any] = st.sampled_from(edges) | st.integers(-top - 1, top)
    elif pa.types.is_floating(kind):
        floats = [-0.0, 0.5, math.inf, *map(float, EDGES)]
        floats = [pa.scalar(one, kind).as_py() for one in floats]
        found = st.sampled_from([*floats, math.nan]) | st.floats(width=kind.bit_width)
    elif pa.types.is_decimal(kind):
        top = 10 ** (kind.precision - kind.scale) - 1
        found = st.decimals(-top, top, places=kind.scale) | st.integers(-top, top)
    elif pa.types.is_list(kind):
        found = st.lists(_values(kind.value_type), max_size=2)
    elif pa.types.is_map(kind):
        found = st.dictionaries(st.sampled_from("xy"), _values(kind.item_type)).map(dict.items)
        found = found.map(list)
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: _values(field.type) for field in kind})
    elif pa.types.is_temporal(kind):
        found = st.integers(-(10**6), 10**6)
    else:
        texts = st.sampled_from(["", "007", "true"])
        found = st.booleans() if pa.types.is_boolean(kind) else texts
    return st.none() | found


def _shown(value: Any) -> Any:
    """A value so that only the same one equals it; fields that are null count as not there."""
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    if isinstance(value, bool | str | bytes | None):
        return type(value), value
    if value != value:
        return "nan"
    return (value, "negative") if str(value) == "-0.0" else value


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_cast_changes_no_value_or_is_refused(data: st.DataObject) -> None:
    numbers = st.sampled_from(NUMBERS)
    drawn = data.draw(st.sampled_from([kinds, numbers, _nested(numbers)]))
    before, after = data.draw(drawn), data.draw(drawn)
    column = pa.array(data.draw(st.lists(_values(before), max_size=4)), before)
    column = column.slice(data.draw(st.integers(0, 1)))
    try:
        found = exact_cast(column, after)
    except Inexact:
        return
    found.validate(full=True)
    assert found.type == after
    assert _shown(found.to_pylist()) == _shown(column.to_pylist())
