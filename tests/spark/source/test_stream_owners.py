"""Stream readers that own, follow, fence and take over."""

from __future__ import annotations

import pytest

from headwater.core.errors import Fenced, Refused
from tests.spark.source.asked import ALL
from tests.spark.source.engine import Checkpoint, Engine
from tests.spark.source.given import Standing, World


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
