"""A declared schema: how it is written, and which changes are compatible."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer.stream.config import Column, SchemaVersion
from headwater.buffer.stream.schema import (
    SchemaLike,
    arrow_schema,
    declared_schema,
    evolve_schema,
    schema_version,
)
from headwater.buffer.types import carried_type, field_text, parse_field
from headwater.core.errors import Corrupt, Refused

PLAIN = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.decimal128(38, 38),
        pa.decimal128(1, 0),
    ]
)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable())
    fields = st.lists(
        st.tuples(names, inner, st.booleans()), min_size=1, max_size=3, unique_by=lambda f: f[0]
    )
    return st.one_of(
        st.tuples(inner, st.booleans()).map(
            lambda item: pa.list_(pa.field("element", item[0], item[1]))
        ),
        st.tuples(PLAIN, inner).map(lambda pair: pa.map_(*pair)),
        fields.map(lambda found: pa.struct([pa.field(*field) for field in found])),
    )


@given(st.recursive(PLAIN, nested, max_leaves=6), st.booleans())
def test_every_type_that_a_stream_carries_is_read_as_it_was_written(
    kind: pa.DataType, nullable: bool
) -> None:
    field = pa.field("column", kind, nullable)
    assert carried_type(kind, "column") == kind
    assert parse_field("column", field_text(field)) == field


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("bigint", "int64"),
        ("INT not null", "int32 not null"),
        ("double", "float64"),
        ("timestamp", "timestamp[us, UTC]"),
        ("timestamp_ntz", "timestamp[us]"),
        ("timestamp[ms, tz=Europe/Berlin]", "timestamp[us, UTC]"),
        ("numeric(5)", "decimal(5, 0)"),
        ("array<element: int>", "list<int32>"),
        ("map<text, array<long>>", "map<string, list<int64>>"),
        ('struct<a: int, "b c": str not null>', 'struct<a: int32, "b c": string not null>'),
        ("uint8", "int16"),
        ("date32", "date"),
    ],
)
def test_types_are_read_in_the_words_of_arrow_spark_and_sql(text: str, written: str) -> None:
    assert field_text(parse_field("column", text)) == written


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("intt", "'intt' is not known"),
        ("", "it ends too early"),
        ("list<int", "it ends too early"),
        ("int64 64", "'64' is left over"),
        ("int64 not nul", "'not' is followed by 'null'"),
        ("decimal(39, 2)", "1 to 38 digits"),
        ("decimal(5, 6)", "1 to 38 digits"),
        ("decimal(a)", "a number is expected"),
        ("struct<a int>", "':' is expected"),
        ("struct<>", "a name is expected"),
        (r'struct<"\q": int>', "is not a name"),
        ("map<int>", "',' is expected"),
        ("?", "is not understood"),
        ("list<" * 20 + "int" + ">" * 20, "levels deep"),
        ("x" * 100_001, "100,001 characters"),
        ("uint64", "cast it to int64"),
        ("timestamp[ns]", "nanoseconds"),
    ],
)
def test_a_type_that_is_not_understood_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(Refused, match="column 'amount'") as refused:
        parse_field("amount", text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({}, "at least one column"),
        ({"_key": "binary"}, "reserved"),
        ({"a": "int", "A": "int"}, "only in case"),
        ({"": "int"}, "has no name"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "more than once"),
        (pa.schema([("a", pa.struct([]))]), "without fields"),
        (
            pa.schema([("a", pa.list_(pa.struct([("x", pa.int8()), ("X", pa.int8())])))]),
            "only in case",
        ),
        (pa.schema([("a", pa.decimal128(5, -2))]), "scale"),
        (pa.schema([("a", pa.uint64())]), "uint64"),
    ],
)
def test_what_cannot_be_declared_is_refused(schema: SchemaLike, says: str) -> None:
    with pytest.raises(Refused, match=says):
        declared_schema(schema)


def test_a_schema_is_written_down_and_read_again() -> None:
    schema = declared_schema({"id": "int64 not null", "tags": "list<string not null>"})
    version = schema_version(3, schema, added_ms=17)
    assert version == SchemaVersion(
        3,
        17,
        "declared",
        [Column("id", "int64", False), Column("tags", "list<string not null>", True)],
    )
    assert arrow_schema(version) == schema


def test_a_written_schema_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(Corrupt, match="schema version 2"):
        arrow_schema(SchemaVersion(2, 0, "declared", [Column("a", "int65", True)]))


BEFORE = {
    "id": "int32 not null",
    "price": "decimal(10, 2)",
    "place": "struct<street: string, number: int8>",
    "tags": "list<float>",
    "counts": "map<string, int16>",
}


def next_schema(after: SchemaLike) -> pa.Schema | None:
    latest = schema_version(4, declared_schema(BEFORE), added_ms=0)
    return evolve_schema("orders", latest, declared_schema(after))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "int64 not null"},
        {"price": "decimal(12, 2)"},
        {"place": "struct<street: string, number: int64>"},
        {"place": "struct<street: string, number: int8, city: string>"},
        {"tags": "list<double>"},
        {"counts": "map<string, int64>"},
        {"note": "string"},
    ],
)
def test_a_wider_type_and_a_nullable_column_are_compatible(change: dict[str, str]) -> None:
    assert next_schema({**BEFORE, **change}) == declared_schema({**BEFORE, **change})


def test_an_order_is_not_a_change() -> None:
    assert next_schema(dict(reversed(BEFORE.items()))) is None
    turned = {**BEFORE, "place": "struct<number: int8, street: string>"}
    assert next_schema(turned) is None


def test_columns_keep_their_place_and_added_ones_come_last() -> None:
    found = next_schema({"note": "string", **dict(reversed(BEFORE.items()))})
    assert found is not None
    assert found.names == [*BEFORE, "note"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "int16 not null"}, "id  int32 not null → int16 not null: not a wider type"),
        ({"id": "int32"}, "id  int32 not null → int32: nullability cannot change"),
        ({"id": "double not null"}, "not a wider type"),
        ({"price": "decimal(12, 3)"}, "not a wider type"),
        ({"price": "double"}, "not a wider type"),
        ({"place": "struct<street: string>"}, "not a wider type"),
        ({"place": "struct<street: string, number: int8, x: int not null>"}, "not a wider type"),
        ({"place": "struct<street: string not null, number: int8>"}, "not a wider type"),
        ({"tags": "list<float not null>"}, "not a wider type"),
        ({"tags": "list<string>"}, "not a wider type"),
        ({"counts": "map<binary, int16>"}, "not a wider type"),
        ({"note": "string not null"}, "note  added as string not null: it must be nullable"),
        ({"ID": "int32"}, "only in case"),
    ],
)
def test_any_other_change_is_refused_with_the_difference(change: dict[str, str], says: str) -> None:
    with pytest.raises(Refused) as refused:
        next_schema({**BEFORE, **change})
    assert says in str(refused.value)


def test_the_whole_difference_is_shown_column_by_column() -> None:
    with pytest.raises(Refused) as refused:
        next_schema({"id": "string", "prices": "decimal(10, 2)", "extra": "int not null"})
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("the schema of stream 'orders' (version 4) can add nullable")
    assert [line.split()[0] for line in lines[1:]] == [*BEFORE, "extra"]
    assert "renamed to 'prices'?" in lines[2]
