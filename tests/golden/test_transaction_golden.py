"""The registers of transactions, as they were first written.

A file here is never changed. A later version of a format adds a file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.transaction.holds import Hold, Holds
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    CommitAttempt,
    PartitionBatches,
    Upload,
)
from headwater.core import runtime
from headwater.store import MemoryBackend, Register, Store
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent
BATCH = "01J5T4R3KXBMZ7QV9N2WSP8YDH"
LATER = "01J5T4R3KXBMZ7QV9N2WSP8YDJ"
AT_MS = 1_767_225_600_000
QUERY = CommitAttempt.of_query("3f2b-größe", 7, "run-1")

REGISTERS: dict[str, Any] = {
    "holds.1": Holds(
        BATCH,
        {
            QUERY.hold: Hold(QUERY.application, "a" * 32, LATER, 86_400_000, 3, 2, AT_MS),
            "app-1.job": Hold("app-1", "b" * 32, LATER, 60_000, is_ending=True),
        },
        12,
    ),
    "commit_record.2": ApplicationRecord(
        "query",
        "3f2b-größe",
        7,
        "run-1",
        "appending",
        (
            PartitionBatches(
                0, 41, (Upload(BATCH, 10_000, 33_554_432, AT_MS, AT_MS + 5, -5, 7, 2),)
            ),
            PartitionBatches(
                3,
                1,
                (
                    Upload(LATER, 1, 900, AT_MS, AT_MS, None, None, 0),
                    Upload(BATCH, 2, 9, 0, 0, None, None, 0),
                ),
            ),
        ),
        revocations=2,
    ),
    "commit_record_of_jobs.1": ApplicationRecord(
        "jobs", "5", 99, "job-3", "done", revocations=1, recent=("job-2", "job-1")
    ),
}


async def _written(name: str) -> bytes:
    store, value = Store(MemoryBackend()), REGISTERS[name]
    await Register(store, name, type(value)).update(lambda _: value)
    return bytes((await store.get(name)).data)


async def _read(name: str, golden: bytes) -> object:
    store = Store(MemoryBackend())
    await store.put(name, golden)
    return (await Register(store, name, type(REGISTERS[name])).read()).value


@pytest.mark.parametrize("name", REGISTERS)
def test_the_registers_of_transactions_are_written_and_read_as_they_always_were(name: str) -> None:
    golden = (HERE / f"{name}.json").read_bytes()
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written(name)) == golden
    assert asyncio.run(_read(name, golden)) == REGISTERS[name]


def test_applications_are_named_as_they_always_were() -> None:
    assert QUERY.application == "query-a2c038b590f9a7d4d0cc4d4d"
    assert CommitAttempt.of_version("nightly", 0, "t").application == "app-b7dcb502b35c42d240e688c8"
    assert (
        CommitAttempt.of_job("01J5T4R3KXBMZ7QV9N2WSP8YDH").application
        == "jobs-64754e0ca22029edcfba2d58"
    )
