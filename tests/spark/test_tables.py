"""`to_table` on a real Spark: batches, streams, restarts, and columns that change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.core.errors import NotFound, Refused
from headwater.spark import read_table, to_table
from headwater.table import commit as commits
from headwater.table.commit import WriteResult
from headwater.table.reference import load
from tests.interop.servers import Server
from tests.spark.killed_table_query import SCHEMA

TABLE = "shop.orders"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return f"file://{tmp_path}/warehouse"


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(id, str(id)) for id in ids], SCHEMA).coalesce(1)


def ids(warehouse: str) -> list[int]:
    found: list[Any] = load(TABLE, warehouse=warehouse).scan().to_arrow().column("id").to_pylist()
    return sorted(found)


def write(df: DataFrame, warehouse: str, **options: Any) -> WriteResult:
    done = to_table(df, TABLE, warehouse=warehouse, **options)
    assert isinstance(done, WriteResult)
    return done


# Batches


def test_a_table_is_made_from_a_dataframe_and_holds_every_type(
    spark: SparkSession, warehouse: str
) -> None:
    at = datetime(2026, 1, 31, 8, 0, 0, 123456, UTC)
    schema = (
        "a byte, b short, c int, d long, e float, f double, g decimal(10,2), h string, i binary, "
        "j boolean, k date, l timestamp, m timestamp_ntz, n array<int>, o map<string,double>, "
        "p struct<`a b`:string,c:struct<d:int>>, `odd name` string"
    )
    values = (
        *(1, 2, 3, 4, 0.5, 0.25, Decimal("1.50"), "x", bytearray(b"y"), True),
        *(date(2026, 1, 31), at, at.replace(tzinfo=None), [1, None], {"k": 1.5}),
        *(("inside", (7,)), "odd"),
    )
    df = spark.createDataFrame([values, (None,) * len(values)], schema)
    done = write(df, warehouse)
    assert (done.rows, done.already_committed) == (2, False)
    back = (
        read_table(spark, TABLE, warehouse=warehouse).orderBy(F.col("d").asc_nulls_last()).collect()
    )
    expected = df.orderBy(F.col("d").asc_nulls_last()).collect()
    assert [tuple(row) for row in back] == [tuple(row) for row in expected]
    arrow = load(TABLE, warehouse=warehouse).scan(row_filter="c = 3").to_arrow()
    assert arrow.column("p").to_pylist() == [{"a b": "inside", "c": {"d": 7}}]
    assert arrow.column("odd name").to_pylist() == ["odd"]


def test_a_version_of_an_application_is_written_once(spark: SparkSession, warehouse: str) -> None:
    first = write(rows(spark, 1, 2), warehouse, txn_app_id="nightly", txn_version=3)
    again = write(rows(spark, 1, 2), warehouse, txn_app_id="nightly", txn_version=3)
    older = write(rows(spark, 1, 2), warehouse, txn_app_id="nightly", txn_version=2)
    assert (again.already_committed, again.snapshot_id) == (True, first.snapshot_id)
    assert (older.already_committed, older.rows) == (True, 0)
    assert write(rows(spark, 3), warehouse, txn_app_id="nightly", txn_version=4).rows == 1
    assert ids(warehouse) == [1, 2, 3]


def test_batches_that_nobody_numbered_are_all_written(spark: SparkSession, warehouse: str) -> None:
    write(rows(spark, 1), warehouse)
    write(rows(spark, 1), warehouse)
    assert ids(warehouse) == [1, 1]


def test_no_rows_make_a_table_and_no_snapshot(spark: SparkSession, warehouse: str) -> None:
    assert write(rows(spark), warehouse) == WriteResult(None, 0, 0, already_committed=False)
    assert load(TABLE, warehouse=warehouse).current_snapshot() is None


def test_files_are_about_as_large_as_asked_for(spark: SparkSession, warehouse: str) -> None:
    df = spark.range(50_000, numPartitions=1).select(
        "id", F.sha2(F.col("id").cast("string"), 256).alias("name")
    )
    done = write(df, warehouse, file_bytes=500_000)
    assert done.rows == 50_000
    assert done.files >= 2
    sizes = [task.file.file_size_in_bytes for task in load_files(warehouse)]
    assert max(sizes) < 2_000_000


def load_files(warehouse: str) -> Any:
    return list(load(TABLE, warehouse=warehouse).scan().plan_files())


# Columns that change


def test_a_new_column_is_null_in_the_rows_before_it(spark: SparkSession, warehouse: str) -> None:
    write(rows(spark, 1), warehouse)
    write(rows(spark, 2).withColumn("city", F.lit("x")), warehouse)
    write(rows(spark, 3).select("id"), warehouse)
    found = read_table(spark, TABLE, warehouse=warehouse).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, "1", None), (2, "2", "x"), (3, None, None)]
    narrow = read_table(spark, TABLE, warehouse=warehouse, columns=["city", "id"]).where("id = 2")
    assert narrow.select("city").first() == ("x",)


def test_a_type_is_widened_and_never_narrowed(spark: SparkSession, warehouse: str) -> None:
    write(spark.createDataFrame([(1, 1)], "id long, n int"), warehouse)
    write(spark.createDataFrame([(2, 2**40)], "id long, n long"), warehouse)
    write(spark.createDataFrame([(3, 3)], "id int, n int"), warehouse)
    found = read_table(spark, TABLE, warehouse=warehouse).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, 1), (2, 2**40), (3, 3)]


def test_another_type_is_refused_before_anything_is_written(
    spark: SparkSession, warehouse: str
) -> None:
    write(rows(spark, 1), warehouse)
    with pytest.raises(Refused, match=r"do not fit table shop\.orders"):
        write(spark.createDataFrame([("x",)], "id string"), warehouse)
    with pytest.raises(Refused, match="evolve=False"):
        write(rows(spark, 2).withColumn("city", F.lit("x")), warehouse, evolve=False)
    write(rows(spark, 2), warehouse, evolve=False)
    assert ids(warehouse) == [1, 2]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT INTERVAL '1' YEAR AS y", "column y is interval year, which a table cannot hold"),
        ("SELECT make_dt_interval(1) AS y", "column y is interval day to second, which"),
        ("SELECT parse_json('1') AS y", r"column y is variant.*to_json\(y\)"),
        ("SELECT array(struct(parse_json('1') AS v)) AS y", r"column y\.element\.v is variant"),
        ("SELECT 1 AS x, null AS y", "column y has no type, only nulls: cast it"),
        ("SELECT 1 AS y, 2 AS y", "columns y, y: Spark treats these names as equal"),
        ("SELECT 1 AS y, 2 AS Y", "columns y, Y: Spark treats these names as equal"),
        ("SELECT named_struct('a', 1, 'A', 2) AS y", r"columns y\.a, y\.A: Spark treats"),
        ("SELECT 1 AS `a.b`", r"column a\.b: a name in a table has no dot.*'a_b'"),
    ],
)
def test_a_column_no_table_can_hold_is_refused_by_its_name(
    spark: SparkSession, warehouse: str, query: str, says: str
) -> None:
    with pytest.raises(Refused, match=says):
        write(spark.sql(query), warehouse)
    with pytest.raises(NotFound):
        load(TABLE, warehouse=warehouse)


@pytest.mark.parametrize(
    ("held", "written", "says"),
    [
        ("1.5BD", "CAST(1 AS DECIMAL(12,4))", r"c is decimal\(12,4\), and decimal\(2,1\) in the"),
        ("'a'", "CAST('a' AS BINARY)", "c is binary, and string in the table"),
        ("CAST('a' AS BINARY)", "'a'", "c is string, and binary in the table"),
        ("DATE'2026-01-31'", "1", "c is int, and date in the table"),
        ("array(1)", "array('a')", r"c\.element is string, and int in the table"),
        ("map('k', 1)", "map(1, 1)", r"c\.key is int, and string in the table"),
        ("named_struct('a', 1)", "named_struct('a', 'x')", r"c\.a is string, and int in the"),
        ("named_struct('a', 1)", "named_struct('A', 1)", r"c\.A is called c\.a in the table"),
    ],
)
def test_what_a_table_cannot_follow_names_the_column_and_both_types(
    spark: SparkSession, warehouse: str, held: str, written: str, says: str
) -> None:
    write(spark.sql(f"SELECT {held} AS c"), warehouse)
    with pytest.raises(Refused, match=says):
        write(spark.sql(f"SELECT {written} AS c"), warehouse)
    assert len(load(TABLE, warehouse=warehouse).metadata.snapshots) == 1


def test_no_change_is_allowed_and_the_change_is_named(spark: SparkSession, warehouse: str) -> None:
    write(spark.sql("SELECT 1 AS n, named_struct('a', 1) AS s"), warehouse)
    wider = spark.sql("SELECT 1L AS n, named_struct('a', 1, 'b', 'x') AS s")
    with pytest.raises(Refused, match=r"\(n is bigint, and int in the table; s\.b string is new\)"):
        write(wider, warehouse, evolve=False)


def test_a_name_in_other_capitals_is_the_tables_column(spark: SparkSession, warehouse: str) -> None:
    write(rows(spark, 1), warehouse)
    write(rows(spark, 2).withColumnRenamed("id", "ID"), warehouse)
    found = (
        read_table(spark, TABLE, warehouse=warehouse).orderBy("ID").select("id", "name").collect()
    )
    assert [tuple(row) for row in found] == [(1, "1"), (2, "2")]


def test_a_stream_that_cannot_fit_is_refused_before_its_query_starts(
    spark: SparkSession, warehouse: str
) -> None:
    write(spark.sql("SELECT 'a' AS value"), warehouse)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(Refused, match="value is bigint, and string in the table"):
        to_table(stream, TABLE, warehouse=warehouse)
    with pytest.raises(Refused, match="column v is variant"):
        to_table(stream.selectExpr("to_variant_object(struct(*)) v"), TABLE, warehouse=warehouse)


def test_a_table_that_requires_a_column_or_has_partitions(
    spark: SparkSession, warehouse: str
) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField

    write(rows(spark, 1), warehouse)
    catalog = load(TABLE, warehouse=warehouse).catalog
    schema = Schema(NestedField(1, "key", LongType(), required=True))
    catalog.create_table("shop.strict", schema)
    with pytest.raises(Refused, match="requires the columns key"):
        to_table(rows(spark, 1), "shop.strict", warehouse=warehouse)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "key"))
    catalog.create_table("shop.parted", schema, partition_spec=spec)
    with pytest.raises(Refused, match="is partitioned"):
        to_table(rows(spark, 1), "shop.parted", warehouse=warehouse)


# What cannot be asked for


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "orders"}, "namespace.table"),
        ({"warehouse": None}, "not both"),
        ({"catalog": "x"}, "not both"),
        ({"txn_app_id": "a"}, "belong together"),
        ({"txn_version": 1}, "belong together"),
        ({"txn_app_id": "a", "txn_version": "2026-11-19"}, "txn_version .* whole number"),
        ({"txn_app_id": "a", "txn_version": True}, "txn_version .* whole number"),
        ({"txn_app_id": "a", "txn_version": -1}, "txn_version .* whole number"),
        ({"checkpoint_location": "/x"}, "for streaming"),
        ({"keep_snapshots": 0}, "at least 1"),
        ({"store_options": {"secret_access_key": "x"}}, "credentials are not passed"),
    ],
)
def test_what_cannot_work_is_refused(
    spark: SparkSession, warehouse: str, options: dict[str, Any], says: str
) -> None:
    asked: dict[str, Any] = {"table": TABLE, "warehouse": warehouse, **options}
    with pytest.raises(Refused, match=says):
        to_table(rows(spark, 1), **asked)


def test_a_stream_has_its_own_numbers(spark: SparkSession, warehouse: str) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(Refused, match="which its checkpoint stores"):
        to_table(stream, TABLE, warehouse=warehouse, txn_app_id="a")


def test_a_table_that_is_not_there_is_not_found(spark: SparkSession, warehouse: str) -> None:
    with pytest.raises(NotFound, match=r"no table shop\.orders"):
        load(TABLE, warehouse=warehouse)
    with pytest.raises(NotFound):
        read_table(spark, TABLE, warehouse=warehouse)


# Streams


def produce(folder: Path, number: int, *ids: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = "".join(json.dumps({"id": id, "name": str(id)}) + "\n" for id in ids)
    file = folder / "in" / f"{number:03}.json"
    file.write_text(lines)
    os.utime(file, (1_000_000_000 + number,) * 2)  # Spark takes the oldest file first


def run(spark: SparkSession, folder: Path, warehouse: str, **options: Any) -> Any:
    """Process whatever is there, one file in each micro-batch."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query: Any = to_table(
        source.json(f"{folder}/in"),
        TABLE,
        warehouse=warehouse,
        checkpoint_location=f"{folder}/checkpoint",
        trigger={"availableNow": True},
        **options,
    )
    query.awaitTermination()
    return query


