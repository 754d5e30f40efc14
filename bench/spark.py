"""How good the Spark source and sink are: `python -m bench.spark [--quick] [--only NAME …]`.

All on one machine, local store, `local[2]`; candidates take turns in the same session, the first
round of each is a warm-up, ratios are of medians.

- source: 2 M rows of 100 B, batch and AvailableNow, → noop and → Parquet; against Spark reading the
  same rows from Parquet, and against a Python source that yields ready-made Arrow batches, which is
  what any Python source can reach at best;
- batches: the same rows in 10, 1,000 and 10,000 batches;
- files: Spark's own file stream over the same rows in 10, 1,000 and 10,000 Parquet files, whole and
  per trigger as the directory grows, against ours as the queue grows;
- sink: rows into a stream against the same rows into Parquet;
- latency: the time of a micro-batch with little in it, against the rate source;
- cores: from one core to two.

Spark's own Kafka source on a real broker is in `bench.peers.spark`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._report import Goal, Section, Sections, measure
from bench._spark_ready import Ready
from bench._spark_rows import fill_parquet, fill_stream, rows_of

ROOT = Path(__file__).parents[1]
SIZE = 100
STREAM = "rows"
_numbers = itertools.count()


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    rows: int
    rounds: int
    batches: tuple[int, ...]
    triggers: int


FULL = Scale(2_000_000, 5, (10, 1_000, 10_000), 20)
QUICK = Scale(200_000, 2, (10, 200), 5)


class Bench:
    """One session, one folder."""

    def __init__(
        self, root: Path, scale: Scale, cores: int = 2, conf: dict[str, str] | None = None
    ) -> None:
        from headwater.spark import session

        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.root = root
        self.scale = scale
        self.url = f"file://{root}/store"
        self.spark = session("headwater-bench", master=f"local[{cores}]", conf=conf)
        self.spark.dataSource.register(Ready)

    # Candidates: each returns a DataFrame

    def ours(self, stream: str = STREAM) -> Any:
        """A batch read of a stream."""
        return self.spark.read.format("headwater").option("subscribe", stream).load(self.url)

    def ours_streaming(self, stream: str = STREAM, **options: object) -> Any:
        """A streaming read of everything in it, by a group that nobody knows."""
        reader = (
            self.spark.readStream.format("headwater")
            .option("subscribe", stream)
            .option("groupId", f"bench-{next(_numbers)}")
            .option("startingOffsets", "earliest")
        )
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load(self.url)

    def ready(self, *, streaming: bool = False) -> Any:
        """As many rows of ready-made Arrow in as many tasks, each of which costs 50 ms."""
        reader = self.spark.readStream if streaming else self.spark.read
        rows = self.scale.rows
        return reader.format("ready").options(rows=rows, size=SIZE, tasks=4).load()

    def parquet(self, files: int = 10) -> Any:
        """The same rows as Spark reads them best."""
        return self.spark.read.parquet(f"{self.root}/parquet-{files}")

    # Ways to use one

    def to_noop(self, df: Any) -> float:
        """Seconds until every row was produced and thrown away."""
        started_s = time.perf_counter()
        df.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started_s

    def to_parquet(self, df: Any) -> float:
        """Seconds until every row is in Parquet."""
        target = self.root / f"out-{next(_numbers)}"
        started_s = time.perf_counter()
        df.write.parquet(str(target))
        spent_s = time.perf_counter() - started_s
        shutil.rmtree(target)
        return spent_s

    def streamed(self, df: Any, sink: str = "noop") -> float:
        """Seconds of an AvailableNow query's triggers; starting the query is not in it."""
        checkpoint = self.root / f"checkpoint-{next(_numbers)}"
        writer = df.writeStream.option("checkpointLocation", str(checkpoint))
        if sink == "parquet":
            writer = writer.option("path", f"{checkpoint}-out")
        query = writer.format(sink).trigger(availableNow=True).start()
        query.awaitTermination()
        progress = query.recentProgress
        if not rows_of(progress):
            raise RuntimeError("the query read nothing")
        spent_ms = sum(int(one["durationMs"]["triggerExecution"]) for one in progress)
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.rmtree(f"{checkpoint}-out", ignore_errors=True)
        return spent_ms / 1000


