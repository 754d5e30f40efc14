"""Columns: Kafka's for opaque values, a stream's own for typed rows, just as Spark wants them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from headwater.buffer.producer import Producer
from headwater.buffer.stream import alter_stream
from headwater.core.errors import Refused
from tests.spark.source.source_world import World, rows_of, wait

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
POSITION_COLUMNS = ["topic", "partition", "offset", "timestamp", "timestampType"]


def names(world: World, **options: str) -> list[str]:
    found: list[str] = world.source(**options).schema().fieldNames()
    return found


def test_opaque_values_have_kafkas_columns(world: World) -> None:
    world.stream()
    assert names(world) == ["key", "value", *POSITION_COLUMNS]
    assert world.source().schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    more = names(world, includeHeaders="true", includeMetadata="true")
    assert more == ["key", "value", *POSITION_COLUMNS, "headers", "metadata"]


def test_every_opaque_column_has_what_was_produced(world: World) -> None:
    world.stream()

    async def go() -> None:
        async with Producer(world.store, "orders") as producer:
            await producer.produce(
                [b"a"], keys=[b"k"], headers=[[("h", b"1")]], timestamps=[NOON], metadata=b"m"
            )
            await producer.produce([None])

    wait(go())
    rows = world.read(includeHeaders="true", includeMetadata="true").to_pylist()
    ingested = rows[1].pop("timestamp")
    assert rows == [
        {
            "key": b"k",
            "value": b"a",
            "topic": "orders",
            "partition": 0,
            "offset": 1,
            "timestamp": NOON,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}],
            "metadata": b"m",
        },
        {
            "key": None,
            "value": None,
            "topic": "orders",
            "partition": 0,
            "offset": 2,
            "timestampType": 1,
            "headers": None,
            "metadata": None,
        },
    ]
    assert ingested > NOON


TYPED = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "value": pa.array(["x", None]),
        "price": pa.array([None, None], pa.decimal128(9, 2)),
        "at": pa.array([NOON, None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2026, 1, 1), None], pa.timestamp("us")),  # noqa: DTZ001
        "tags": pa.array([["a"], None], pa.list_(pa.field("element", pa.string()))),
        "more": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "who": pa.array([{"name": "n"}, None], pa.struct([("name", pa.string())])),
    }
)


@pytest.mark.parametrize("declared", [True, False])
def test_typed_rows_come_back_typed_without_naming_a_schema(world: World, declared: bool) -> None:
    world.stream(**({"schema": TYPED.schema} if declared else {}))
    world.produce_arrow(TYPED)
    table = world.read()
    assert table.column_names == [
        *TYPED.column_names,
        "_key",
        *(f"_{name}" for name in POSITION_COLUMNS),
    ]
    assert table.select(TYPED.column_names).to_pylist() == TYPED.to_pylist()
    assert table["_offset"].to_pylist() == [1, 2]
    assert names(world, valueFormat="arrow") == table.column_names


def test_columns_are_picked_and_ordered(world: World) -> None:
    world.stream()
    world.produce_arrow(TYPED)
    table = world.read(columns="_offset,id")
    assert table.to_pylist() == [{"_offset": 1, "id": 1}, {"_offset": 2, "id": 2}]
    kept = "_operation,_collection,_kind,_rid,_refresh_records,_metadata"
    assert world.read(columns=kept).slice(0, 1).to_pylist() == [
        {
            "_operation": "insert",
            "_collection": "orders",
            "_kind": "entity",
            "_rid": 0,
            "_refresh_records": None,
            "_metadata": None,
        }
    ]
    with pytest.raises(Refused, match="columns: there is no 'offset'; there are id, value"):
        names(world, columns="offset")


def test_a_column_that_is_not_read_costs_nothing(world: World) -> None:
    world.stream()
    world.produce([b"v" * 1000] * 100)
    assert world.read(columns="offset").nbytes == 800


def test_operations_are_words(world: World) -> None:
    world.stream()
    world.produce_arrow(pa.table({"id": [1, 2], "_operation": ["delete", "update"]}))
    assert world.read(columns="_operation")["_operation"].to_pylist() == ["delete", "update"]


def test_older_rows_of_a_declared_schema_are_filled_up_and_later_columns_left_out(
    world: World,
) -> None:
    world.stream(schema=pa.schema([("id", pa.int32())]))
    world.produce_arrow(pa.table({"id": pa.array([1], pa.int32())}))
    before = world.batch_reader()
    wider = pa.schema([("id", pa.int64()), ("name", pa.string())])
    wait(alter_stream(world.store, "orders", schema=wider))
    world.produce_arrow(pa.table({"id": [2], "name": ["n"]}))
    table = world.read(columns="id,name")
    assert table.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "n"}]
    found = [batch for task in before.partitions() for batch in before.read(task)]
    assert [row for batch in found for row in batch.column("id").to_pylist()] == [1, 2]


def _raw(world: World, name: str) -> None:
    world.stream(name)
    world.produce([b"v"], name)


def _typed(world: World, name: str) -> None:
    world.stream(name)
    world.produce_arrow(pa.table({"id": [1]}), name)


@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (_raw, {"valueFormat": "arrow"}, "carries opaque values: use valueFormat=raw"),
        (_typed, {"valueFormat": "raw"}, "carries columns and has no opaque values: leave"),
        (
            lambda world, name: world.stream(name, schema=pa.schema([("id", pa.int32())])),
            {"valueFormat": "raw"},
            "has no opaque values",
        ),
        (lambda world, name: world.stream(name, format="v1"), {"valueFormat": "arrow"}, "v1"),
    ],
)
def test_a_format_that_the_stream_does_not_have_is_refused(
    world: World, make: Any, options: dict[str, str], told: str
) -> None:
    make(world, "orders")
    with pytest.raises(Refused, match=told):
        names(world, **options)


def test_streams_of_different_shapes_are_refused_in_one_frame(world: World) -> None:
    _raw(world, "a")
    _typed(world, "b")
    with pytest.raises(Refused, match=r"'a' and 'b' have different columns \(opaque values; id"):
        names(world, subscribe="a,b")


def test_columns_that_only_later_rows_have_are_null_before(world: World) -> None:
    _typed(world, "orders")
    world.produce_arrow(pa.table({"id": [2], "name": ["n"]}))
    table = world.read()
    assert table["name"].to_pylist()[-2:] == [None, "n"]


def test_a_query_leaves_out_columns_that_came_later_and_refuses_a_wider_value(
    world: World,
) -> None:
    world.stream()
    world.produce_arrow(pa.table({"id": pa.array([1], pa.int32())}))
    source = world.source()
    schema = source.schema()
    world.produce_arrow(pa.table({"id": [2], "name": ["n"]}))
    reader = source.reader(schema)
    assert rows_of(reader, reader.partitions())["id"].to_pylist() == [1, 2]
    world.produce_arrow(pa.table({"id": [2**40]}))
    reader = source.reader(schema)
    with pytest.raises(Refused, match=r"column 'id'.*int64.*int32.*open it again"):
        rows_of(reader, reader.partitions())


def test_a_stream_in_the_published_format_is_read_the_same(world: World) -> None:
    world.stream(format="v1")
    world.produce([b"a", b"b"])
    world.produce([b"c"])
    table = world.read()
    assert table["value"].to_pylist() == [b"a", b"b", b"c"]
    assert table["offset"].to_pylist() == [1, 2, 3]
    assert set(table["timestampType"].to_pylist()) == {1}
    reader = world.stream_reader()
    start = reader.initialOffset()
    assert reader.partitions(start, reader.latestOffset(start))


def test_a_schema_given_by_hand_is_served_by_its_names(world: World) -> None:
    _typed(world, "orders")
    picked = world.source(columns="id,_offset").schema()
    reader = world.source().reader(picked)
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert found[0].to_pylist() == [{"id": 1, "_offset": 1}]


@pytest.mark.parametrize(
    ("make", "schema", "told"),
    [
        (_raw, {"foo": StringType()}, "column 'foo', and there are key, value, topic"),
        (_typed, {"id": LongType(), "nope": StringType()}, "column 'nope', and there are id, _key"),
        (_typed, {"value": BinaryType()}, "column 'value', and there are id, _key"),
    ],
)
def test_a_schema_given_by_hand_that_no_stream_has_is_refused(
    world: World, make: Any, schema: dict[str, DataType], told: str
) -> None:
    make(world, "orders")
    asked = StructType([StructField(name, kind) for name, kind in schema.items()])
    with pytest.raises(Refused, match=told):
        world.source().reader(asked)
    # Spark's runner of queries cannot tell why there is no reader, so there is one that does.
    refused = world.source(groupId="g").streamReader(asked)
    with pytest.raises(Refused, match=told):
        refused.initialOffset()


def test_of_a_stream_that_is_empty_any_column_may_be_expected(world: World) -> None:
    world.stream()
    reader = world.source().reader(StructType([StructField("id", LongType())]))
    world.produce_arrow(pa.table({"id": [7]}))
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert found[0].to_pylist() == [{"id": 7}]


def _by_hand(world: World, **columns: DataType) -> list[dict[str, Any]]:
    """What a read of these columns, given by hand, shows."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    reader = world.source().reader(schema)
    rows: list[dict[str, Any]] = rows_of(reader, reader.partitions()).to_pylist()
    return rows


