"""Tables and JSON over Spark Connect, as a program of its own: a process is one kind of client.

python -m tests.interop.spark_connect_program FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headwater.core.errors import Refused
from headwater.spark import from_json, read_table, session, to_table
from headwater.table.reference import load


def main(folder: Path) -> None:
    spark = session("connect", remote="local[2]", quick_start=True)
    warehouse = f"file://{folder}/warehouse"
    told: dict[str, Any] = {}
    text = spark.createDataFrame([('{"id": 1, "x": 2}',)], "value string")
    told["rescued"] = [tuple(row) for row in from_json(text, "id long").collect()]
    for _ in range(2):
        batch = {"txn_app_id": "nightly", "txn_version": 1}
        to_table(spark.range(10), "shop.once", warehouse=warehouse, **batch)  # type: ignore[arg-type]
    told["once"] = read_table(spark, "shop.once", warehouse=warehouse).count()

    (folder / "in").mkdir()
    for number in range(3):
        (folder / "in" / f"{number}.json").write_text(json.dumps({"id": number}))
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    stream = source.json(f"{folder}/in")
    try:
        to_table(stream, "shop.orders", warehouse=warehouse)
    except Refused as error:
        told["refused"] = str(error)
    query: Any = to_table(
        stream,
        "shop.orders",
        warehouse=warehouse,
        checkpoint_location=f"{folder}/checkpoint",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    table = load("shop.orders", warehouse=warehouse)
    said = [one.summary.additional_properties for one in table.metadata.snapshots if one.summary]
    told["own"] = all(one["headwater.query-id"] == str(query.id) for one in said)
    told["batches"] = [one["headwater.batch-id"] for one in said]
    told["ids"] = sorted(table.scan().to_arrow().column("id").to_pylist())
    (folder / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
