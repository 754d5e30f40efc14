"""Dead letters and positions of groups, as they were first written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.buffer.consumer import DeadLetter, Follower, FollowerRegister, list_dead_letters
from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.queue import QueuePosition
from headwater.buffer.queue.contract import Descriptor
from headwater.core import runtime
from headwater.store import Store
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
