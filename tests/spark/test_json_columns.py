from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DateType, StructType

from headwater.core.errors import Refused
from headwater.spark import from_json

SCHEMA = (
    "id long, amount decimal(10,2), at timestamp, tags array<int>, ratio float, day date, "
    "tiny byte, who struct<name string, age int>, text string, most decimal(38,2), "
    "items array<struct<n int>>, by_name map<string, struct<price decimal(4,1)>>"
)

FITS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "everything": ('{"id": 1, "amount": 2.50}', {"id": 1, "amount": "2.50"}),
    "a field that is missing": ("{}", {"id": None}),
    "a null": ('{"id": null, "who": null, "items": [null]}', {"id": None}),
    "no value": (None, {"id": None}),
    "space around": (' {"id": 1}\n', {"id": 1}),
    "zeros behind a decimal": ('{"amount": 12.3400}', {"amount": "12.34"}),
    "a decimal as text": ('{"amount": "12.34", "most": 1.25}', {"amount": "12.34"}),
    "the nearest float": ('{"ratio": 0.1}', {"ratio": "0.10000000149011612"}),
    "infinity by its name": ('{"ratio": "Infinity"}', {"ratio": "inf"}),
    "a day at midnight": ('{"day": "2026-01-31T00:00:00"}', {"day": "2026-01-31"}),
    "microseconds": ('{"at": "2026-01-31T00:00:00.123456Z"}', {"id": None}),
    "an object as text": ('{"text": {"b": 1.5, "a": [2]}}', {"text": '{"b":1.5,"a":[2]}'}),
    "a number as text": ('{"text": 1.5}', {"text": "1.5"}),
    "both halves of a character": ('{"text": "\\uD83D\\ude00"}', {"text": "😀"}),
    "nested": (
        '{"who": {"name": "a"}, "items": [{"n": 1}], "by_name": {"x": {"price": 1.5}}}',
        {"id": None},
    ),
}

UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "another type": ('{"id": "x", "amount": 1}', {"id": None, "amount": "1.00"}),
    "a fraction": ('{"id": 1.5}', {"id": None}),
    "not a time": ('{"id": 1, "at": "soon"}', {"id": 1}),
    "a field nobody named": ('{"id": 1, "x": {"y": [1]}}', {"id": 1}),
    "both": ('{"id": [], "x": 1}', {"id": None}),
    "another case": ('{"ID": 1}', {"id": None}),
    "inside a struct": ('{"id": 1, "who": {"name": "a", "age": "old"}}', {"id": 1}),
    "inside an array": ('{"id": 1, "tags": [1, "b"]}', {"id": 1}),
    "above and inside": ('{"id": "x", "who": {"age": "old"}}', {"id": None}),
    "a strange field and one inside": ('{"id": 1, "x": 1, "who": {"age": "old"}}', {"id": 1}),
    "a strange field in a struct": ('{"id": 1, "who": {"age": 1, "zz": 2}}', {"id": 1}),
    "a strange field in an array": ('{"id": 1, "items": [{"n": 1}, {"n": 1, "z": 2}]}', {"id": 1}),
    "a strange field in a map": ('{"id": 1, "by_name": {"x": {"z": 2}}}', {"id": 1}),
    "the same name twice": ('{"id": 1, "id": 2}', {}),
    "the same name twice inside": ('{"id": 1, "x": {"a": 1, "a": 2}}', {"id": None}),
    "a second object": ('{"id": 1}{"id": 2}', {"id": None}),
    "a second object after a comma": ('{"id": 1},{"id": 2}', {"id": None}),
    "words behind": ('{"id": 1} junk', {"id": None}),
    "a bracket behind": ('{"id": 1}] junk', {"id": None}),
    "the mark of the end behind": ('{"id": 1},{"__headwater_end":0}] junk', {"id": None}),
    "a decimal that is rounded": ('{"id": 1, "amount": 12.345}', {"id": 1}),
    "a decimal in text that is rounded": ('{"id": 1, "amount": "12.345"}', {"id": 1}),
    "the longest decimal, rounded": ('{"id": 1, "most": 5.251}', {"id": 1}),
    "a decimal in a map that is rounded": ('{"id": 1, "by_name": {"x": {"price": 1.25}}}', {}),
    "a float beyond all": ('{"id": 1, "ratio": 3.4e39}', {"id": 1}),
    "a byte beyond its range": ('{"id": 1, "tiny": 200}', {"id": 1}),
    "a time in a date": ('{"id": 1, "day": "2026-01-31T10:00:00"}', {"id": 1}),
    "nanoseconds": ('{"id": 1, "at": "2026-01-31T00:00:00.123456789Z"}', {"id": 1}),
    "digits in the text of an object": ('{"text": {"a": 0.12345678901234567890}}', {}),
    "half a character": ('{"text": "\\ud800"}', {}),
    "the other half of a character": ('{"text": "\\udE00 \\ud83d"}', {}),
    "broken": ('{"id": 1, "amount"', {"id": None}),
    "an array": ('[{"id": 1}]', {"id": None}),
    "a number": ("7", {"id": None}),
    "nothing": ("", {"id": None}),
    "words": ("hello", {"id": None}),
}
CASES = {**FITS, **UNFIT}


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> dict[str, dict[str, Any]]:
    rows = [(name, None if text is None else text.encode()) for name, (text, _) in CASES.items()]
    df = spark.createDataFrame(rows, "case string, value binary").coalesce(1)
    return {row["case"]: row.asDict() for row in from_json(df, SCHEMA).collect()}


@pytest.mark.parametrize("case", CASES)
def test_a_text_that_does_not_fit_wholly_is_kept_as_it_came(
    parsed: dict[str, dict[str, Any]], case: str
) -> None:
    text, typed = CASES[case]
    row = parsed[case]
    found = {name: None if row[name] is None else str(row[name]) for name in typed}
    assert found == {name: None if value is None else str(value) for name, value in typed.items()}
    assert row["_rescued_data"] == (None if case in FITS else text)


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
        ("long", {}, "is not a list of columns"),
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
    assert [tuple(row) for row in rows] == [(None, '{"id": "x"}'), (1, None)]