def batches(warehouse: str) -> list[tuple[str, str]]:
    table = load(TABLE, warehouse=warehouse)
    said = [one.summary.additional_properties for one in table.metadata.snapshots if one.summary]
    return [(one["headwater.query-id"], one["headwater.batch-id"]) for one in said]


def test_each_micro_batch_is_a_snapshot_and_a_restart_goes_on(
    spark: SparkSession, tmp_path: Path, warehouse: str
) -> None:
    produce(tmp_path, 0, 1, 2)
    produce(tmp_path, 1, 3)
    query = run(spark, tmp_path, warehouse, query_name="orders")
    assert query.name == "orders"
    assert batches(warehouse) == [(str(query.id), "0"), (str(query.id), "1")]
    produce(tmp_path, 2, 4)
    run(spark, tmp_path, warehouse)
    assert batches(warehouse)[-1] == (str(query.id), "2")
    assert ids(warehouse) == [1, 2, 3, 4]

    # Spark could not note that the last micro-batch was done, as after a crash: it comes again.
    for note in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        note.unlink()
    run(spark, tmp_path, warehouse)
    assert ids(warehouse) == [1, 2, 3, 4]
    assert len(batches(warehouse)) == 3

    # An old copy of the checkpoint comes with an older one, which may have other rows.
    for note in (tmp_path / "checkpoint").glob("*/*[12]*"):
        note.unlink()
    with pytest.raises(StreamingQueryException, match="older copy") as refused:
        run(spark, tmp_path, warehouse)
    told = str(refused.value)
    assert told.index("older copy") < told.index("Traceback"), "the sentence comes first"
    assert ids(warehouse) == [1, 2, 3, 4]

    # A checkpoint that was deleted starts over, as another query: its rows are new ones.
    shutil.rmtree(tmp_path / "checkpoint")
    run(spark, tmp_path, warehouse)
    assert ids(warehouse) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_without_its_token_the_replay_would_be_written_twice(
    spark: SparkSession, tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(tmp_path, 0, 1)
    run(spark, tmp_path, warehouse)
    for note in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        note.unlink()
    monkeypatch.setattr("headwater.table.commit.find_commit", lambda *_: None)
    run(spark, tmp_path, warehouse)
    assert ids(warehouse) == [1, 1]


def test_a_query_killed_between_its_commit_and_sparks_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, warehouse: str
) -> None:
    for number in range(4):
        produce(tmp_path, number, *range(number * 10, number * 10 + 10))
    command = [sys.executable, "-m", "tests.spark.killed_table_query", str(tmp_path), "1"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ids(warehouse) == list(range(20))
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    run(spark, tmp_path, warehouse)
    assert ids(warehouse) == list(range(40))
    assert [number for _, number in batches(warehouse)] == ["0", "1", "2", "3"]


def test_a_twin_that_was_faster_makes_ones_own_files_go(
    spark: SparkSession, tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = commits.commit_files

    def overtaken(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(commits, "commit_files", real)
        write(rows(spark, 1), warehouse, txn_app_id="nightly", txn_version=1)
        return real(*given, **options)

    monkeypatch.setattr(commits, "commit_files", overtaken)
    done = write(rows(spark, 1), warehouse, txn_app_id="nightly", txn_version=1)
    assert done.already_committed
    assert ids(warehouse) == [1]
    assert len(list((tmp_path / "warehouse" / "shop" / "orders" / "data").glob("*.parquet"))) == 1


# Other places


def test_a_table_on_s3_needs_no_jar(
    spark: SparkSession,
    fresh_s3_url: Callable[[], str],
    ministack: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ministack.env.items():
        # As a cluster's executors have them: from their own environment.
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    url = fresh_s3_url()
    write(rows(spark, 1, 2), url)
    write(rows(spark, 3), url)
    assert ids(url) == [1, 2, 3]
    assert read_table(spark, TABLE, warehouse=url).count() == 3


def test_another_catalog_by_its_configuration(spark: SparkSession, warehouse: str) -> None:
    catalog = {
        "name": "other",
        "py-catalog-impl": "headwater.table.catalog.RegisterCatalog",
        "warehouse": warehouse,
    }
    done = to_table(rows(spark, 1), TABLE, catalog=catalog)
    assert isinstance(done, WriteResult)
    assert ids(warehouse) == [1]
    assert read_table(spark, TABLE, catalog=catalog).count() == 1
