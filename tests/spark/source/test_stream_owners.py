"""Stream readers that own, follow, fence and take over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.buffer.consumer import Ownership
from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.stream import alter_stream
from headwater.core.errors import Fenced, Refused, Trimmed
from headwater.spark.source import feed
from headwater.spark.source.feed import QueueOwner
from tests.spark.source.engine import Checkpoint, Engine
from tests.spark.source.micro_batch_rows import ALL, next_rows
from tests.spark.source.source_world import Standing, World, wait


def test_the_first_group_owns_and_another_follows(world: World) -> None:
    world.stream()
    world.produce([b"a", b"b"])
    Engine(world.stream_reader(groupId="owner"), Checkpoint()).run()
    follower = Checkpoint()
    Engine(world.stream_reader(groupId="audit"), follower).run()
    assert follower.values == [b"a", b"b"]
    assert (world.state().group, world.state().epoch) == ("owner", 1)
    world.produce([b"c"])
    again = Checkpoint()
    Engine(world.stream_reader(groupId="audit"), again).run()
    assert again.values == [b"c"]
    assert world.state().pending == 1


def test_a_second_run_of_a_query_fences_the_first_which_says_so(
    world: World, clock: Standing
) -> None:
    world.stream()
    world.produce([b"a"])
    first, second = world.stream_reader(), world.stream_reader()
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    second_end = second.latestOffset(second.initialOffset(), ALL)
    clock.pass_s(10)
    with pytest.raises(Fenced, match=r"group 'g' opened .* at \d{4}-.*groupId of its own"):
        first.latestOffset(end, ALL)
    with pytest.raises(Fenced, match="another checkpoint"):
        first.commit(end)
    assert world.state().acked_sequence == 0
    second.commit(second_end)
    assert world.state().acked_sequence == 1


def test_ownership_is_taken_over_when_that_is_asked(world: World, clock: Standing) -> None:
    world.stream(partitions=2)
    world.produce([b"a"])
    first = world.stream_reader(groupId="first")
    seen = Checkpoint()
    engine = Engine(first, seen, available_now=False)
    engine.step()
    clock.pass_s(5)
    engine.step()
    world.produce([b"b"])
    taking = Checkpoint()
    source = world.source(groupId="second", takeOver="true")
    Engine(source.streamReader(source.schema()), taking).run()
    # Without being told where to begin, it goes on where the other one stood.
    assert taking.values == [b"b"]
    assert (world.state().group, world.state(partition=1).group) == ("second", "second")
    clock.pass_s(10)
    with pytest.raises(Fenced, match=r"'second' took the ownership over.*takeOver=true to take"):
        engine.step()
    # The one that lost it goes on as a follower, from where it had come.
    behind = Checkpoint()
    Engine(world.stream_reader(groupId="first"), behind).run()
    assert behind.values == [b"b"]


def test_whoever_takes_over_may_say_from_which_moment_on(world: World, clock: Standing) -> None:
    world.stream()
    world.produce([b"a"])
    engine = Engine(world.stream_reader(groupId="first"), Checkpoint(), available_now=False)
    engine.step()
    clock.pass_s(5)
    engine.step()
    world.produce([b"b"])
    taking = Checkpoint()
    source = world.source(groupId="second", takeOver="true", startingTimestamp="0")
    Engine(source.streamReader(source.schema()), taking).run()
    assert taking.values == [b"a", b"b"]


def test_a_stream_owned_in_part_is_refused_with_the_cure(world: World) -> None:
    world.stream(partitions=2)
    Engine(world.stream_reader(groupId="a", assign='{"orders": [0]}'), Checkpoint()).run()
    Engine(world.stream_reader(groupId="b", assign='{"orders": [1]}'), Checkpoint()).run()
    reader = world.stream_reader(groupId="a")
    with pytest.raises(Refused, match=r"owns some of its partitions and 'b' others.*takeOver"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_stream_that_nodes_consume_is_refused(world: World) -> None:
    world.stream(consumer="nodes")
    reader = world.stream_reader()
    with pytest.raises(Refused, match="consumer=query"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_restart_that_ends_after_its_opening_leaves_the_group_where_its_checkpoint_was(
    world: World,
) -> None:
    """The opening acknowledges what the checkpoint has processed, and that may expire."""
    stream = world.stream(retention_ms=0, gc_grace_ms=0)
    world.produce([b"a"])
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint, available_now=False).step()
    world.stream_reader().latestOffset(json.loads(checkpoint.offsets[0]), ALL)
    wait(stream.collector(0).collect(stream.retention()))
    world.produce([b"b"])
    fresh = Checkpoint()
    Engine(world.stream_reader(), fresh).run()
    assert fresh.values == [b"b"]


def test_a_run_of_a_replaced_checkpoint_acknowledges_nothing_by_its_opening(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream()
    world.produce([b"a"])
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint, available_now=False).step()
    owner = feed.PartitionFeed.owner

    async def replaced(feed: feed.PartitionFeed) -> QueueOwner:
        """A newer checkpoint claims the partition after this one was found to be the newest."""
        await feed.claim("g", QueuePosition(0, 1), "newer")
        return await owner(feed)

    monkeypatch.setattr(feed.PartitionFeed, "owner", replaced)
    with pytest.raises(Fenced, match="continues with another checkpoint"):
        world.stream_reader().latestOffset(json.loads(checkpoint.offsets[0]), ALL)
    assert world.state().acked_sequence == 0


class OvertakenOnce(Ownership):
    """Before the first opening another group opens, acknowledges all there is, and it expires."""

    overtaken = False

    @classmethod
    async def open(cls, stream: Any, *args: Any, **options: Any) -> Ownership:
        if not cls.overtaken:
            cls.overtaken = True
            kept = await alter_stream(stream.store, stream.name, retention_ms=0, gc_grace_ms=0)
            other = await Ownership.open(kept, 0, "other", take_over=True, gc=False)
            await other.acknowledge((await kept.queue_reader(0).state()).next_sequence - 1)
            await kept.collector(0).collect(kept.retention())
        return await Ownership.open(stream, *args, **options)


@pytest.fixture
def overtaken(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Where the first query that opens the consumer comes too late."""
    monkeypatch.setattr(OvertakenOnce, "overtaken", False)
    monkeypatch.setattr(feed, "Ownership", OvertakenOnce)
    for format_ in ("native", "v1"):
        world.stream(format_, format=format_)
        for number in range(4):
            world.produce([b"%d" % number], format_)
    return world