def in_turns(rounds: int, candidates: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, after one round that does not count."""
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            seconds = run()
            if number:
                spent[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def source(bench: Bench) -> list[Section]:
    """→ noop and → Parquet, batch and streaming."""
    rows = bench.scale.rows
    asyncio.run(fill_stream(bench.url, STREAM, rows, SIZE, 20))
    fill_parquet(bench.root / "parquet-10", rows, SIZE, 10)
    spent = in_turns(
        bench.scale.rounds,
        {
            "ours → noop": lambda: bench.to_noop(bench.ours()),
            "ready-made Arrow → noop": lambda: bench.to_noop(bench.ready()),
            "native Parquet → noop": lambda: bench.to_noop(bench.parquet()),
            "ours, streaming → noop": lambda: bench.streamed(bench.ours_streaming()),
            "ready-made, streaming → noop": lambda: bench.streamed(bench.ready(streaming=True)),
            "ours → Parquet": lambda: bench.to_parquet(bench.ours()),
            "ready-made Arrow → Parquet": lambda: bench.to_parquet(bench.ready()),
            "native Parquet → Parquet": lambda: bench.to_parquet(bench.parquet()),
            "ours, streaming → Parquet": lambda: bench.streamed(bench.ours_streaming(), "parquet"),
        },
    )
    section = Section(
        f"Source: {rows:,} rows of {SIZE} B, medians of {bench.scale.rounds}",
        ["way", "seconds", "M rows/s"],
        [[name, f"{spent[name]:.2f}", f"{rows / spent[name] / 1e6:.2f}"] for name in spent],
    )
    section.goals += [
        _ratio(spent, "ready-made Arrow → noop", "ours → noop", 0.9),
        _ratio(spent, "ready-made, streaming → noop", "ours, streaming → noop", 0.9),
        _ratio(spent, "ready-made Arrow → Parquet", "ours → Parquet", 0.9),
    ]
    section.notes.append(
        f"ours ÷ native Parquet → noop: {spent['native Parquet → noop'] / spent['ours → noop']:.2f}"
    )
    return [section]


def _ratio(spent: dict[str, float], limit: str, ours: str, goal: float) -> Goal:
    return Goal(f"{ours} ÷ {limit}", goal, spent[limit] / spent[ours], timed=True)


def batches(bench: Bench) -> list[Section]:
    """The same rows in ever more batches."""
    section = Section(
        f"The same {bench.scale.rows:,} rows in ever more batches",
        ["batches", "batch read → noop, s", "AvailableNow → noop, s"],
    )
    for count in bench.scale.batches:
        name = f"rows-{count}"
        asyncio.run(fill_stream(bench.url, name, bench.scale.rows, SIZE, count))
        read = [bench.to_noop(bench.ours(name)) for _ in range(3)]
        streamed = [bench.streamed(bench.ours_streaming(name)) for _ in range(3)]
        section.rows.append(
            [f"{count:,}", f"{statistics.median(read):.2f}", f"{statistics.median(streamed):.2f}"]
        )
    return [section]


def files(bench: Bench) -> list[Section]:
    """Spark's file stream, and time per trigger as the past grows."""
    whole = Section(
        f"Spark's file stream over the same {bench.scale.rows:,} rows",
        ["files", "AvailableNow → noop, s", "M rows/s"],
    )
    for count in bench.scale.batches:
        folder = bench.root / f"stream-{count}"
        fill_parquet(folder, bench.scale.rows, SIZE, count)
        schema = bench.spark.read.parquet(str(folder)).schema
        stream = bench.spark.readStream.schema(schema).parquet(str(folder))
        spent_s = bench.streamed(stream)
        whole.rows.append(
            [f"{count:,}", f"{spent_s:.2f}", f"{bench.scale.rows / spent_s / 1e6:.2f}"]
        )
    return [whole, _growing(bench)]


def _growing(bench: Bench) -> Section:
    """One small batch or file a trigger, after ever more of them."""
    section = Section(
        "Time of a trigger that reads one more batch, or one more file, after so many",
        ["before", "ours, ms", "file stream, ms"],
    )
    first: dict[str, float] = {}
    measured: dict[str, float] = {}
    for count in bench.scale.batches:
        name, folder = f"past-{count}", bench.root / f"past-{count}"
        asyncio.run(fill_stream(bench.url, name, count, SIZE, count))
        fill_parquet(folder, count, SIZE, count)
        schema = bench.spark.read.parquet(str(folder)).schema
        past = {
            "ours": bench.ours_streaming(name),
            "files": bench.spark.readStream.schema(schema).parquet(str(folder)),
        }
        for who, df in past.items():
            measured[who] = _one_more(bench, df, who, name, folder)
            first.setdefault(who, measured[who])
        section.rows.append([f"{count:,}", f"{measured['ours']:.0f}", f"{measured['files']:.0f}"])
    section.goals.append(
        Goal(
            "ours, last ÷ first", 1.5, measured["ours"] / first["ours"], at_least=False, timed=True
        )
    )
    return section


def _one_more(bench: Bench, df: Any, who: str, name: str, folder: Path) -> float:
    """Median milliseconds of triggers with one more batch each, once the past was read."""
    checkpoint = bench.root / f"checkpoint-{next(_numbers)}"
    query = (
        df.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.processAllAvailable()
    past = len(query.recentProgress)
    for number in range(bench.scale.triggers):
        if who == "ours":
            asyncio.run(_add(bench.url, name))
        else:
            source = next(folder.glob("part-*.parquet"))
            shutil.copy(source, folder / f"more-{number}.parquet")
        query.processAllAvailable()
    spent = [
        int(one["durationMs"]["triggerExecution"])
        for one in query.recentProgress[past:]
        if one["numInputRows"]
    ]
    query.stop()
    return statistics.median(spent)


async def _add(url: str, name: str) -> None:
    from headwater.buffer.producer import Producer
    from headwater.store import open_store

    async with open_store(url) as store, Producer(store, name) as producer:
        await producer.produce([b"one more"])


def sink(bench: Bench) -> list[Section]:
    """Rows into a stream, and into Parquet."""
    from headwater.buffer.stream import create_stream
    from headwater.store import open_store

    async def make(name: str) -> None:
        async with open_store(bench.url) as store:
            await create_stream(store, name)

    def to_stream() -> float:
        name = f"sink-{next(_numbers)}"
        asyncio.run(make(name))
        df = bench.parquet().select("key", "value")
        started_s = time.perf_counter()
        df.write.format("headwater").option("topic", name).mode("append").save(bench.url)
        return time.perf_counter() - started_s

    rows = bench.scale.rows
    if not (bench.root / "parquet-10").exists():
        fill_parquet(bench.root / "parquet-10", rows, SIZE, 10)
    spent = in_turns(
        bench.scale.rounds,
        {
            "into a stream": to_stream,
            "into Parquet": lambda: bench.to_parquet(bench.parquet().select("key", "value")),
        },
    )
    return [
        Section(
            f"Sink: {rows:,} rows of {SIZE} B from Parquet",
            ["way", "seconds", "M rows/s", "speed ÷ into Parquet"],
            [
                [
                    name,
                    f"{seconds:.2f}",
                    f"{rows / seconds / 1e6:.2f}",
                    f"{spent['into Parquet'] / seconds:.2f}",
                ]
                for name, seconds in spent.items()
            ],
        )
    ]


def latency(bench: Bench) -> list[Section]:
    """A micro-batch with next to nothing in it."""
    name = "latency"
    asyncio.run(fill_stream(bench.url, name, 100, SIZE, 1))
    ours = _one_more(bench, bench.ours_streaming(name), "ours", name, bench.root)
    query = (
        bench.spark.readStream.format("rate")
        .option("rowsPerSecond", 10)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", f"{bench.root}/checkpoint-rate")
        .start()
    )
    while len(query.recentProgress) < bench.scale.triggers:
        time.sleep(0.2)
    rate = statistics.median(
        int(one["durationMs"]["triggerExecution"])
        for one in query.recentProgress
        if one["numInputRows"]
    )
    query.stop()
    return [
        Section(
            "A micro-batch with next to nothing in it",
            ["source", "median ms"],
            [["ours", f"{ours:.0f}"], ["Spark's rate source", f"{rate:.0f}"]],
        )
    ]


def cores(bench: Bench) -> list[Section]:
    """One core against two, in a session of its own."""
    name = "cores"
    asyncio.run(fill_stream(bench.url, name, bench.scale.rows, SIZE, 20))
    spent = {2: statistics.median(bench.to_noop(bench.ours(name)) for _ in range(4))}
    bench.spark.stop()
    alone = Bench(bench.root, bench.scale, cores=1)
    alone.url = bench.url
    spent[1] = statistics.median(alone.to_noop(alone.ours(name)) for _ in range(4))
    alone.spark.stop()
    return [
        Section(
            "From one core to two",
            ["cores", "seconds", "M rows/s"],
            [
                [str(n), f"{spent[n]:.2f}", f"{bench.scale.rows / spent[n] / 1e6:.2f}"]
                for n in (1, 2)
            ],
            notes=[f"speed-up {spent[1] / spent[2]:.2f}"],
        )
    ]


def sections(root: Path, quick: bool) -> Sections:
    """Name → what measures it."""

    @functools.cache
    def bench() -> Bench:
        return Bench(root, QUICK if quick else FULL)

    return {
        "source": lambda: source(bench()),
        "batches": lambda: batches(bench()),
        "files": lambda: files(bench()),
        "sink": lambda: sink(bench()),
        "latency": lambda: latency(bench()),
        "cores": lambda: cores(bench()),  # last: it ends the session
    }


if __name__ == "__main__":
    measure(__doc__, sections)
