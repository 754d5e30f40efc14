"""Members of one group share its partitions: they join, leave, die, stall and are fenced."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.consumer import ConsumedBatch
from headwater.buffer.group import GroupRegister
from headwater.buffer.group.consumer import GroupConsumer
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import Fenced
from headwater.testing import Process, Simulation, simulate
from tests.buffer.group.members import add, member, poll, rest, settle, stream_with, take
from tests.store.scripted import virtual


async def shares_of(*consumers: GroupConsumer) -> list[int]:
    """How many partitions each has, once they have settled; none has two readers."""
    for _ in range(8):
        for one in consumers:
            await one.poll(0.2)
        await runtime.sleep(0.5)
    numbers = [number for one in consumers for number in one.assignment]
    assert len(numbers) == len(set(numbers))
    return sorted(len(one.assignment) for one in consumers)


@virtual
async def test_two_and_three_members_have_equal_shares() -> None:
    stream = await stream_with(0, 0, 0, 0, 0)
    one = await member(stream)
    assert await shares_of(one) == [5]
    two = await member(stream)
    assert await shares_of(one, two) == [2, 3]
    three = await member(stream)
    assert await shares_of(one, two, three) == [1, 2, 2]
    for consumer in (one, two, three):
        await consumer.close()


@virtual
async def test_every_batch_is_delivered_to_one_member() -> None:
    stream = await stream_with(5, 5, 5, 5)
    one, two = await member(stream), await member(stream)
    await settle()
    places = [*await rest(one), *await rest(two)]
    assert sorted(places) == [(p, s) for p in range(4) for s in range(5)]
    await one.close()
    await two.close()


@virtual
async def test_a_member_that_leaves_gives_its_partitions_to_the_others() -> None:
    stream = await stream_with(3, 3)
    one, two = await member(stream), await member(stream)
    await settle()
    places = await take(one, 2)
    await one.close()
    await settle()
    assert two.assignment == {0, 1}
    places += await rest(two)
    assert sorted(places) == [(p, s) for p in range(2) for s in range(3)]
    await two.close()


@virtual
async def test_a_partition_is_released_after_what_was_delivered_is_acknowledged() -> None:
    stream = await stream_with(3, 3)
    one = await member(stream)
    batches = [await poll(one), await poll(one)]
    two = await member(stream)
    await runtime.sleep(2.0)
    assert two.assignment == frozenset()
    for batch in batches:
        await one.ack(batch)
    await settle()
    assert [*one.assignment, *two.assignment] == [0, 1]
    assert await take(two, 2) == [(1, 1), (1, 2)]
    await one.close()
    await two.close()


@virtual
async def test_while_it_drains_a_partition_is_not_delivered() -> None:
    stream = await stream_with(3, 3)
    one = await member(stream)
    batches = [await poll(one), await poll(one)]
    two = await member(stream)
    await runtime.sleep(2.0)
    assert one.assignment == {0}
    batches += [await poll(one), await poll(one)]
    assert [batch.partition for batch in batches[2:]] == [0, 0]
    assert await one.poll(0.5) is None
    for batch in batches:
        await one.ack(batch)
    await one.close()
    await two.close()


@virtual
async def test_after_a_release_an_acknowledgement_is_fenced_and_names_the_batch() -> None:
    stream = await stream_with(1, 1)
    one = await member(stream)
    batches = {batch.partition: batch for batch in [await poll(one), await poll(one)]}
    two = await member(stream)
    await runtime.sleep(15.0)  # a lease passes, and it is released without acknowledgements
    assert two.assignment == {1}
    with pytest.raises(Fenced, match="batch 0 of stream 'orders', partition 1"):
        await one.ack(batches[1])
    await one.ack(batches[0])
    again = await poll(two)
    assert (again.partition, again.sequence) == (1, 0)
    await one.close()
    await two.close()


@virtual
async def test_a_member_beyond_the_number_of_partitions_stands_by() -> None:
    stream = await stream_with(3)
    one, two = await member(stream), await member(stream)
    await settle()
    assert await two.poll(2.0) is None
    await take(one, 1)
    await one.close()
    assert await take(two, 2) == [(0, 1), (0, 2)]
    await two.close()


@virtual
async def test_a_member_that_does_not_poll_releases_and_joins_again() -> None:
    stream = await stream_with(2, 2)
    one = await member(stream, max_poll_interval_s=60.0)
    two = await member(stream)
    await settle()
    await poll(one)
    await runtime.sleep(75.0)
    assert not one.assignment
    assert two.assignment == {0, 1}
    await one.poll(0.5)
    await settle()
    assert len(one.assignment) == len(two.assignment) == 1
    await one.close()
    await two.close()


class Reader:
    """A member in a process of its own, which reads without end."""

    def __init__(self, simulation: Simulation, name: str, stream: Stream) -> None:
        self.process: Process = simulation.process(name)
        self.stream = stream
        self.consumer: GroupConsumer | None = None
        self.batches: list[ConsumedBatch] = []
        self.fenced = 0
        self.process.spawn(self.run())

    async def run(self) -> None:
        self.consumer = await member(self.stream)
        async for batch in self.consumer:
            await runtime.sleep(0.1)
            self.batches.append(batch)
            try:
                await self.consumer.ack(batch)
            except Fenced:
                self.fenced += 1

    @property
    def assignment(self) -> frozenset[int]:
        assert self.consumer is not None
        return self.consumer.assignment


def places(*readers: Reader) -> set[tuple[int, int]]:
    return {(batch.partition, batch.sequence) for one in readers for batch in one.batches}


def test_the_partitions_of_a_dead_member_are_free_after_its_timeout() -> None:
    async def main(simulation: Simulation) -> None:
        stream = await stream_with(2, 2)
        one, two = Reader(simulation, "one", stream), Reader(simulation, "two", stream)
        await settle()
        one.process.kill()
        await add(stream, 0, 2)
        await add(stream, 1, 2)
        await runtime.sleep(8.0)
        assert len(two.assignment) == 1
        await runtime.sleep(6.0)
        assert two.assignment == {0, 1}
        assert places(one, two) == {(p, s) for p in range(2) for s in range(4)}
        two.process.kill()

    simulate(main)


@pytest.mark.parametrize("how", ["freeze", "suspend"])
def test_a_member_that_stalls_finds_its_partitions_gone_and_gets_new_ones(how: str) -> None:
    async def main(simulation: Simulation) -> None:
        stream = await stream_with(2, 2)
        one, two = Reader(simulation, "one", stream), Reader(simulation, "two", stream)
        await settle()
        getattr(one.process, how)(60.0)
        await add(stream, 0, 2)
        await add(stream, 1, 2)
        await runtime.sleep(30.0)
        assert two.assignment == {0, 1}
        before = len(one.batches)
        await runtime.sleep(45.0)
        assert len(one.assignment) == len(two.assignment) == 1
        assert places(one, two) == {(p, s) for p in range(2) for s in range(4)}
        assert len(one.batches) <= before + 1
        one.process.kill()
        two.process.kill()

    simulate(main)


def test_what_a_fenced_member_acknowledges_does_not_move_the_position() -> None:
    async def main(simulation: Simulation) -> None:
        stream = await stream_with(2)
        slow = await member(stream)
        first = await poll(slow)
        await slow._claimant.stop()  # no heartbeats: to the others it is dead
        other = await member(stream)
        await runtime.sleep(12.0)
        batch = await poll(other)
        assert batch.sequence == 0
        await slow.ack(first)
        with pytest.raises(Fenced):
            await slow.flush()
        assert await other.committed(0) == 1
        _, positions = await GroupRegister(stream, "billing").positions()
        assert positions == {0: 1}
        await other.close()
        await slow.close()

    simulate(main)


@virtual
async def test_a_poll_that_waits_ends_when_another_task_cancels_it() -> None:
    stream = await stream_with(0)
    consumer = await member(stream)
    polling = runtime.spawn(consumer.poll(), name="poll")
    await runtime.sleep(1.0)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    await add(stream, 0, 1)
    assert (await poll(consumer)).sequence == 0
    await consumer.close()
