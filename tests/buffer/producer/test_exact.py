"""Rows arrive as they are, or are refused with the record and the value."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import Producer
from headwater.core.errors import Refused
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import virtual

FIVE_EAST = timezone(timedelta(hours=5))
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)


class Colour(enum.IntEnum):
    RED = 1


def rows(stream: FakeStream) -> list[dict[str, Any]]:
    return [row for batch in stream.queues[0].batches() for row in batch.records.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 1.5),
        (pa.int64(), -0.0),
        (pa.int64(), Decimal("1.5")),
        (pa.int64(), True),
        (pa.float64(), True),
        (pa.float64(), Decimal("1.1")),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), 1e300),
        (pa.bool_(), 1),
        (pa.timestamp("us"), 1.5),
        (pa.timestamp("us", "UTC"), date(2020, 1, 1)),
        (pa.date32(), NOON),
        (pa.binary(), "text"),
        (pa.string(), b"bytes"),
        (pa.string(), 5),
        (pa.decimal128(5, 2), 1.5),
    ],
)
@pytest.mark.parametrize("place", ["column", "list", "map", "struct"])
@virtual
async def test_what_the_declared_type_would_change_is_refused(
    kind: pa.DataType, value: Any, place: str
) -> None:
    kinds = {
        "column": (kind, "c", value),
        "list": (pa.list_(kind), "c.element", [None, value]),
        "map": (pa.map_(pa.string(), kind), "c.value", {"k": value}),
        "struct": (pa.struct([("f", kind)]), "c.f", {"f": value}),
    }
    declared, named, given = kinds[place]
    stream = fake_stream(schema=pa.schema([("c", declared)]))
    told = f"record 1, column '{named}': {value!r} ({type(value).__name__}) is no {kind}"
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=re.escape(told)):
            await producer.produce_rows([{"c": None}, {"c": given}, {"c": given}])
    assert not stream.queues[0].entries


@pytest.mark.parametrize(
    ("kind", "value", "advice"),
    [
        (pa.string(), 5, "which takes text: str(…)"),
        (pa.binary(), "text", "encode text first"),
        (pa.date32(), NOON, ".date()"),
        (pa.timestamp("us"), 1.5, "whole microseconds since 1970"),
        (pa.timestamp("us"), NOON.replace(tzinfo=FIVE_EAST), "without a zone"),
        (POINT, "text", "takes dicts, not 'text' (str)"),
        (POINT, (1, "a"), "takes dicts, not (1, 'a') (tuple)"),
        (POINT, "", "takes dicts, not '' (str)"),
        (POINT, [], "takes dicts, not [] (list)"),
        (POINT, [("x", 1), ("x", 2)], "takes dicts, not [('x', 1), ('x', 2)] (list)"),
        (pa.list_(POINT), [[]], "takes dicts, not [] (list)"),
        (pa.list_(pa.int64()), b"ab", "it takes lists"),
        (pa.list_(pa.int64()), bytearray(b"ab"), "it takes lists"),
        (pa.list_(pa.int64()), memoryview(b"ab"), "it takes lists"),
        (pa.map_(pa.string(), pa.int64()), "", "dicts, or lists of pairs, not str"),
        (pa.map_(pa.string(), pa.int64()), set(), "dicts, or lists of pairs, not set"),
        (
            pa.map_(pa.string(), pa.int64()),
            [{"key": "k", "value": 1, "more": 2}],
            "an entry has a key and a value, and one has key, value, more",
        ),
    ],
)
@virtual
async def test_the_refusal_says_what_to_do(kind: pa.DataType, value: Any, advice: str) -> None:
    async with Producer(fake_stream(schema=pa.schema([("c", kind)]))) as producer:
        with pytest.raises(Refused, match=re.escape(advice)):
            await producer.produce_rows([{"c": value}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 2**63),
        (pa.decimal128(5, 2), Decimal("999.999")),
        (pa.decimal128(5, 2), Decimal("NaN")),
        (pa.string(), "\ud800"),
    ],
)
@virtual
async def test_a_value_beyond_its_type_is_named_with_its_record(
    kind: pa.DataType, value: Any
) -> None:
    async with Producer(fake_stream(schema=pa.schema([("c", kind)]))) as producer:
        told = f"record 1, column 'c': {value!r} is no {kind}: "
        with pytest.raises(Refused, match=re.escape(told)):
            await producer.produce_rows([{"c": None}, {"c": value}])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"_timestamp": 1.9}, "record 0, column '_timestamp': 1.9"),
        ({"_value": "text"}, "record 0, column '_value': 'text'.*encode"),
        ({"_key": "text"}, "record 0, column '_key': 'text'.*encode"),
        ({"_rid": 1.5}, "record 0, column '_rid': 1.5"),
    ],
)
@virtual
async def test_reserved_columns_are_no_exception(row: dict[str, Any], told: str) -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match=told):
            await producer.produce_rows([{"_value": b"v", **row}])


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (POINT, {"x": 1, "lost": "gone"}, "c.lost  string is given, and not declared"),
        (POINT, {"X": 7}, "c.X  int64 is given, and not declared (did you mean 'x'?)"),
        (pa.list_(POINT), [{"x": 1}, {"z": 1.5}], "c.element.z  double is given"),
        (pa.map_(pa.string(), POINT), {"k": {"z": b"v"}}, "c.value.z  binary is given"),
        (pa.struct([("p", POINT)]), {"p": {"z": []}}, "c.p.z  list<item: null> is given"),
    ],
)
@virtual
async def test_fields_that_are_not_declared_are_refused_and_not_dropped(
    kind: pa.DataType, given: Any, told: str
) -> None:
    stream = fake_stream(schema=pa.schema([("c", kind)]))
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=re.escape(told)) as refused:
            await producer.produce_rows([{"c": None}, {"c": given}])
    assert "record 1, column 'c" in str(refused.value)
    assert not stream.queues[0].entries


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([date(2020, 1, 1), NOON], "record 1, column 'c': .* is no date32"),
        ([NOON, NOON.replace(tzinfo=FIVE_EAST)], "record 1, column 'c' is .*without a zone"),
        ([NOON.replace(tzinfo=FIVE_EAST), NOON], "some times have a zone, and .* has none"),
        (["x", b"y"], "record 0, column 'c': 'x'.* is no binary"),
        ([{"t": date(2020, 1, 1)}, {"t": NOON}], "record 1, column 'c.t'"),
    ],
)
@virtual
async def test_mixtures_that_would_change_a_value_are_refused_without_a_schema(
    values: list[Any], told: str
) -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=told):
            await producer.produce_rows([{"c": value} for value in values])
    assert not stream.queues[0].entries


@pytest.mark.parametrize(
    ("first", "then", "inferred", "given"),
    [
        (date(2020, 1, 1), 5, "date", "int64"),
        (NOON, 5, "timestamp[us]", "int64"),
        (NOON.replace(tzinfo=UTC), 5, "timestamp[us, UTC]", "int64"),
        (NOON.replace(tzinfo=UTC), NOON, "timestamp[us, UTC]", "timestamp[us]"),
        (NOON, NOON.replace(tzinfo=UTC), "timestamp[us]", "timestamp[us, UTC]"),
    ],
)
@pytest.mark.parametrize("place", ["{}", "list<{}>", "struct<f: {}>"])
@virtual
async def test_an_inferred_type_takes_no_value_that_comes_back_as_another(
    first: Any, then: Any, inferred: str, given: str, place: str
) -> None:
    wrap: dict[str, Callable[[Any], Any]] = {
        "{}": lambda value: value,
        "list<{}>": lambda value: [value],
        "struct<f: {}>": lambda value: {"f": value},
    }
    stream = fake_stream()
    async with Producer(stream) as producer:
        await producer.produce_rows([{"c": wrap[place](first)}])
        told = f"c  {place.format(inferred)} is inferred, {place.format(given)} is given"
        with pytest.raises(Refused, match=re.escape(told)):
            await producer.produce_rows([{"c": None}, {"c": wrap[place](then)}])
    assert len(rows(stream)) == 1


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.int64(), 1.0, 1),
        (pa.int64(), Decimal(7), 7),
        (pa.int64(), Colour.RED, 1),
        (pa.float64(), 3, 3.0),
        (pa.float32(), 0.1, pytest.approx(0.1)),
        (pa.float32(), float("inf"), float("inf")),
        (pa.timestamp("us"), 5, datetime.fromisoformat("1970-01-01T00:00:00.000005")),
        (pa.timestamp("us", "UTC"), NOON, NOON.replace(tzinfo=UTC)),
        (
            pa.timestamp("us", "UTC"),
            NOON.replace(tzinfo=FIVE_EAST),
            datetime(2020, 1, 1, 7, tzinfo=UTC),
        ),
        (pa.date32(), date(2020, 1, 1), date(2020, 1, 1)),
        (pa.binary(), bytearray(b"v"), b"v"),
        (pa.decimal128(5, 2), 1, Decimal("1.00")),
        (POINT, {"x": 1}, {"x": 1, "y": None}),
        (POINT, [("x", 1)], {"x": 1, "y": None}),
        (pa.map_(pa.string(), pa.int64()), [("k", 1)], [("k", 1)]),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
    ],
)
@virtual
async def test_what_is_the_same_in_another_form_is_taken(
    kind: pa.DataType, value: Any, found: Any
) -> None:
    stream = fake_stream(schema=pa.schema([("c", kind)]))
    async with Producer(stream) as producer:
        await producer.produce_rows([{"c": None}, {"c": value}])
    assert rows(stream) == [{"c": None}, {"c": found}]


@virtual
async def test_what_is_no_number_stays_one() -> None:
    stream = fake_stream(schema=pa.schema([("c", pa.float32())]))
    async with Producer(stream) as producer:
        await producer.produce_rows([{"c": float("nan")}])
    (row,) = rows(stream)
    assert row["c"] != row["c"]