def test_a_schema_given_by_hand_shows_typed_columns_that_have_kafkas_names(world: World) -> None:
    world.stream()
    world.produce_arrow(pa.table({"key": ["k"], "value": [7], "offset": [99]}))
    shown = _by_hand(world, value=LongType(), key=StringType(), offset=LongType())
    assert shown == [{"value": 7, "key": "k", "offset": 99}]


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("value", IntegerType(), "column 'value' is binary.*int32"),
        ("value", DoubleType(), "column 'value' is binary.*double"),
        ("value", BooleanType(), "column 'value' is binary.*bool"),
        ("timestamp", DateType(), "column 'timestamp' is timestamp.*date32"),
        ("timestamp", TimestampNTZType(), "column 'timestamp' is timestamp.*timestamp"),
        ("timestampType", BooleanType(), "column 'timestampType' is int32.*bool"),
        ("offset", ByteType(), "column 'offset' is int64.*int8"),
    ],
)
def test_a_schema_given_by_hand_changes_no_value(
    world: World, name: str, kind: DataType, told: str
) -> None:
    world.stream()
    world.produce([b"007"] * 128, timestamps=[NOON] * 128)
    with pytest.raises(Refused, match=told):
        _by_hand(world, **{name: kind})


def test_a_schema_given_by_hand_may_show_bytes_as_text_and_wider_numbers(world: World) -> None:
    world.stream()
    world.produce(["ü".encode()])
    shown = _by_hand(world, value=StringType(), partition=LongType(), offset=IntegerType())
    assert shown == [{"value": "ü", "partition": 0, "offset": 1}]
    world.produce([b"\xff"])
    with pytest.raises(Refused, match=r"column 'value'.*UTF8"):
        _by_hand(world, value=StringType())


