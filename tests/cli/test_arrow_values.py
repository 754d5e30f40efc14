"""Dates and times that Python cannot hold look the same in each form that is text."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.buffer.producer import BlockingProducer
from headwater.buffer.stream import create_stream
from headwater.cli.read_output import python_values
from headwater.store import open_store
from tests.cli.conftest import Invoke

NO_DAY = f"<value out of range: {2**31 - 1}>"
NO_TIME = f"<value out of range: {2**63 - 1}>"
DAYS = pa.array([2**31 - 1, 0, 6_000_000, None], pa.int32()).cast(pa.date32())
TIMES = pa.array([2**63 - 1, 0, 10**18, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
DAY_TEXTS = [NO_DAY, "1970-01-01", "18397-06-11", None]
TIME_TEXTS = [NO_TIME, "1970-01-01T00:00:00.000000Z", None]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A stream with days and times of any century, also within lists."""
    url = f"file://{tmp_path}/store"

    async def make() -> None:
        async with open_store(url) as store:
            schema = {"day": "date32", "at": "timestamp[us, UTC]", "days": "list<date32>"}
            await create_stream(store, "odd", schema=schema, linger_ms=1)

    asyncio.run(make())
    days = pa.ListArray.from_arrays([0, 1, 2, 3, 4], DAYS)
    with BlockingProducer(url, "odd") as producer:
        producer.produce_arrow(pa.table({"day": DAYS, "at": TIMES, "days": days}))
    return url


@pytest.mark.parametrize("format", ["json", "lines"])
def test_a_day_that_no_calendar_has_is_told_by_its_number(
    invoke: Invoke, url: str, format: str
) -> None:
    done = invoke("read", url, "odd", f"--format={format}", "--columns=day,at,days")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["day"] for row in rows] == DAY_TEXTS
    assert [row["days"] for row in rows] == [[text] for text in DAY_TEXTS]
    assert [row["at"] for row in rows if row["day"] != DAY_TEXTS[2]] == TIME_TEXTS


def test_csv_has_the_same_words(invoke: Invoke, url: str) -> None:
    done = invoke("read", url, "odd", "--format=csv", "--columns=day,at,days")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["day"] or None for row in rows] == DAY_TEXTS
    assert [json.loads(row["days"]) for row in rows] == [[text] for text in DAY_TEXTS]
    assert rows[0]["at"] == NO_TIME


def test_what_is_nested_is_told_piece_by_piece() -> None:
    kind = pa.struct([("on", pa.date32()), ("at", pa.map_(pa.string(), pa.timestamp("us")))])
    held = pa.array(
        [{"on": 2**31 - 1, "at": [("k", 2**63 - 1)]}, {"on": 0, "at": None}, None],
        pa.struct([("on", pa.int32()), ("at", pa.map_(pa.string(), pa.int64()))]),
    )
    first, second, third = python_values(held.cast(kind))
    assert first == {"on": NO_DAY, "at": [("k", NO_TIME)]}
    assert (str(second["on"]), second["at"], third) == ("1970-01-01", None, None)
