"""Dead letters and positions of groups, as they were first written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.buffer.consumer import DeadLetter, Follower, FollowerRegister, list_dead_letters
from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.group import GroupEpoch, GroupRegister
from headwater.buffer.queue.contract import Descriptor, QueuePosition
from headwater.core import runtime
from headwater.store import Store
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member
from tests.buffer.consumer.fakes import FakeQueue, FakeStream
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent
BATCH = "01J5T4R3KXBMZ7QV9N2WSP8YDH"
LOST = Descriptor(17, f"batches/{BATCH}", 101, 3, 400, 5, 9, None, None, BATCH, "größe", 4)


class FixedClock(FixedRuntime):
    """It is always the same moment."""

    def wall_ms(self) -> int:
        return 1_767_225_600_000


async def _written() -> tuple[bytes, bytes]:
    queue = FakeQueue()
    stream = queue.stream()
    await write_dead_letter(stream, 0, LOST, "NotFound: gone")
    follower = await Follower.open(stream, group="audit")
    await queue.add([b"a"], at_ms=5)
    await follower.next_descriptors(1)
    await follower.commit(0)
    letter, position = [meta.key async for meta in queue.store.list("streams")]
    return await _bytes(queue.store, letter), await _bytes(queue.store, position)


async def _bytes(store: Store, key: str) -> bytes:
    return bytes((await store.get(key)).data)


async def _read(letter: bytes, position: bytes) -> tuple[list[DeadLetter], int | None]:
    queue = FakeQueue()
    await queue.add([b"a"])
    stream: FakeStream = queue.stream()
    await queue.store.put(f"{stream.dead_letter_prefix(0)}/{17:020d}.json", letter)
    await queue.store.put(f"streams/orders/0/groups/{stream.id}/audit.json", position)
    follower = await Follower.open(stream, group="audit")
    return await list_dead_letters(stream), follower.committed


def test_dead_letters_and_positions_are_written_and_read_as_they_always_were() -> None:
    letter = (HERE / "dead_letter.1.json").read_bytes()
    position = (HERE / "group_position.1.json").read_bytes()
    with runtime.installed(FixedClock()):
        assert asyncio.run(_written()) == (letter, position)
    (found,), committed = asyncio.run(_read(letter, position))
    assert (found.sequence, found.first_lsn, found.last_lsn) == (17, 101, 103)
    assert (found.cause, found.producer) == ("NotFound: gone", "größe")
    assert committed == 0


async def _within_a_batch() -> bytes:
    queue = FakeQueue()
    await FollowerRegister(queue.stream(), 0, "audit").begin(QueuePosition(7, 1234))
    (key,) = [meta.key async for meta in queue.store.list("streams")]
    return await _bytes(queue.store, key)


async def _read_within(position: bytes) -> tuple[int, int | None]:
    queue = FakeQueue()
    stream: FakeStream = queue.stream()
    await queue.store.put(f"streams/orders/0/groups/{stream.id}/audit.json", position)
    found = await FollowerRegister(stream, 0, "audit").read()
    assert found is not None
    return found.next_sequence, found.lsn


def test_positions_within_a_batch_are_written_and_read_as_they_always_were() -> None:
    position = (HERE / "group_position.2.json").read_bytes()
    with runtime.installed(FixedClock()):
        assert asyncio.run(_within_a_batch()) == position
    assert asyncio.run(_read_within(position)) == (7, 1234)
    before = (HERE / "group_position.1.json").read_bytes()
    assert asyncio.run(_read_within(before)) == (1, None)


async def _group_written() -> tuple[bytes, bytes, bytes]:
    stream = FakeQueue().stream()
    query, consumers = GroupRegister(stream, "etl"), GroupRegister(stream, "billing")
    await query.begin("query", {0: 7})
    epoch = await query.start_query("4b1d", is_new=True)
    await query.count(epoch, 3, closed=True)
    await query.take(0, epoch)
    await query.acknowledge(0, epoch, 12)
    await consumers.begin("consumers", {0: 7})
    member, claim = Member(2, 60.0, 1, "host-a", 1_767_225_600_000), Claim("m1", 1)
    await consumers.share(lambda _: ClaimState(1, ClaimTable({"m1": member}, {"0": claim}, 1)))
    return (
        await _bytes(stream.store, f"streams/orders/groups/{stream.id}/billing.json"),
        await _bytes(stream.store, f"streams/orders/groups/{stream.id}/etl.json"),
        await _bytes(stream.store, f"streams/orders/0/groups/{stream.id}/etl.json"),
    )


async def _group_read(consumers: bytes, query: bytes, position: bytes) -> None:
    stream = FakeQueue().stream()
    await stream.store.put(f"streams/orders/groups/{stream.id}/billing.json", consumers)
    await stream.store.put(f"streams/orders/groups/{stream.id}/etl.json", query)
    await stream.store.put(f"streams/orders/0/groups/{stream.id}/etl.json", position)
    record, positions = await GroupRegister(stream, "etl").positions()
    assert (record.kind, record.epoch, record.resets, positions) == ("query", 1, 0, {0: 12})
    assert (record.query, record.step, record.closed) == ("4b1d", 3, True)
    held = (await GroupRegister(stream, "billing").read()).claim_of(0)
    assert held == GroupEpoch(1, 0, {"0": 7})


def test_groups_and_their_positions_are_written_and_read_as_they_always_were() -> None:
    names = "group_of_consumers.1.json", "group_of_query.1.json", "group_position.3.json"
    stored = tuple((HERE / name).read_bytes() for name in names)
    with runtime.installed(FixedClock()):
        assert asyncio.run(_group_written()) == stored
    asyncio.run(_group_read(*stored))
