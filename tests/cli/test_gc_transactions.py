"""`headwater gc` and transactions that are open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa

from headwater.buffer.records import from_values
from headwater.buffer.stream import create_stream
from headwater.buffer.transaction.commit import TaskUploads, TransactionCommitter
from headwater.buffer.transaction.record import CommitAttempt
from headwater.buffer.transaction.upload import Uploader
from headwater.store import Store, open_store
from tests.cli.conftest import Invoke

JOB = CommitAttempt.of_job("job")


async def upload(store: Store) -> TaskUploads:
    stream = await create_stream(store, "orders", gc_grace_ms=0)
    uploader = Uploader(stream, JOB, 0)
    await uploader.add(0, from_values(pa.array([b"a"], pa.binary())))
    return await uploader.finish()


async def abort(store: Store, done: TaskUploads) -> None:
    stream = await create_stream(store, "orders", exists_ok=True)
    await TransactionCommitter(stream, JOB).abort([done])


def test_what_an_open_transaction_uploaded_stays_and_is_told(
    invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    done = asyncio.run(upload(open_store(url)))
    shown = invoke("gc", url, "orders")
    assert shown.exit_code == 0, shown.stderr
    assert "1 open transactions: their uploads stay" in shown.stdout
    told = json.loads(invoke("gc", url, "orders", "--json").stdout)
    assert told["open_transactions"] == 1
    assert told["partitions"][0]["batches_orphaned"] == 0
    asyncio.run(abort(open_store(url), done))
    told = json.loads(invoke("gc", url, "orders", "--json").stdout)
    assert told["open_transactions"] == 0
    # The abort does not know whether such a job committed long ago, and leaves it to this.
    assert told["partitions"][0]["batches_orphaned"] == 1
    assert "open transactions" not in invoke("gc", url, "orders").stdout
