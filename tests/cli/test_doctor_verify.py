"""`headwater doctor --verify` reads everything that has a checksum, and names what is damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, Follower
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream, delete_stream
from headwater.cli.doctor_checks import Finding
from headwater.cli.doctor_command import Contents, check_contents
from headwater.cli.render import Progress
from headwater.core.errors import Unavailable
from headwater.store import MemoryBackend, Object, Store, open_store
from headwater.store.objects import ByteRange
from tests.cli.conftest import Invoke
from tests.tier.segments.given import encoded, orders

LARGE = b"x" * 40_000
"""A record that does not ride in its entry."""
SEGMENT = encoded([orders(1, 6)], sequences=(0, 1))


async def fill(store: Store) -> None:
    """Two native streams and a published one, consumed and followed; one that is deleted."""
    for name, format_name in (("orders", "native"), ("clicks", "native"), ("old", "v1")):
        stream = await create_stream(store, name, partitions=2, format=format_name)
        async with Producer(stream, linger_ms=0) as producer:
            for number in range(4):
                value = LARGE if number % 2 else b"small"
                await (await producer.produce([value] * 3, partition=number // 2))
        async with await Consumer.open(stream, group="billing", gc=False) as consumer:
            await consumer.next_batch()
            await consumer.ack_through(0)
    async with await Follower.open(store, "orders", group="audit") as follower:
        await follower.next_batch()
        await follower.commit(0)
    await create_stream(store, "gone")
    await delete_stream(store, "gone")


async def verified(store: Store) -> tuple[list[Finding], Contents]:
    contents = Contents()
    return [one async for one in check_contents(store, contents, Progress(quiet=True))], contents


async def flipped(store: Store, key: str) -> bytes:
    """Damage one bit in the middle of an object; what it was."""
    data = bytes((await store.get(key)).data)
    middle = len(data) // 2
    await store.put(key, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    return data


def run(store: Store, act: Callable[[Store], Any]) -> Any:
    async def main() -> Any:
        async with store:
            return await act(store)

    return asyncio.run(main())


def test_what_is_whole_is_well_on_every_store(any_store: Store) -> None:
    async def act(store: Store) -> None:
        await fill(store)
        findings, contents = await verified(store)
        assert [one.status for one in findings] == ["ok"] * 4
        assert {name: one.batches for name, one in contents.streams.items()} == {
            "clicks": 4,
            "old": 4,
            "orders": 4,
        }
        assert sum(one.records for one in contents.streams.values()) == 36
        assert contents.objects > 20

    run(any_store, act)


def test_a_flipped_bit_is_named_with_object_stream_partition_and_offsets(any_store: Store) -> None:
    async def act(store: Store) -> None:
        await fill(store)
        (key,) = [one.key async for one in store.list("streams/orders/1") if "/batches/" in one.key]
        await flipped(store, key)
        findings, contents = await verified(store)
        (bad,) = [one for one in findings if one.status == "wrong"]
        assert bad.name == "contents of orders"
        assert f"partition 1, batch 1, LSNs 4 to 6, {key}: " in bad.found
        assert "checksum" in bad.found
        assert "--skip-unreadable" in bad.cure
        (batch,) = contents.streams["orders"].bad
        assert (batch.location, batch.partition) == (key, 1)
        assert (batch.first_lsn, batch.last_lsn) == (4, 6)

    run(any_store, act)


def is_published(key: str) -> bool:
    """Whether an object is in a format that has no checksum."""
    return key.endswith((".batch", "/manifest"))


def test_a_bit_flipped_in_any_object_that_is_used_is_found() -> None:
    async def act(store: Store) -> None:
        await fill(store)
        keys = [one.key async for one in store.list("streams") if not is_published(one.key)]
        assert len(keys) > 30
        for key in keys:
            data = await flipped(store, key)
            findings, _ = await verified(store)
            wrong = [one for one in findings if one.status == "wrong"]
            assert wrong, key
            name = key.split("/")[1]
            assert any(name in one.name or key in one.found for one in wrong), (key, wrong)
            await store.put(key, data)
        findings, _ = await verified(store)
        assert all(one.status == "ok" for one in findings)

    run(Store(MemoryBackend(versions_by_content=True)), act)


def test_a_damaged_segment_and_event_are_named() -> None:
    async def act(store: Store) -> None:
        await fill(store)
        segment = f"streams/orders/0/segments/x/{SEGMENT.description.segment_id}.parquet"
        event = f"metadata/7/{3:020d}"
        await store.put(segment, bytes(SEGMENT.data))
        findings, before = await verified(store)
        assert all(one.status == "ok" for one in findings)
        await flipped(store, segment)
        await store.put(event, b"HWE1 and no more")
        findings, contents = await verified(store)
        assert [one.key for one in contents.bad] == [event, segment]
        assert [one.found.split(":")[0] for one in findings if one.status == "wrong"] == [
            event,
            segment,
        ]
        assert contents.objects == before.objects + 1

    run(Store(MemoryBackend(versions_by_content=True)), act)


class Away(MemoryBackend):
    """Memory that stops answering for some objects."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if "/batches/" in key:
            raise Unavailable("no route to host")
        return await super().get(key, byte_range)


def test_a_store_that_stops_answering_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.core.retry import RetryPolicy

    async def act(store: Store) -> None:
        await fill(store)
        findings, _ = await verified(store)
        assert findings[-1].status == "wrong"
        assert "not read to the end: Unavailable" in findings[-1].found

    run(Store(Away(versions_by_content=True), policy=RetryPolicy(attempts=1)), act)


# The command


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("headwater.cli.doctor_command._spark", lambda: iter(()))
    url = f"file://{tmp_path}/store"
    run(open_store(url), fill)
    return url


def test_the_command_says_what_it_read_and_ends_with_1_if_something_is_damaged(
    invoke: Invoke, filled: str, tmp_path: Path
) -> None:
    result = invoke("doctor", filled, "--verify")
    assert result.exit_code == 0, result.output
    assert "contents of orders   every checksum matches: 4 batches, 12 records" in result.stdout
    batch = next((tmp_path / "store" / "streams" / "orders" / "0").rglob("batches/*"))
    data = bytearray(batch.read_bytes())
    data[100] ^= 4
    batch.write_bytes(data)
    result = invoke("doctor", filled, "--verify")
    assert result.exit_code == 1
    assert batch.name in result.stdout
    assert "1 to repair" in result.stdout
    assert f"read {filled} orders --skip-unreadable" in result.stdout
    assert invoke("doctor", filled).exit_code == 0  # which reads no batches
    report = json.loads(invoke("doctor", filled, "--verify", "--json").stdout)
    assert report["well"] is False
    (bad,) = report["verified"]["streams"]["orders"]["bad"]
    assert bad["location"].endswith(batch.name)
    assert (bad["partition"], bad["first_lsn"], bad["last_lsn"]) == (0, 4, 6)


def test_there_is_nothing_to_verify_without_a_store(invoke: Invoke) -> None:
    result = invoke("doctor", "--verify", COLUMNS="200")
    assert result.exit_code == 2
    assert "name the store to read" in result.stderr
