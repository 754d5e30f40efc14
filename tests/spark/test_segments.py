"""Segments of the tier as Spark itself reads them, in the JVM."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from headwater.tier.segments import SegmentConfig
from tests.tier.segments.given import encoded, lost, orders

GROUPS = [orders(1, 3000), lost(3001, 3010), orders(3011, 500, term=2, headers=True)]


def test_spark_reads_a_segment_as_any_parquet_file(spark: SparkSession, tmp_path: Path) -> None:
    """Also what its encodings, its page index, its bloom filter and its seal could get wrong."""
    path = tmp_path / "segment.parquet"
    path.write_bytes(encoded(GROUPS, config=SegmentConfig(row_group_rows=1000)).data)
    rows = spark.read.parquet(str(path))
    assert rows.count() == 3500
    found = rows.where("_lsn >= 2999").orderBy("_lsn").limit(3).toArrow()
    assert found.column("_lsn").to_pylist() == [2999, 3000, 3011]
    assert found.column("_term").to_pylist() == [1, 1, 2]
    assert found.column("note").to_pylist() == ["2999", "3000", "3011"]
    assert [headers is None for headers in found.column("_headers").to_pylist()] == [
        True,
        True,
        False,
    ]
    by_key = rows.where("_key = cast('key 2500' as binary)").toArrow()
    assert by_key.column("price").to_pylist() == [2500 / 4]