@pytest.mark.parametrize(
    ("name", "told"),
    [("id", "column 'id', and there are key, value"), ("value", "'value', and there are id")],
)
def test_columns_that_a_stream_turns_out_not_to_have_are_refused(
    world: World, name: str, told: str
) -> None:
    world.stream()
    reader = world.source().reader(StructType([StructField(name, LongType())]))
    if name == "id":
        world.produce([b"opaque"])
    else:
        world.produce_arrow(pa.table({"id": [7]}))
    with pytest.raises(Refused, match=told):
        rows_of(reader, reader.partitions())


@pytest.mark.parametrize(
    ("asked", "options"),
    [({"id": LongType()}, {}), ({"value": LongType()}, {}), (None, {"columns": "value"})],
)
def test_values_of_another_shape_than_a_query_expects_are_not_shown_as_null(
    world: World, asked: dict[str, DataType] | None, options: dict[str, str]
) -> None:
    world.stream()
    source = world.source(groupId="g", startingOffsets="earliest", **options)
    given = StructType([StructField(name, kind) for name, kind in (asked or {}).items()])
    reader = source.streamReader(given if asked else source.schema())
    start = reader.initialOffset()
    if "id" in given.fieldNames():
        world.produce([b"opaque"])
    else:
        world.produce_arrow(pa.table({"id": [7]}))
    with pytest.raises(Refused, match=r"it would show null\. Open it again"):
        rows_of(reader, reader.partitions(start, reader.latestOffset(start)))


def test_a_schema_given_by_hand_unites_streams_and_shows_no_value_of_another_shape_as_null(
    world: World,
) -> None:
    world.stream("a")
    world.produce_arrow(pa.table({"id": [1]}), "a")
    world.stream("b")
    world.produce_arrow(pa.table({"id": [2], "name": ["n"]}), "b")
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    reader = world.source(subscribe="a,b").reader(schema)
    rows = rows_of(reader, reader.partitions()).to_pylist()
    assert rows == [{"id": 1, "name": None}, {"id": 2, "name": "n"}]
    world.stream("c")
    world.produce([b"opaque"], "c")
    reader = world.source(subscribe="a,b,c").reader(schema)
    with pytest.raises(Refused, match="column 'id', and there are key, value"):
        rows_of(reader, reader.partitions())
