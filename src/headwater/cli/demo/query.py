"""The PySpark job of the demo: a stream into an Iceberg table, and into a windowed aggregate.

    python -m headwater.cli.demo.query URL FOLDER ORDERS

Two queries read the stream. The group `lake` owns it and acknowledges; the group `dashboard`
follows. After a third of the orders the job ends itself with SIGKILL, once, right after it
committed a snapshot of the table and before Spark records that the micro-batch is done. After the
restart, Spark runs that micro-batch again, and `to_table` finds it in the table.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.cli.demo.orders import SALES, SCHEMA, STORED, STREAM, TABLE, Sale
from headwater.core import runtime
from headwater.core.portal import shared
from headwater.spark import from_json, session, to_table
from headwater.spark.source.offset import Offset

WINDOW: Final = "30 minutes"
TRIGGER: Final = "1 second"
MICRO_BATCHES: Final = 8
"""At least so many, so that a kill falls between some that are done and some that are not."""
STRUCK: Final = "struck"
"""There once the job has killed itself."""


def _is_closed(progress: Any) -> bool:
    """Whether the source said that all it gave is acknowledged."""
    if progress is None:
        return False
    # Spark 4.1 shows an offset in the progress itself as Python would, and only here as JSON.
    reached = msgspec.json.decode(progress.json)["sources"][0]["endOffset"]
    return reached is not None and Offset.from_json(reached).closed


class Job:
    """One life of the job."""

    def __init__(self, url: str, folder: Path, orders: int) -> None:
        self._url = url
        self._folder = folder
        self._orders = orders
        self._stored = self._stored_before()
        self._spark: Any = session("headwater-demo", master="local[2]", quick_start=True)

    def run(self) -> None:
        """Until the table has everything; then the aggregate is written down."""
        lake = (
            self._events("lake")
            .writeStream.foreachBatch(self._store)
            .option("checkpointLocation", f"{self._folder}/checkpoints/lake")
            .trigger(processingTime=TRIGGER)
            .start()
        )
        dashboard = (
            self._sales()
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("sales")
            .option("checkpointLocation", f"{self._folder}/checkpoints/dashboard")
            .trigger(processingTime=TRIGGER)
            .start()
        )
        while self._stored < self._orders and lake.isActive and dashboard.isActive:
            shared().call(runtime.sleep(0.1))
        for query in (lake, dashboard):
            query.processAllAvailable()  # also raises what ended it
            # Spark acknowledges a micro-batch when the next one begins: that which closes, here.
            while query.isActive and not _is_closed(query.lastProgress):
                shared().call(runtime.sleep(0.1))
            query.stop()
        rows = self._spark.table("sales").orderBy("window", "product").collect()
        sales = [
            Sale(f"{row.window.start:%H:%M}", row["product"], row["orders"], row["euros"])
            for row in rows
        ]
        (self._folder / SALES).write_bytes(msgspec.json.encode(sales))
        self._spark.stop()

    def _events(self, group: str) -> Any:
        stream = (
            self._spark.readStream.format("headwater")
            .option("subscribe", STREAM)
            .option("groupId", group)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", max(1, self._orders // MICRO_BATCHES))
            .load(self._url)
        )
        names = [column.split()[0] for column in SCHEMA.split(", ")]
        return from_json(stream, SCHEMA).select(*names)

    def _sales(self) -> Any:
        return (
            self._events("dashboard")
            .selectExpr(f"window(ordered_at, '{WINDOW}') window", "product", "cents")
            .groupBy("window", "product")
            .agg({"cents": "sum", "*": "count"})
            .selectExpr("window", "product", "`count(1)` orders", "`sum(cents)` / 100 euros")
        )

    def _store(self, batch: Any, number: int) -> None:
        done = to_table(
            batch,
            TABLE,
            warehouse=self._url,
            txn_app_id="lake",
            txn_version=number,
        )
        # A batch that runs again after a kill is there already, and counted already.
        if not done.already_committed:  # type: ignore[union-attr]
            self._stored += done.rows  # type: ignore[union-attr]
        self._note(f"{number} {self._stored} {'again' if done.already_committed else 'stored'}")  # type: ignore[union-attr]
        if self._stored > self._orders // 3 and not (self._folder / STRUCK).exists():
            (self._folder / STRUCK).touch()
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _note(self, line: str) -> None:
        descriptor = os.open(self._folder / STORED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def _stored_before(self) -> int:
        report = self._folder / STORED
        lines = report.read_text().splitlines() if report.exists() else []
        return int(lines[-1].split()[1]) if lines else 0


if __name__ == "__main__":
    _url, _folder, _orders = sys.argv[1:]
    Job(_url, Path(_folder), int(_orders)).run()