@pytest.mark.parametrize("stream", ["native", "v1"])
def test_what_another_group_let_expire_during_the_opening_is_data_loss(
    overtaken: World, stream: str
) -> None:
    at_two = {"subscribe": stream, "startingOffsets": f'{{"{stream}": {{"0": 3}}}}'}
    reader = overtaken.stream_reader(**at_two)
    start = reader.initialOffset()
    with pytest.raises(Trimmed, match=r"data loss. Wanted from offset 3 .*failOnDataLoss=false"):
        reader.latestOffset(start, ALL)
    overtaken.produce([b"4"], stream)
    lenient = overtaken.stream_reader(**at_two, failOnDataLoss="false")
    assert next_rows(lenient, lenient.initialOffset())[0] == [b"4"]
    assert overtaken.state(stream).group == "other"


@pytest.mark.parametrize("stream", ["native", "v1"])
def test_a_take_over_that_another_query_overtakes_is_started_again(
    overtaken: World, stream: str
) -> None:
    options = {"subscribe": stream, "takeOver": "true"}
    at_two = {**options, "startingOffsets": f'{{"{stream}": {{"0": 3}}}}'}
    reader = overtaken.stream_reader(**at_two)
    start = reader.initialOffset()
    with pytest.raises(Fenced, match=r"opened the consumer at the same moment.*Start this query"):
        reader.latestOffset(start, ALL)
    again = overtaken.stream_reader(**at_two, failOnDataLoss="false")
    again.latestOffset(again.initialOffset(), ALL)
    assert overtaken.state(stream).group == "g"


class OvertakenByItsPredecessor(Ownership):
    """Before the first opening the owner acknowledges all there is."""

    owner: Ownership

    @classmethod
    async def open(cls, stream: Any, *args: Any, **options: Any) -> Ownership:
        await cls.owner.acknowledge((await stream.queue_reader(0).state()).next_sequence - 1)
        return await Ownership.open(stream, *args, **options)


@pytest.mark.parametrize("stream", ["native", "v1"])
def test_what_the_owner_acknowledges_until_it_is_fenced_is_not_skipped(
    world: World, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    opened = world.stream(stream, format=stream)
    for number in range(4):
        world.produce([b"%d" % number], stream)
    old = wait(Ownership.open(opened, 0, "old", gc=False))
    monkeypatch.setattr(OvertakenByItsPredecessor, "owner", old, raising=False)
    monkeypatch.setattr(feed, "Ownership", OvertakenByItsPredecessor)
    taking = world.stream_reader(subscribe=stream, groupId="new", takeOver="true")
    taking.latestOffset(taking.initialOffset(), ALL)
    monkeypatch.setattr(feed, "Ownership", Ownership)
    # Its driver dies before Spark has written an offset down, and is started again.
    again = Checkpoint()
    Engine(world.stream_reader(subscribe=stream, groupId="new"), again).run()
    assert again.values == [b"0", b"1", b"2", b"3"]
