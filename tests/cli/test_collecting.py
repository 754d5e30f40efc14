"""`headwater gc` goes through partitions side by side, and says how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.queue.contract import Collected, Collector
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, create_stream
from headwater.cli.stream_records import collect_all
from headwater.cli.terminal import AT_ONCE
from headwater.core import limits, runtime
from headwater.core.errors import Unavailable
from headwater.store import MemoryBackend, Store
from tests.cli.conftest import Invoke
from tests.store.scripted import virtual


class Waiting(Collector):
    """One that waits for a floor to settle, as a full pass may."""

    def __init__(self, partition: int, under_way: set[int]) -> None:
        self._partition = partition
        self._under_way = under_way

    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        assert full
        self._under_way.add(self._partition)
        assert len(self._under_way) <= AT_ONCE
        await runtime.sleep(limits.FLOOR_SETTLE_S)
        self._under_way.remove(self._partition)
        if self._partition == 1:
            raise Unavailable("the store does not answer")
        return Collected(chunks_expired=self._partition)


async def waiting_stream(monkeypatch: pytest.MonkeyPatch, partitions: int) -> Stream:
    stream = await create_stream(Store(MemoryBackend()), "orders", partitions=partitions)
    under_way: set[int] = set()
    monkeypatch.setattr(Stream, "collector", lambda _, partition: Waiting(partition, under_way))
    return stream


@virtual
async def test_partitions_wait_together_so_many_at_a_time() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        wanted = [0, *range(2, 2 * AT_ONCE)]
        stream = await waiting_stream(monkeypatch, 2 * AT_ONCE)
        ended_s: list[float] = []
        started_s = runtime.monotonic_s()
        reports = await collect_all(
            stream, wanted, full=True, advance=lambda: ended_s.append(runtime.monotonic_s())
        )
    assert list(reports) == wanted
    assert [report.chunks_expired for report in reports.values()] == wanted
    turns = [round((at_s - started_s) / limits.FLOOR_SETTLE_S) for at_s in ended_s]
    assert turns == [1] * AT_ONCE + [2] * (AT_ONCE - 1)


@virtual
async def test_an_error_in_one_partition_stops_no_other() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stream = await waiting_stream(monkeypatch, 3)
        done: list[Any] = []
        with pytest.raises(Unavailable):
            await collect_all(stream, range(3), full=True, advance=lambda: done.append(1))
    assert len(done) == 2


def test_a_full_pass_says_on_standard_error_for_how_long_it_may_wait(
    invoke: Invoke, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    assert invoke("stream", "create", url, "orders", "--partitions=17").exit_code == 0
    full = invoke("gc", url, "orders", "--full")
    assert (full.exit_code, full.stderr) == (
        0,
        "waiting up to 180 s before chunks of the queue may be deleted\n",
    )
    assert "waiting" not in full.stdout
    assert invoke("gc", url, "orders").stderr == ""
    assert invoke("stream", "create", url, "old", "--format=v1").exit_code == 0
    assert invoke("gc", url, "old", "--full").stderr == ""
