"""Which columns a DataFrame may have, what becomes of them, and where its records go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.murmur2 import partition_for_key
from headwater.core.errors import Refused
from tests.spark.sink.sink_world import World, keyed, values

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
US = pa.timestamp("us", "Europe/Berlin")
HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_value_alone_is_enough(sink: World) -> None:
    sink.stream()
    sink.write(values("a", "b"))
    assert sink.rows() == [{"_value": b"a"}, {"_value": b"b"}]


def test_every_column_of_kafkas_sink_is_taken(sink: World) -> None:
    sink.stream(partitions=3)
    table = pa.table(
        {
            "timestamp": pa.array([NOON], US),
            "value": pa.array(["text"], pa.string()),
            "partition": pa.array([2], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}]], HEADER),
            "key": pa.array(["k"], pa.string()),
        }
    )
    sink.write(table)
    assert sink.rows(2) == [
        {
            "_key": b"k",
            "_value": b"text",
            "_headers": [{"key": "h", "value": b"1"}],
            "_timestamp": NOON,
        }
    ]


def test_what_a_read_adds_is_left_out(sink: World) -> None:
    sink.stream()
    extra: dict[str, Any] = {
        "topic": ["other"],
        "offset": [7],
        "timestampType": pa.array([0], pa.int32()),
        "metadata": pa.array([b"m"], pa.binary()),
    }
    sink.write(pa.table({"value": pa.array([b"a"], pa.binary()), **extra}))
    assert sink.rows() == [{"_value": b"a"}]


def test_typed_columns_keep_their_types_and_reserved_ones_stand_beside(sink: World) -> None:
    sink.stream(partitions=2)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "amount": pa.array([None, 2.5], pa.float64()),
            "_key": pa.array([b"a", b"b"], pa.binary()),
            "_partition": pa.array([1, 1], pa.int32()),
            "_operation": pa.array(["delete", None], pa.string()),
            "_timestamp": pa.array([NOON, None], US),
            "_collection": ["c", None],
            "_kind": ["k", None],
            "_rid": pa.array([5, None], pa.int64()),
            "_topic": ["other", "other"],
            "_offset": pa.array([1, 2], pa.int64()),
            "_timestampType": pa.array([0, 0], pa.int32()),
            "_metadata": pa.array([None, None], pa.binary()),
        }
    )
    sink.write(table)
    first, second = sink.rows(1)
    assert (first["id"], first["amount"], first["_key"], first["_operation"]) == (1, None, b"a", 2)
    assert (first["_timestamp"], first["_collection"], first["_kind"]) == (NOON, "c", "k")
    assert (first["_rid"], second["_operation"], second["amount"]) == (5, 0, 2.5)
    assert not {"_topic", "_offset", "_timestampType", "_metadata", "_partition"} & first.keys()


def test_a_declared_schema_is_fitted_and_the_difference_shown(sink: World) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    sink.stream(schema=schema)
    sink.write(pa.table({"id": pa.array([1], pa.int32())}))
    assert sink.rows() == [{"id": 1, "name": None}]
    with pytest.raises(Refused, match=r"nmae.*did you mean 'name'"):
        sink.write(pa.table({"id": [1], "nmae": ["x"]}))
    with pytest.raises(Refused, match="opaque values: select the stream's columns"):
        sink.write(values("a"))


def test_a_declared_column_may_be_called_like_one_of_kafkas(sink: World) -> None:
    sink.stream(schema=pa.schema([("key", pa.string()), ("value", pa.string())]))
    sink.write(pa.table({"key": ["k"], "value": ["v"]}))
    assert sink.rows() == [{"key": "k", "value": "v"}]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"key": pa.array([b"k"], pa.binary())}, "no `value`"),
        ({"value": pa.array([1.5])}, r"'value' is double.*binary or string"),
        ({"value": [b"v"], "key": [1]}, r"'key' is bigint.*cast it"),
        ({"value": [b"v"], "partition": ["one"]}, r"'partition' is string, and int"),
        ({"value": [b"v"], "timestamp": [1]}, r"'timestamp' is bigint, and timestamp"),
        ({"value": [b"v"], "headers": ["h"]}, r"'headers' is string, and array"),
        ({"id": [1], "_ky": [b"k"]}, r"'_ky': names that begin with '_' are reserved"),
        ({"id": [1], "_value": [b"k"]}, "not both"),
        ({"_partition": pa.array([1], pa.int32())}, "no column that a record"),
        ({"_headers": ["h"], "id": [1]}, r"'_headers' is string"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_anything_runs(
    sink: World, columns: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused, match=told):
        sink.batch_writer(pa.table(columns).schema)
    with pytest.raises(Refused, match=told):
        sink.stream_writer(pa.table(columns).schema)


def test_headers_of_another_shape_are_refused(sink: World) -> None:
    sink.stream()
    wrong = pa.array([[1]], pa.list_(pa.int64()))
    with pytest.raises(Refused, match="headers are"):
        sink.write(pa.table({"value": [b"v"], "headers": wrong}))


@pytest.mark.parametrize("number", [-1, 3, 2**31])
def test_a_partition_that_the_stream_does_not_have_is_refused(sink: World, number: int) -> None:
    sink.stream(partitions=3)
    with pytest.raises(Refused, match=f"partitions 0 to 2, and a row asks for {number}"):
        sink.write(pa.table({"value": [b"v"], "partition": pa.array([number], pa.int64())}))


def test_a_type_that_a_stream_cannot_carry_is_refused(sink: World) -> None:
    sink.stream()
    with pytest.raises(Refused, match="duration"):
        sink.write(pa.table({"took": pa.array([1], pa.duration("us"))}))


def test_keys_decide_as_kafkas_client_would_and_the_order_stays(sink: World) -> None:
    sink.stream(partitions=4)
    pairs = [(f"key {n % 50}", str(n)) for n in range(1000)]
    sink.write(keyed(pairs))
    for partition in range(4):
        wanted = [v for k, v in pairs if k and partition_for_key(k.encode(), 4) == partition]
        assert sink.values(partition) == wanted


def test_a_partition_goes_before_a_key_and_a_null_leaves_it_to_the_key(sink: World) -> None:
    sink.stream(partitions=4)
    table = keyed([("a", "asked"), ("a", "by key")])
    sink.write(table.append_column("partition", pa.array([3, None], pa.int32())))
    by_key = partition_for_key(b"a", 4)
    assert "asked" in sink.values(3)
    assert "by key" in sink.values(by_key)


def test_rows_without_a_key_stay_with_the_partition_of_their_task_for_a_batch(sink: World) -> None:
    sink.stream(partitions=3)
    sink.write(values("a", "b"), values("c"), values("d"), values("e"))
    assert [sink.values(p) for p in range(3)] == [["a", "b", "e"], ["c"], ["d"]]
    sink.stream("many", partitions=3)
    writer = sink.batch_writer(values("a").schema, topic="many", batchBytes="1")
    chunks = pa.concat_tables([values(str(n)) for n in range(6)])
    writer.commit([sink.run_task(writer, 0, chunks)])
    assert [sink.values(p, "many") for p in range(3)] == [["0", "3"], ["1", "4"], ["2", "5"]]


def test_rows_without_a_key_among_others_with_one(sink: World) -> None:
    sink.stream(partitions=2)
    sink.write(keyed([("a", "1"), (None, "2"), ("b", "3"), (None, "4")]))
    assert sorted(sink.values(0) + sink.values(1)) == ["1", "2", "3", "4"]
    # Those without a key stay together, with the partition of the task.
    assert {"2", "4"} <= set(sink.values(0))
