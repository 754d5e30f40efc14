"""Beside producers of others that never pause, an append gets in soon, and gives up in time."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import NamedTuple

import pytest

from headwater.buffer.queue.v1.batch_format import encode_batch
from headwater.buffer.queue.v1.manifest_format import MetadataItem, decode_manifest, encode_manifest
from headwater.core import limits, runtime
from headwater.core.errors import Contended
from headwater.core.retry import RetryPolicy
from headwater.store import ByteRange, MemoryBackend, Object, PreconditionFailed, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.testing import Simulation, simulate
from tests.buffer.queue_v1.given import MANIFEST, PREFIX, Queue, uploaded

REQUEST_S = (0.01, 0.05)
APPENDS = 30
PAUSE_S = 0.1


class Far(MemoryBackend):
    """Memory at the other end of a network: half of a request's time goes by on either way."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await _half_way()
        found = await super().get(key, byte_range)
        await _half_way()
        return found

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        await _half_way()
        try:
            return await super().put(key, data, condition)
        finally:
            await _half_way()

    async def append_greedily(self, name: str) -> None:
        """Read, write, and again, as a producer of others that always has something to append."""
        location = f"{PREFIX}/{name}.batch"
        await MemoryBackend.put(self, location, encode_batch([b"theirs"]))
        while True:
            found = await self.get(MANIFEST)
            manifest = decode_manifest(found.data).appended([(location, [MetadataItem(0, 1, b"")])])
            try:
                await self.put(MANIFEST, encode_manifest(manifest), found.version)
            except PreconditionFailed:
                continue


async def _half_way() -> None:
    await runtime.sleep(runtime.random().uniform(*REQUEST_S) / 2)


class Measured(NamedTuple):
    """What appends took, one by one."""

    seconds: list[float]
    writes: list[int]


def _measured(others: int) -> Measured:
    """Append some batches, one after the other, beside so many that never pause."""
    measured = Measured([], [])

    async def main(_: Simulation) -> None:
        far = Far()
        queue = await Queue(Store(far)).made()
        greedy = [asyncio.create_task(far.append_greedily(f"other{n}")) for n in range(others)]
        appender = queue.appender()
        await appender.open()
        for number in range(APPENDS):
            batch = await uploaded(appender, b"ours %d" % number)
            started_s, before = runtime.monotonic_s(), appender.counters.writes
            await appender.append([batch])
            measured.seconds.append(runtime.monotonic_s() - started_s)
            measured.writes.append(appender.counters.writes - before)
            await runtime.sleep(runtime.random().uniform(0, PAUSE_S))
        for task in greedy:
            task.cancel()

    simulate(main, seed=1)
    return measured


@pytest.mark.parametrize("others", [1, 4])
def test_an_append_gets_in_beside_producers_that_never_pause(others: int) -> None:
    alone, beside = _measured(0), _measured(others)
    assert set(alone.writes) == {1}
    assert max(beside.writes) <= limits.V1_ATTEMPTS // 2
    assert median(beside.seconds) <= 10 * median(alone.seconds)
    assert max(beside.seconds) <= 50 * median(alone.seconds)


def test_races_that_are_lost_without_waiting_end_in_time_too() -> None:
    async def main(_: Simulation) -> None:
        far = Far()
        queue = await Queue(Store(far)).made()
        appender = queue.appender(policy=RetryPolicy(deadline_s=0.5))
        batch = await uploaded(appender, b"ours")
        plain = far.put

        async def loses(key: str, data: Buffer, condition: Condition = None) -> Version:
            if key == MANIFEST:
                now = await MemoryBackend.get(far, MANIFEST)
                theirs = decode_manifest(now.data).appended([(f"{PREFIX}/o.batch", [])])
                await MemoryBackend.put(far, MANIFEST, encode_manifest(theirs))
            return await plain(key, data, condition)

        far.put = loses  # type: ignore[method-assign]
        started_s = runtime.monotonic_s()
        with pytest.raises(Contended, match="other writers won"):
            await appender.append([batch])
        assert runtime.monotonic_s() - started_s < 0.5 + 4 * REQUEST_S[1]
        assert 1 < appender.counters.writes < limits.V1_ATTEMPTS

    simulate(main, seed=1)
