from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, StructType

from headwater.core.errors import Refused
from headwater.spark import from_json

SCHEMA = (
    "id long, amount decimal(10,2), at timestamp, tags array<int>, who struct<name string, age int>"
)

CASES: dict[str, tuple[str | None, dict[str, Any], Any]] = {
    "everything fits": ('{"id": 1, "amount": 2.50}', {"id": 1, "amount": "2.50"}, None),
    "a field that is missing": ("{}", {"id": None}, None),
    "a null": ('{"id": null}', {"id": None}, None),
    "no value": (None, {"id": None}, None),
    "another type": ('{"id": "x", "amount": 1}', {"id": None, "amount": "1.00"}, {"id": "x"}),
    "a fraction": ('{"id": 1.5}', {"id": None}, {"id": 1.5}),
    "not a time": ('{"id": 1, "at": "soon"}', {"id": 1}, {"at": "soon"}),
    "a field nobody named": ('{"id": 1, "x": {"y": [1]}}', {"id": 1}, {"x": {"y": [1]}}),
    "both": ('{"id": [], "x": 1}', {"id": None}, {"id": [], "x": 1}),
    "another case": ('{"ID": 1}', {"id": None}, {"ID": 1}),
    "inside a struct": (
        '{"id": 1, "who": {"name": "a", "age": "old"}}',
        {"id": 1},
        {"who": {"name": "a", "age": "old"}},
    ),
    "inside an array": ('{"id": 1, "tags": [1, "b"]}', {"id": 1}, {"tags": [1, "b"]}),
    "broken": ('{"id": 1, "amount"', {"id": None}, '{"id": 1, "amount"'),
    "an array": ('[{"id": 1}]', {"id": None}, '[{"id": 1}]'),
    "a number": ("7", {"id": None}, "7"),
    "nothing": ("", {"id": None}, ""),
    "words": ("hello", {"id": None}, "hello"),
}


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> dict[str, dict[str, Any]]:
    rows = [(name, None if text is None else text.encode()) for name, (text, _, _) in CASES.items()]
    df = spark.createDataFrame(rows, "case string, value binary").coalesce(1)
    return {row["case"]: row.asDict() for row in from_json(df, SCHEMA).collect()}


@pytest.mark.parametrize("case", CASES)
def test_what_fits_is_typed_and_what_does_not_is_rescued(
    parsed: dict[str, dict[str, Any]], case: str
) -> None:
    _, typed, rescued = CASES[case]
    row = parsed[case]
    found = {name: None if row[name] is None else str(row[name]) for name in typed}
    assert found == {name: None if value is None else str(value) for name, value in typed.items()}
    kept = row["_rescued_data"]
    assert (json.loads(kept) if isinstance(rescued, dict) else kept) == rescued


def test_columns_come_typed_first_then_rescued_then_the_others(spark: SparkSession) -> None:
    df = spark.createDataFrame([("k", "{}", 5)], "key string, value string, offset long")
    assert from_json(df, "id long, value string").columns == [
        "id",
        "value",
        "_rescued_data",
        "key",
        "offset",
    ]


def test_bytes_that_are_no_text_are_kept_too(spark: SparkSession) -> None:
    df = spark.createDataFrame([(bytearray(b"\xff\x00"),)], "value binary")
    assert from_json(df, "id long").first() == (None, '{"base64":"/wA="}')


def test_names_options_and_schemas_of_ones_own(spark: SparkSession) -> None:
    df = spark.createDataFrame([('{"a`b": "31.01.2026"}',)], "body string")
    schema = StructType().add("a`b", DateType())
    typed = from_json(
        df, schema, column="body", rescued="rest", options={"dateFormat": "dd.MM.yyyy"}
    )
    row = typed.first()
    assert row is not None
    assert (str(row[0]), row["rest"]) == ("2026-01-31", None)


@pytest.mark.parametrize(
    ("schema", "arguments", "says"),
    [
        ("id long", {"column": "nothing"}, "no column 'nothing'; there are key, value, number"),
        ("id long", {"column": "number"}, "JSON is string or binary"),
        ("key string", {}, "key: both in the schema"),
        ("_rescued_data string", {}, "both in the schema"),
        ("long", {}, "is no list of columns"),
        ("id long", {"options": {"MODE": "FAILFAST"}}, "option MODE is set by from_json"),
    ],
)
def test_what_cannot_work_is_refused(
    spark: SparkSession, schema: str, arguments: dict[str, Any], says: str
) -> None:
    df = spark.createDataFrame([], "key string, value string, number int")
    with pytest.raises(Refused, match=says):
        from_json(df, schema, **arguments)


def test_it_works_on_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text('{"id": 1}\n{"id": "x"}\n')
    stream: DataFrame = spark.readStream.text(str(tmp_path / "in"))
    query = (
        from_json(stream, "id long")
        .writeStream.format("memory")
        .queryName("rescued_rows")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.table("rescued_rows").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(None, '{"id":"x"}'), (1, None)]
