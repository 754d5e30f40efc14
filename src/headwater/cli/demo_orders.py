"""The orders of the demo, the two programs that handle them, and the proof that each arrived once.

    python -m headwater.cli.demo_orders produce URL ID ORDERS SECONDS REPORT
    python -m headwater.cli.demo_orders query URL FOLDER ORDERS

A producer sends its orders under its own id. The metadata of every call is the number of its last
order: a successor under the same id learns the metadata of the last accepted call, and goes on with
the number after it. A line goes to the report only after the acceptance that it tells of.

In the PySpark job two queries read the stream. The group `lake` owns it, acknowledges, and writes
an Iceberg table; the group `dashboard` follows, for a windowed aggregate. After a third of the
orders the job ends itself with SIGKILL, once, right after a snapshot of the table was committed and
before Spark has written down that the micro-batch is done. Started again, Spark runs that
micro-batch again, and the table knows that it has it.

An order depends on its producer and number alone, so a missing one can be named. Three sources are
compared by count and fingerprint: the producers' reports; the stream, read without Spark; and the
table's own files, read without Spark.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from headwater.core import runtime
from headwater.core.portal import shared

STREAM: Final = "orders"
TABLE: Final = "shop.orders"
SCHEMA: Final = "order string, customer string, product string, cents long, ordered_at timestamp"
PRODUCTS: Final = ("coffee", "tea", "cocoa", "juice", "water")
_OPENED: Final = datetime(2026, 1, 31, 8, tzinfo=UTC)
_APART: Final = timedelta(milliseconds=150)
_MIXED: Final = 2654435761  # a large odd number: neighbours get different customers and prices
STORED: Final = "stored"
"""The job's report: a line for each micro-batch that is in the table."""
SALES: Final = "sales.json"
"""Where the job writes its aggregate."""


class Order(msgspec.Struct, frozen=True):
    """One event."""

    order: str
    customer: str
    product: str
    cents: int
    ordered_at: datetime


class Sale(msgspec.Struct, frozen=True):
    """A row of the job's aggregate."""

    window: str
    product: str
    orders: int
    euros: float


def order_of(producer: str, number: int) -> Order:
    """The n-th order of a producer."""
    mixed = number * _MIXED % 2**32
    return Order(
        order=f"{producer}-{number:06}",
        customer=f"c{mixed % 997}",
        product=PRODUCTS[mixed % 7 % len(PRODUCTS)],
        cents=100 + mixed % 4900,
        ordered_at=_OPENED + number * _APART,
    )


class Fingerprint(NamedTuple):
    """Of a set of orders, in whatever order they come: how many, and the sum of their hashes."""

    rows: int
    total: int

    def __str__(self) -> str:
        return f"{self.total:016x}"


def fingerprint(orders: Iterable[Order]) -> Fingerprint:
    """Counts every order as often as it comes."""
    rows = total = 0
    for one in orders:
        rows += 1
        total += xxhash.xxh3_64_intdigest(msgspec.json.encode(one))
    return Fingerprint(rows, total % 2**64)


class Verdict(NamedTuple):
    """What was found where, and what is wrong."""

    found: dict[str, Fingerprint]
    """accepted, read, stored."""
    problems: list[str]

    @property
    def is_exact(self) -> bool:
        """Whether every order that was accepted is in the stream and in the table, once."""
        return not self.problems


def accepted_numbers(report: str) -> set[int]:
    """The accepted orders of a producer, in all of its lives.

    A line without its end was never finished.
    """
    accepted: set[int] = set()
    for line in report.split("\n")[:-1]:
        word, *numbers = line.split(" ")
        if word == "resumed":
            # Everything up to here was accepted before.
            accepted.update(range(1, int(numbers[0]) + 1))
        else:
            first, last = map(int, numbers)
            accepted.update(range(first, last + 1))
    return accepted


def accepted_orders(reports: dict[str, Path]) -> list[Order]:
    """The accepted orders of all producers."""
    return [
        order_of(name, number)
        for name, report in reports.items()
        for number in sorted(accepted_numbers(report.read_text()))
    ]


def read_orders(url: str) -> list[Order]:
    """What the stream holds."""
    from headwater import blocking

    values = blocking.read(url, STREAM, columns=["_value"]).to_table().column(0).to_pylist()
    return [msgspec.json.decode(value, type=Order) for value in values]


