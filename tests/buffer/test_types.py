"""Which types a stream carries, which it maps, and which it refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

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
