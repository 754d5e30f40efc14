"""Readings that meet others: Python's followers, groups that race, streams that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, Follower, list_dead_letters
from headwater.buffer.queue.contract import QueuePosition, Uncounted
from headwater.buffer.stream import alter_stream, delete_stream
from headwater.core.errors import Fenced, HeadwaterError, Refused, Trimmed, Unavailable
from headwater.spark.source import bounds
from headwater.spark.source.checkpoint import Membership, gather_limited
from headwater.spark.source.feed import QueueOwner
from headwater.spark.source.offset import StreamPartition
from headwater.store import locations
from tests.spark.source.engine import Checkpoint, Engine, positions
from tests.spark.source.source_world import Standing, World, rows_of, values_of, wait

LIMITS: Any = pytest.importorskip("pyspark.sql.streaming.datasource")
ALL = LIMITS.ReadAllAvailable()


def _expire(world: World) -> None:
    async def go() -> None:
        stream = await alter_stream(world.store, "orders", retention_ms=0, gc_grace_ms=0)
        async with await Consumer.open(stream, group="owner", gc=False) as consumer:
            while (batch := await consumer.next_batch()) is not None:
                await consumer.ack(batch.sequence)
        await stream.collector(0).collect(stream.retention())

    wait(go())


def _followed(world: World, batches: int) -> None:
    """A follower in Python that has come so far under the group's name."""

    async def go() -> None:
        async with await Follower.open(world.store, "orders", group="g") as follower:
            for _ in range(batches):
                batch = await follower.next_batch()
                assert batch is not None
                await follower.commit(batch.sequence)

    wait(go())


@pytest.mark.parametrize(("done", "left"), [(0, [b"a", b"b", b"c"]), (1, [b"c"]), (2, [])])
def test_a_group_that_followed_in_python_goes_on_in_spark(
    world: World, done: int, left: list[bytes]
) -> None:
    world.stream()
    world.produce([b"a", b"b"])
    world.produce([b"c"])
    _followed(world, done)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint).run()
    assert checkpoint.values == left


def test_a_follower_of_python_whose_place_is_gone_is_told_of_it(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    world.produce([b"b"])
    _followed(world, 1)
    _expire(world)
    with pytest.raises(Trimmed, match="data loss"):
        Engine(world.stream_reader(), Checkpoint()).run()


class RacedFeed:
    """A partition that another group takes while this one is about to."""

    stream_id, origin = "id", b""

    def __init__(self, winner: str, error: type[HeadwaterError] = Refused) -> None:
        self.part = StreamPartition("orders", 0)
        self._winner = winner
        self._error = error
        self._taken = False

    async def owner(self) -> QueueOwner:
        return QueueOwner(self._winner if self._taken else "", QueuePosition(0, 1))

    async def own(self, group: str, start: QueuePosition, *, query: str, take_over: bool) -> None:
        self._taken = True
        raise self._error(f"{self._winner} owns it")


@pytest.mark.parametrize("error", [Refused, Fenced])
def test_whoever_loses_the_race_for_a_stream_follows(
    world: World, error: type[HeadwaterError]
) -> None:
    feed: Any = RacedFeed("faster", error)
    membership = Membership("g", take_over=False)
    wait(membership.join([feed], {feed.part: QueuePosition(0, 1)}, "q"))
    assert not membership.owns("orders")
    same: Any = RacedFeed("g")
    with pytest.raises(Refused, match="g owns it"):
        wait(Membership("g", take_over=False).join([same], {same.part: QueuePosition(0, 1)}, "q"))


def test_a_deleted_stream_is_not_matched(world: World) -> None:
    for name in ("orders-a", "orders-b"):
        world.stream(name)
        world.produce([name.encode()], name)
    wait(delete_stream(world.store, "orders-a"))
    assert values_of(world.read(subscribePattern="orders-.*")) == [b"orders-b"]


def test_a_checkpoint_with_a_partition_that_is_not_read_any_more_is_refused(world: World) -> None:
    world.stream(partitions=2)
    world.produce([b"a"], partition=1)
    reader = world.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    fewer = world.stream_reader(assign='{"orders": [0]}')
    with pytest.raises(Refused, match=r"partition 1: .* does not read it now.*not in the options"):
        fewer.partitions(start, end)
    assert positions(fewer.latestOffset(end, ALL)) == positions(end)


@pytest.mark.parametrize("on_bad_batch", ["fail", "deadLetter"])
def test_a_batch_that_nobody_can_count_stops_a_query_or_is_noted(
    world: World, clock: Standing, on_bad_batch: str
) -> None:
    world.stream(format="v1")
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(onBadBatch=on_bad_batch), checkpoint, available_now=False)
    engine.step()
    world.produce([b"a"])

    async def damage() -> None:
        found = [meta.key async for meta in world.store.list("streams/orders/0/ingest")]
        await world.store.delete(next(key for key in found if key.endswith(".batch")))

    wait(damage())
    world.produce([b"b"])
    clock.pass_s(10)
    if on_bad_batch == "fail":
        with pytest.raises(Uncounted):
            engine.step()
        return
    engine.run()
    assert checkpoint.values == [b"b"]
    assert [letter.sequence for letter in wait(list_dead_letters(world.opened()))] == [0]


def test_what_goes_while_a_read_is_planned_counts_only_if_it_was_named(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.stream()
    world.produce([b"a"])
    _expire(world)
    world.produce([b"b"])

    async def stale(*_: object) -> QueuePosition:
        return QueuePosition(0, 1)

    monkeypatch.setattr(bounds, "starting_position", stale)
    assert values_of(world.read()) == [b"b"]
    named = '{"orders": {"0": 1}}'
    with pytest.raises(Trimmed, match="Wanted from offset 1"):
        world.read(startingOffsets=named)
    assert values_of(world.read(startingOffsets=named, failOnDataLoss="false")) == [b"b"]
    assert "data loss" in caplog.text


def test_a_forked_child_opens_stores_of_its_own(world: World) -> None:
    assert locations.shared_store(world.url) is world.store
    locations._forget_in_child()
    assert locations.shared_store(world.url) is not world.store


def test_a_task_says_what_it_reads(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader = world.batch_reader()
    (task,) = reader.partitions()
    assert repr(task) == "<1 slices of orders/0>"
    assert rows_of(reader, [task]).num_rows == 1


def test_what_is_asked_beside_a_question_that_fails_comes_to_its_end_first() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise Unavailable("not today")

    async def takes_longer() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append("the other")

    async def go() -> list[str]:
        with pytest.raises(Unavailable):
            await gather_limited([fails(), takes_longer()])
        return list(ended)

    assert asyncio.run(go()) == ["the other"]
