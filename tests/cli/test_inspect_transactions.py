"""`headwater inspect queue` on the registers of sinks: who wrote, what, and whether it is there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.record import CommitAppender, CommitAttempt
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.store import open_store
from tests.buffer.transaction.given import upload
from tests.cli.conftest import Invoke

QUERY = "5b2b9a3e-6f1b-4c2d-8000-000000000001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def given(root: Path, *attempts: CommitAttempt, appends: bool = True) -> None:
    """Each attempt writes two rows to one partition and one to another, and commits."""

    async def write(stream: Stream, attempt: CommitAttempt) -> None:
        done = await upload(stream, attempt, 0, {0: ["a", "b"], 1: ["c"]})
        await TransactionCommitter(stream, attempt).commit([done])

    async def go() -> None:
        store = open_store(f"file://{root}")
        stream = await create_stream(store, "orders", partitions=2, exists_ok=True)
        for attempt in attempts:
            await write(stream, attempt)

    if appends:
        asyncio.run(go())
        return
    lost = mock.patch.object(
        CommitAppender, "finish", side_effect=Unavailable("the driver is lost")
    )
    with lost, pytest.raises(OutcomeUnknown):
        asyncio.run(go())


def shown(invoke: Invoke, root: Path, name: str) -> tuple[dict[str, Any], str]:
    """What is told of the one register of this name, as JSON and in words."""
    [path] = (root / "streams/orders/txn").rglob(name)
    told: dict[str, Any] = json.loads(invoke("inspect", "queue", str(path), "--json").stdout)
    return told, invoke("inspect", "queue", str(path)).stdout


def test_what_a_query_committed_last(invoke: Invoke, root: Path) -> None:
    given(root, *(CommitAttempt.of_query(QUERY, number, "run-7") for number in range(3)))
    told, words = shown(invoke, root, "query-*.json")
    assert told["kind"] == "transactions: what one writer committed last"
    assert told["written_by"] == f"streaming query {QUERY}"
    assert told["last_committed"] == "micro-batch 2"
    assert told["committed_by_attempt"] == "run-7"
    assert told["state"] == "all of it appended"
    assert told["appends_as_producer"].startswith("sink-query-")
    assert "to_append" not in told
    assert "micro-batch 2" in words
    assert "is not written again" in words


def test_what_a_lost_driver_left_to_append(invoke: Invoke, root: Path) -> None:
    given(root, CommitAttempt.of_version("nightly", 20260131, "job"), appends=False)
    told, words = shown(invoke, root, "app-*.json")
    assert told["written_by"] == "batch jobs of txnAppId nightly"
    assert told["last_committed"] == "txnVersion 20260131"
    assert told["state"] == "committed, and being appended"
    assert [(one["partition"], one["rows"], one["batches"]) for one in told["to_append"]] == [
        (0, 2, 1),
        (1, 1, 1),
    ]
    assert "the writer's next run finishes it" in words


def test_jobs_that_name_nothing(invoke: Invoke, root: Path) -> None:
    given(root, *(CommitAttempt("jobs", "3", None, token) for token in "abc"))
    told, _ = shown(invoke, root, "jobs-*.json")
    assert told["written_by"] == "batch jobs that name nothing, slot 3"
    assert told["last_committed"] == "the job counted 2"
    assert told["jobs_remembered_before_it"] == 2


def test_one_that_was_only_ever_ended(invoke: Invoke, root: Path) -> None:
    async def abort() -> None:
        stream = await create_stream(open_store(f"file://{root}"), "orders")
        await TransactionCommitter(stream, CommitAttempt.of_query(QUERY, 0, "run")).abort([])

    asyncio.run(abort())
    told, _ = shown(invoke, root, "query-*.json")
    assert told["written_by"] == "no writer yet"
    assert told["last_committed"] == "nothing yet"
    assert told["ended_before_they_committed"] == 1


def test_what_open_transactions_hold(invoke: Invoke, root: Path) -> None:
    given(root, CommitAttempt.of_query(QUERY, 0, "run-7"))
    given(root, CommitAttempt.of_version("nightly", 1, "job"), appends=False)
    told, words = shown(invoke, root, "holds.json")
    assert told["kind"].startswith("holds.json: what open transactions keep")
    assert told["open_transactions"] == 2
    assert [(one["attempt"], one["ends_unrenewed_after"]) for one in told["holds"]] == [
        ("job", "24 h"),
        ("run-7", "24 h"),
    ]
    assert "renewed 1 times" in words
    assert "being ended" not in words
