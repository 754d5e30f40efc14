"""Exactly once: a query killed after any step, and the mistakes that would break it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headwater.buffer.consumer import FollowerRegister, Ownership
from headwater.buffer.consumer.progress import FollowerPosition
from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.stream import alter_stream
from headwater.core.errors import HeadwaterError
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset
from tests.spark.source.engine import POINTS, Checkpoint, Engine, Killed, positions
from tests.spark.source.source_world import World, wait
from tests.torture.spark_scenarios import RESTARTS

VALUES = [f"{number:03d}".encode() for number in range(40)]
LIMITS = {"maxOffsetsPerTrigger": "9"}


def filled(world: World, partitions: int = 1) -> World:
    world.stream(partitions=partitions)
    for first in range(0, len(VALUES), 5):
        world.produce(VALUES[first : first + 5], partition=first // 5 % partitions)
    return world


def run_with_kills(world: World, points: list[tuple[int, str]], **options: str) -> Checkpoint:
    """Run until done, dying once at each of these points."""
    checkpoint, left = Checkpoint(), list(points)

    def kill(batch: int, point: str) -> bool:
        if left and (batch, point) == left[0]:
            left.pop(0)
            return True
        return False

    for _ in range(len(points) + 1):
        reader = world.stream_reader(**(LIMITS | options))
        try:
            Engine(reader, checkpoint, kill=kill).run()
            if not left:
                return checkpoint
        except Killed:
            continue
    raise AssertionError(f"never came to {left}")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("batch", range(6))
@pytest.mark.parametrize("group", ["owner", "follower"])
def test_a_kill_after_any_step_loses_and_repeats_nothing(
    world: World, batch: int, point: str, group: str
) -> None:
    filled(world, partitions=2)
    if group == "follower":
        Engine(world.stream_reader(groupId="owner"), Checkpoint()).run()
    checkpoint = run_with_kills(world, [(batch, point)], groupId=group)
    assert sorted(checkpoint.values) == VALUES
    # The last records too are acknowledged when the query ends.
    assert [world.state(partition=p).pending for p in (0, 1)] == [0, 0]


@pytest.mark.parametrize("first", ["planned", "acknowledged"])
def test_kills_at_every_step_of_every_batch_in_one_life(world: World, first: str) -> None:
    filled(world)
    # Whatever was planned is run as it was planned: it is not acknowledged before it again.
    every = list(itertools.product(range(6), (first, "read", "sunk", "done")))
    checkpoint = run_with_kills(world, every)
    assert checkpoint.values == VALUES


def test_a_query_that_lost_its_checkpoint_goes_on_where_its_group_stands(world: World) -> None:
    filled(world)
    first = Checkpoint()
    engine = Engine(world.stream_reader(**LIMITS), first)
    for _ in range(3):
        engine.step()
    # Two micro-batches are acknowledged, the second of them within a batch of the queue.
    again = Checkpoint()
    Engine(world.stream_reader(**LIMITS, startingOffsets="latest"), again).run()
    assert again.values == VALUES[18:]


def test_a_query_that_died_before_it_acknowledged_is_known_to_have_come_so_far(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world)
    engine = Engine(world.stream_reader(**LIMITS), Checkpoint())
    engine.step()

    async def die(self: Ownership, sequence: int) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "acknowledge", die)
        with pytest.raises(Killed):
            engine.step()
    # Without the checkpoint: nine records were done, and the ninth stands within a batch.
    again = Checkpoint()
    Engine(world.stream_reader(**LIMITS), again).run()
    assert again.values == VALUES[9:]


def test_latest_means_the_same_moment_after_a_restart(world: World) -> None:
    filled(world)
    first = Checkpoint()
    Engine(world.stream_reader(startingOffsets="latest"), first).run()
    assert first.values == []
    world.produce([b"new"])
    again = Checkpoint()
    Engine(world.stream_reader(startingOffsets="latest"), again).run()
    assert again.values == [b"new"]


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize(
    ("starting", "wanted"),
    [
        ("latest", {0: (16, 3), 1: (16, 3), 2: (11, 2)}),
        (
            '{"orders": {"0": 7, "1": 12, "2": -1}, "other": {"0": -1, "1": -1}}',
            {0: (7, 1), 1: (12, 2), 2: (11, 2)},
        ),
    ],
)
def test_a_beginning_that_was_cut_short_goes_on_as_it_was_resolved(
    world: World, monkeypatch: pytest.MonkeyPatch, written: int, starting: str, wanted: Any
) -> None:
    filled(world, partitions=3)
    world.stream("other", partitions=2)
    world.produce([b"1"], "other")
    options = {"subscribe": "orders,other", "startingOffsets": starting}
    honest, begun = FollowerRegister.begin, itertools.count(1)

    async def begin(self: FollowerRegister, *asked: Any, **more: Any) -> FollowerPosition:
        if next(begun) > written:
            raise Killed
        return await honest(self, *asked, **more)

    with monkeypatch.context() as patch:
        patch.setattr(FollowerRegister, "begin", begin)
        with pytest.raises(Killed):
            world.stream_reader(**options).initialOffset()
    for partition in range(3):
        world.produce([b"late"], partition=partition)
    found = world.stream_reader(**options).initialOffset()
    assert positions(found) == wanted
    assert positions(found, "other") == {0: (2, 1), 1: (1, 0)}


def test_a_partition_that_came_before_the_first_micro_batch_is_read_from_its_oldest(
    world: World,
) -> None:
    world.stream(partitions=1)
    world.produce([b"before"])
    world.stream_reader(startingOffsets="latest").initialOffset()
    wait(alter_stream(world.store, "orders", partitions=2))
    world.produce([b"new"], partition=1)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(startingOffsets="latest"), checkpoint).run()
    assert checkpoint.values == [b"new"]


def copy_before(checkpoint: Checkpoint, batch: int) -> Checkpoint:
    """A copy of the checkpoint from before a micro-batch; the sink is as it is."""
    copy = Checkpoint()
    copy.offsets = {n: offset for n, offset in checkpoint.offsets.items() if n < batch}
    copy.done = {n for n in checkpoint.done if n < batch}
    copy.sink = checkpoint.sink
    return copy


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("group", ["owner", "follower"])
def test_a_checkpoint_that_was_put_back_is_refused_before_anything_is_written_down(
    world: World, batch: int, group: str
) -> None:
    filled(world, partitions=2)
    if group == "follower":
        Engine(world.stream_reader(groupId="owner"), Checkpoint()).run()
    checkpoint = Checkpoint()
    Engine(world.stream_reader(groupId=group, **LIMITS), checkpoint).run()
    world.produce([b"later"])
    copy = copy_before(checkpoint, batch)
    for _ in range(2):
        with pytest.raises(HeadwaterError, match=r"older copy.*give the query a new checkpoint"):
            Engine(world.stream_reader(groupId=group, **LIMITS), copy).run()
    assert len(copy.offsets) == batch
    # With a new one it goes on where the group stands.
    again = Checkpoint()
    Engine(world.stream_reader(groupId=group, **LIMITS), again).run()
    assert again.values == [b"later"]


@pytest.mark.parametrize("killed", [["read"], ["sunk"], ["done"], ["planned", "sunk"]])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("group", ["owner", "follower"])
def test_a_copy_from_just_before_the_last_micro_batch_is_refused_too(
    world: World, batch: int, killed: list[str], group: str
) -> None:
    filled(world)
    if group == "follower":
        Engine(world.stream_reader(groupId="owner"), Checkpoint()).run()
    checkpoint = Checkpoint()
    for point in killed:
        kill = functools.partial(_is_at, (batch, point))
        with pytest.raises(Killed):
            Engine(world.stream_reader(groupId=group, **LIMITS), checkpoint, kill=kill).run()
    # The sink may have that micro-batch, of which neither Spark nor the queue was told.
    with pytest.raises(HeadwaterError, match="older copy"):
        Engine(
            world.stream_reader(groupId=group, maxOffsetsPerTrigger="11"),
            copy_before(checkpoint, batch),
        ).run()
    Engine(world.stream_reader(groupId=group, **LIMITS), checkpoint).run()
    assert checkpoint.values == VALUES


def _is_at(wanted: tuple[int, str], batch: int, point: str) -> bool:
    return (batch, point) == wanted


def test_a_copy_from_before_a_closing_micro_batch_is_refused_too(world: World) -> None:
    filled(world)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(**LIMITS), checkpoint).run()
    closing = max(checkpoint.offsets)
    assert checkpoint.sink[closing] == []
    with pytest.raises(HeadwaterError, match="older copy"):
        Engine(world.stream_reader(**LIMITS), copy_before(checkpoint, closing)).run()


def test_two_groups_read_everything_each(world: World) -> None:
    filled(world, partitions=2)
    found = [Checkpoint(), Checkpoint()]
    engines = [
        Engine(world.stream_reader(groupId=group, **LIMITS), checkpoint)
        for group, checkpoint in zip("ab", found, strict=True)
    ]
    for _ in range(20):
        for engine in engines:
            engine.step()
    assert [sorted(one.values) for one in found] == [VALUES, VALUES]
    assert world.state().group == "a"


# Mistakes planted on purpose: each must be noticed by what is checked above.


def _resolve_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(self: FollowerRegister, place: QueuePosition, **_: Any) -> FollowerPosition:
        return FollowerPosition(place.sequence, 0, place.lsn)

    async def initial(self: MicroBatches) -> Offset:
        await self._refresh()
        return Offset(await self._begin(list(self._feeds.values())), dict(self._ids), closed=True)

    monkeypatch.setattr(FollowerRegister, "begin", begin)
    monkeypatch.setattr(MicroBatches, "initial", initial)


def _never_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offset, "closed_next", lambda self: self)


def _shuffle_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, turn = Offset.to_json, itertools.count()

    def to_json(self: Offset) -> dict[str, Any]:
        found = honest(self)
        for stream in found["streams"].values():
            items = list(stream["partitions"].items())
            stream["partitions"] = dict(items[::-1] if next(turn) % 3 == 0 else items)
        return found

    monkeypatch.setattr(Offset, "to_json", to_json)


def _is_exactly_once(role: str) -> bool:
    """A query from "latest" on, with records before, between and after its start."""
    world = World()
    world.stream(partitions=2)
    world.produce([b"before"])
    if role == "follower":
        Engine(world.stream_reader(groupId="owner"), Checkpoint()).run()
    reader, checkpoint = world.stream_reader(startingOffsets="latest"), Checkpoint()
    honest = reader.initialOffset

    def initial() -> dict[str, Any]:
        found = honest()
        world.produce([b"late"])  # arrives between two questions
        return found

    reader.initialOffset = initial  # type: ignore[method-assign]
    engine = Engine(reader, checkpoint, available_now=False)
    for _ in range(5):
        engine.step()
    world.produce([b"more"], partition=1)
    Engine(world.stream_reader(startingOffsets="latest"), checkpoint).run()
    world.produce([b"more"], partition=1)
    last = Engine(world.stream_reader(startingOffsets="latest"), checkpoint)
    last.run()
    wanted = world.state().next_lsn - 2 + 2  # all but the one before the start, and two
    behind = [world.state(partition=partition).pending for partition in (0, 1)]
    is_acknowledged = role == "follower" or behind == [0, 0]
    return len(checkpoint.values) == wanted and is_acknowledged and last.run() == 0


@pytest.mark.parametrize("plant", [_resolve_anew, _never_close, _shuffle_keys])
def test_a_planted_mistake_is_noticed(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with contextlib.suppress(HeadwaterError):  # refused to go on: noticed as well
        assert not (_is_exactly_once("owner") and _is_exactly_once("follower"))


@pytest.mark.parametrize("role", ["owner", "follower"])
def test_without_a_mistake_nothing_is_noticed(role: str) -> None:
    assert _is_exactly_once(role)


def test_no_history_of_kills_groups_and_limits_loses_or_repeats_a_record() -> None:
    RESTARTS.run_sample()
