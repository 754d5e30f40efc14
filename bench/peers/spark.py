"""The Spark source against Spark's own Kafka source: `python -m bench.peers.spark [--quick]`.

2 M rows of 100 B in one partition of a Kafka topic and of a Headwater stream, read by AvailableNow
queries in the same session, in turns: → noop and → Parquet. The broker is a real one; Spark's Kafka
source comes from its published artifacts. Beside them: native Parquet of the same rows, and
ready-made Arrow batches, which is what any Python source can reach at best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench._report import Goal, Section, machine
from bench._spark_rows import fill_parquet, fill_stream
from bench.peers._kafka import Kafka
from bench.peers._peer import LISTS, make_records
from bench.spark import SIZE, STREAM, Bench, Scale, in_turns
from tests.interop.cache import Unavailable, install_once, require_tool, run_installer
from tests.interop.process import StartFailed

JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""Those of Spark 4.3.0 itself are not published; these run on it."""
FULL = Scale(2_000_000, 5, (), 0)
QUICK = Scale(200_000, 2, (), 0)


def jars() -> Path:
    """The folder with the jars of Spark's Kafka source, none of what they depend on."""

    def build(folder: Path) -> None:
        maven = require_tool("mvn")
        for artifact in JARS:
            copy = ["dependency:copy", f"-Dartifact={artifact}", "-DoutputDirectory=lib"]
            run_installer([maven, "-q", "-B", *copy], folder, {})

    return install_once("spark-kafka", repr(JARS), "lib", build)


def compare(bench: Bench, kafka: Kafka) -> Section:
    """Everything in turns."""
    rows = bench.scale.rows
    kafka.empty()
    kafka.producing()[LISTS](make_records(rows, SIZE))()
    asyncio.run(fill_stream(bench.url, STREAM, rows, SIZE, 20))
    fill_parquet(bench.root / "parquet-10", rows, SIZE, 10)

    def from_kafka() -> Any:
        return (
            bench.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", kafka.servers)
            .option("subscribe", kafka.topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    spent = in_turns(
        bench.scale.rounds,
        {
            "Headwater → noop": lambda: bench.streamed(bench.ours_streaming()),
            "Kafka → noop": lambda: bench.streamed(from_kafka()),
            "native Parquet → noop": lambda: bench.to_noop(bench.parquet()),
            "Headwater → Parquet": lambda: bench.streamed(bench.ours_streaming(), "parquet"),
            "Kafka → Parquet": lambda: bench.streamed(from_kafka(), "parquet"),
            "ready-made Arrow → Parquet": lambda: bench.streamed(
                bench.ready(streaming=True), "parquet"
            ),
        },
    )
    needed_s, bound = max(
        (spent["Kafka → Parquet"] / 1.3, "1.3 × Kafka"),
        (spent["ready-made Arrow → Parquet"] / 0.9, "0.9 × ready-made Arrow"),
    )
    section = Section(
        f"{rows:,} rows of {SIZE} B, AvailableNow, medians of {bench.scale.rounds}",
        ["way", "seconds", "M rows/s"],
        [[name, f"{spent[name]:.2f}", f"{rows / spent[name] / 1e6:.2f}"] for name in spent],
    )
    section.goals += [
        Goal(
            "Headwater ÷ Kafka → noop",
            2.0,
            spent["Kafka → noop"] / spent["Headwater → noop"],
            timed=True,
        ),
        Goal(
            f"Headwater ÷ {bound} → Parquet",
            1.0,
            needed_s / spent["Headwater → Parquet"],
            timed=True,
        ),
    ]
    return section


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Compare Spark sources.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, two rounds")
    parser.add_argument("--json", action="store_true", help="figures for machines, on one line")
    options, _ = parser.parse_known_args()
    root = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    kafka = Kafka(root / "kafka")
    try:
        kafka.start()
        found = sorted(str(jar) for jar in jars().glob("*.jar"))
        conf = {"spark.jars": ",".join(found)}
        bench = Bench(root, QUICK if options.quick else FULL, conf=conf)
        section = compare(bench, kafka)
        bench.spark.stop()
    except (Unavailable, StartFailed) as error:
        print(f"Spark's Kafka source is left out: {error}")
        return 0
    finally:
        kafka.stop()
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps({"machine": machine(), "sections": [section.as_json()]}))
        return 0
    print(f"{__doc__}\n{machine()}")
    section.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
