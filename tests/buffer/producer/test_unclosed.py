"""Blocking producers that nobody closed, when the process ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.blocking import read
from headwater.buffer.producer import BlockingProducer
from headwater.buffer.producer.blocking import OpenProducers
from headwater.buffer.stream import create_stream
from headwater.core import portal, runtime
from headwater.store import open_store
from tests.buffer.producer.fakes import fake_stream

SCRIPT = """
import sys
from headwater.buffer.producer import BlockingProducer

kept = BlockingProducer(sys.argv[1], "orders", linger_ms=60_000).open()
kept.produce([b"kept", b"until the end"])
BlockingProducer(sys.argv[1], "orders", linger_ms=60_000).open().produce([b"dropped"])
{end}
"""


def run_script(url: str, end: str = "") -> subprocess.CompletedProcess[bytes]:
    async def make() -> None:
        async with open_store(url) as store:
            await create_stream(store, "orders")

    asyncio.run(make())
    source = str(Path(headwater.__path__[0]).parent)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end=end), url],
        capture_output=True,
        env={"PYTHONPATH": source},
        timeout=120,
    )


def values(url: str) -> set[bytes]:
    with read(url, "orders") as reader:
        return {value for rows in reader for value in rows["_value"].to_pylist()}


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_a_process_that_ends_sends_what_it_produced_and_says_so(
    tmp_path: Path, end: str, status: int
) -> None:
    url = f"file://{tmp_path}/store"
    done = run_script(url, end)
    assert done.returncode == status
    assert values(url) == {b"kept", b"until the end", b"dropped"}
    assert b"was not closed: 2 records" in done.stderr
    assert b"without close(): 1 records" in done.stderr


def test_waiting_for_it_has_an_end_and_what_is_lost_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream, unclosed, gate = fake_stream(), OpenProducers(), threading.Event()

    async def held(apply: Any) -> Any:
        await runtime.run_blocking(gate.wait)
        return await apply()

    stream.queues[0].always["upload"] = held
    producer = BlockingProducer(stream, linger_ms=0).open()
    producer.produce([b"a"])
    unclosed.add(producer._producer, portal.shared())
    with caplog.at_level(logging.WARNING):
        unclosed.close_all(wait_s=0.0)
    gate.set()
    producer.close()
    assert "1 records are not accepted yet" in caplog.text
    assert "could not send everything: not accepted within 0 s" in caplog.text