def stored_table(url: str) -> Any:
    """What the table holds, as Arrow."""
    from headwater.table.catalog import RegisterCatalog

    return RegisterCatalog("demo", warehouse=url).load_table(TABLE).scan().to_arrow()


def orders_of(table: Any) -> list[Order]:
    """The rows of the table as orders."""
    return [msgspec.convert(row, Order) for row in table.to_pylist()]


def compare(accepted: list[Order], read: list[Order], stored: list[Order]) -> Verdict:
    """The verdict, which says what is missing and what is there too often."""
    found = {
        name: fingerprint(orders)
        for name, orders in (("accepted", accepted), ("read", read), ("stored", stored))
    }
    problems = [
        *_differences("the stream", accepted, read),
        *_differences("the table", accepted, stored),
    ]
    if not problems and len(set(found.values())) > 1:
        problems.append("counts agree, and the contents of some orders do not")
    return Verdict(found, problems)


def _differences(place: str, accepted: Iterable[Order], orders: Iterable[Order]) -> list[str]:
    expected = Counter(one.order for one in accepted)
    counted = Counter(one.order for one in orders)
    missing, extra = expected - counted, counted - expected
    differences = []
    if missing:
        differences.append(f"{place} lacks {missing.total():,}, for one {min(missing)}")
    if extra:
        differences.append(f"{place} has {extra.total():,} too many, for one {min(extra)}")
    return differences


CALLS: Final = 250
"""How many calls all of the orders take, however many they are."""


async def produce(url: str, producer_id: str, orders: int, seconds: float, report: str) -> None:
    """Produce up to the given number, at an even pace."""
    from headwater.buffer.producer import Handle, Producer
    from headwater.store import open_store

    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    each = max(1, orders // CALLS)
    pace_s = seconds * each / orders
    under_way: deque[tuple[int, int, Handle]] = deque()

    async def report_accepted(*, all_of_them: bool) -> None:
        while under_way and (all_of_them or under_way[0][2].is_done):
            first, last, handle = under_way.popleft()
            await handle
            os.write(descriptor, f"accepted {first} {last}\n".encode())

    async with (
        open_store(url) as store,
        Producer(store, STREAM, producer_id=producer_id) as producer,
    ):
        done = int(producer.resumed[0].metadata or b"0")
        os.write(descriptor, f"resumed {done}\n".encode())
        while done < orders:
            first, last = done + 1, min(done + each, orders)
            orders_now = [order_of(producer_id, number) for number in range(first, last + 1)]
            handle = await producer.produce(
                [msgspec.json.encode(one) for one in orders_now],
                keys=[one.customer.encode() for one in orders_now],
                metadata=b"%d" % last,
            )
            under_way.append((first, last, handle))
            done = last
            await runtime.sleep(pace_s)
            await report_accepted(all_of_them=False)
        await report_accepted(all_of_them=True)
    os.close(descriptor)


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
    from headwater.spark.source.offset import Offset

    # Spark 4.1 shows an offset in the progress itself as Python would, and only here as JSON.
    reached = msgspec.json.decode(progress.json)["sources"][0]["endOffset"]
    return reached is not None and Offset.from_json(reached).closed


class OrdersJob:
    """One life of the PySpark job."""

    def __init__(self, url: str, folder: Path, orders: int) -> None:
        from headwater.spark import session

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
        from headwater.spark import from_json

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
        from headwater.spark import to_table

        done: Any = to_table(
            batch, TABLE, warehouse=self._url, txn_app_id="lake", txn_version=number
        )
        # A batch that runs again after a kill is there already, and counted already.
        if not done.already_committed:
            self._stored += done.rows
        self._note(f"{number} {self._stored} {'again' if done.already_committed else 'stored'}")
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
    _work, _url, *_rest = sys.argv[1:]
    if _work == "produce":
        from headwater.cli.terminal import run_loop

        _id, _orders, _seconds, _report = _rest
        run_loop(produce(_url, _id, int(_orders), float(_seconds), _report))
    else:
        OrdersJob(_url, Path(_rest[0]), int(_rest[1])).run()
