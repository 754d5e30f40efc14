"""Which checkpoint a group's position belongs to: the newest one, and no copy of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.buffer.stream import alter_stream, create_stream, delete_stream
from headwater.core.errors import Fenced, HeadwaterError, Refused
from headwater.spark.data_source import StreamReader
from tests.spark.source.engine import Checkpoint, Engine, Killed
from tests.spark.source.micro_batch_rows import ALL, rows_between
from tests.spark.source.source_world import Standing, World, wait

CURE = r"give the query a new checkpoint"


def filled(world: World, count: int = 10) -> World:
    world.stream()
    for number in range(count):
        world.produce([b"%d" % number])
    return world


def reader(world: World, limit: int = 3, **options: str) -> StreamReader:
    return world.stream_reader(maxOffsetsPerTrigger=str(limit), **options)


def die_in_first_batch(world: World, limit: int) -> Checkpoint:
    checkpoint = Checkpoint()
    with pytest.raises(Killed):
        Engine(reader(world, limit), checkpoint, kill=lambda _, point: point == "read").run()
    return checkpoint


def test_a_new_checkpoint_has_plans_of_its_own(world: World) -> None:
    filled(world)
    die_in_first_batch(world, limit=8)
    fresh = Checkpoint()
    Engine(reader(world), fresh).run(max_batches=1)
    # Stopped, and started again with that same, newest checkpoint.
    Engine(reader(world), fresh).run(max_batches=1)
    Engine(reader(world), fresh).run()
    assert fresh.values == [b"%d" % number for number in range(10)]


def test_an_earlier_checkpoint_is_refused_once_a_newer_one_was_used(world: World) -> None:
    filled(world)
    lost = die_in_first_batch(world, limit=8)
    Engine(reader(world), Checkpoint()).run(max_batches=1)
    for _ in range(2):
        with pytest.raises(HeadwaterError, match=f"another checkpoint.*{CURE}"):
            Engine(reader(world), lost).run()
    assert lost.values == []


def test_an_earlier_query_that_still_runs_is_fenced_by_a_newer_checkpoint(
    world: World, clock: Standing
) -> None:
    filled(world)
    old = Checkpoint()
    zombie = Engine(reader(world), old, available_now=False)
    zombie.step()
    newer = Checkpoint()
    Engine(reader(world), newer).run(max_batches=2)
    clock.pass_s(10)
    with pytest.raises(Fenced, match="another checkpoint"):
        zombie.step()
    # Of what the old one read, only what was not committed comes again.
    Engine(reader(world), newer).run()
    assert newer.values == [b"%d" % number for number in range(10)]
    assert old.values == [b"0", b"1", b"2"]


def test_a_query_that_starts_while_another_of_its_group_commits_is_refused_and_starts_again(
    world: World,
) -> None:
    filled(world)
    running = Engine(reader(world), Checkpoint())
    running.step()
    late = reader(world)
    start = late.initialOffset()
    running.step()  # commits what the late one is about to read
    with pytest.raises(Fenced, match="Start it again"):
        late.latestOffset(start, ALL)
    again = Checkpoint()
    Engine(reader(world), again).run()
    assert again.values == [b"%d" % number for number in range(3, 10)]


def _grown(world: World, clock: Standing) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint, and a copy of it from before a partition was added."""
    world.stream(partitions=1)
    world.produce([b"0", b"1"])
    newest = Checkpoint()
    engine = Engine(world.stream_reader(), newest, available_now=False)
    engine.step()
    clock.pass_s(2)
    engine.step()
    world.produce([b"2"])
    clock.pass_s(2)
    engine.step()
    copy = Checkpoint()
    copy.offsets, copy.done, copy.sink = dict(newest.offsets), set(newest.done), newest.sink
    wait(alter_stream(world.store, "orders", partitions=2))
    clock.pass_s(61)
    engine.step()
    return newest, copy


@pytest.mark.parametrize("closed", [False, True])
def test_a_copy_from_before_a_micro_batch_without_rows_is_refused(
    world: World, clock: Standing, closed: bool
) -> None:
    newest, copy = _grown(world, clock)
    if closed:
        clock.pass_s(2)
        Engine(world.stream_reader(), newest).run()
    assert sum(map(len, newest.sink.values())) == 3
    world.produce([b"3", b"4"])
    with pytest.raises(Refused, match=f"older copy.*{CURE}"):
        Engine(world.stream_reader(), copy).run()
    Engine(world.stream_reader(), newest).run()
    assert newest.values == [b"0", b"1", b"2", b"3", b"4"]


def test_a_replay_from_an_older_copy_is_refused_before_it_reads(world: World) -> None:
    filled(world)
    checkpoint = Checkpoint()
    Engine(reader(world), checkpoint).run(max_batches=3)
    copy = Checkpoint()
    copy.offsets = {number: checkpoint.offsets[number] for number in (0, 1)}
    copy.done = {0}
    with pytest.raises(Refused, match=f"older copy.*{CURE}"):
        Engine(reader(world), copy).run()
    assert copy.values == []


def test_a_stream_that_was_made_again_under_a_running_query_is_refused(
    world: World, clock: Standing
) -> None:
    world.stream(partitions=1)
    world.produce([b"old"])
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(), checkpoint, available_now=False)
    engine.step()
    wait(delete_stream(world.store, "orders"))
    wait(create_stream(world.store, "orders", partitions=2))
    world.produce([b"new"], partition=1)
    clock.pass_s(61)
    for _ in range(2):
        with pytest.raises(HeadwaterError, match=r"was deleted and created again.*new checkpoint"):
            engine.step()
    with pytest.raises(HeadwaterError, match=r"was deleted and created again.*new checkpoint"):
        Engine(world.stream_reader(), checkpoint).run()
    again = Checkpoint()
    Engine(world.stream_reader(), again).run()
    assert again.values == [b"new"]


def test_a_run_that_comes_late_with_a_micro_batch_is_refused_before_it_reads(
    world: World,
) -> None:
    filled(world)
    checkpoint = Checkpoint()
    late = reader(world)
    start = late.initialOffset()
    end = late.latestOffset(start, late.getDefaultReadLimit())
    checkpoint.offsets[0] = json.dumps(end)
    # The run stands still; another one of the same checkpoint goes on.
    Engine(reader(world), checkpoint).run(max_batches=2)
    with pytest.raises(Fenced, match="another run of this query"):
        late.partitions(start, end)


# Spark 4.1, which does not say where a micro-batch begins


class Unasked:
    """What Spark 4.1 does: `initialOffset` is asked when the first micro-batch is planned."""

    def __init__(self, reader: StreamReader, checkpoint: Checkpoint) -> None:
        self.reader, self.checkpoint = reader, checkpoint

    def step(self, *, kill: str = "") -> bool:
        notes, number = self.checkpoint, len(self.checkpoint.offsets)
        if notes.offsets and number - 1 not in notes.done:
            number -= 1
        else:
            end = json.dumps(self.reader.latestOffset())
            if notes.offsets and end == notes.offsets[number - 1]:
                return False
            notes.offsets[number] = end
            if number:
                self.reader.commit(json.loads(notes.offsets[number - 1]))
        if kill == "planned":
            raise Killed
        start: Any = self.reader.initialOffset()
        if number:
            start = json.loads(notes.offsets[number - 1])
        rows = rows_between(self.reader, start, json.loads(notes.offsets[number]))
        notes.sink.setdefault(number, rows)
        if kill == "sunk":
            raise Killed
        notes.done.add(number)
        return True


def test_spark_4_1_goes_on_after_kills_and_with_a_new_checkpoint(world: World) -> None:
    filled(world, count=4)
    first = Checkpoint()
    with pytest.raises(Killed):
        Unasked(world.stream_reader(), first).step(kill="planned")
    fresh = Checkpoint()
    for kill in ("planned", "sunk", ""):
        try:
            Unasked(world.stream_reader(), fresh).step(kill=kill)
        except Killed:
            continue
    world.produce([b"4"])
    for _ in range(4):
        Unasked(world.stream_reader(), fresh).step()
    assert fresh.values == [b"0", b"1", b"2", b"3", b"4"]
    assert world.unprocessed() == 0
    assert not Unasked(world.stream_reader(), fresh).step()
    with pytest.raises(HeadwaterError, match=CURE):
        Unasked(world.stream_reader(), first).step()
    assert first.values == []


def test_spark_4_1_with_an_older_copy_is_refused_before_it_reads(world: World) -> None:
    filled(world, count=2)
    newest, copy = Checkpoint(), Checkpoint()
    Unasked(world.stream_reader(), newest).step()
    copy.offsets, copy.done = dict(newest.offsets), set(newest.done)
    world.produce([b"2"])
    Unasked(world.stream_reader(), newest).step()
    world.produce([b"3"])
    with pytest.raises(Refused, match=f"older copy.*{CURE}"):
        Unasked(world.stream_reader(), copy).step()
    assert copy.values == []


def test_spark_4_1_reads_a_partition_that_was_added_while_it_was_away_from_its_first_record(
    world: World,
) -> None:
    filled(world, count=2)
    checkpoint = Checkpoint()
    Unasked(world.stream_reader(), checkpoint).step()
    wait(alter_stream(world.store, "orders", partitions=2))
    world.produce([b"new"], partition=1)
    with pytest.raises(Killed):
        Unasked(world.stream_reader(), checkpoint).step(kill="planned")
    Unasked(world.stream_reader(), checkpoint).step()
    assert checkpoint.values == [b"0", b"1", b"new"]


def test_spark_4_1_does_not_take_a_stream_that_was_made_again_for_the_old_one(
    world: World,
) -> None:
    filled(world, count=2)
    checkpoint = Checkpoint()
    Unasked(world.stream_reader(), checkpoint).step()
    wait(delete_stream(world.store, "orders"))
    filled(world, count=4)
    for _ in range(2):
        with pytest.raises(Refused, match=r"was deleted and created again.*new checkpoint"):
            Unasked(world.stream_reader(), checkpoint).step()
    assert checkpoint.values == [b"0", b"1"]


def test_spark_4_1_goes_on_where_an_empty_partition_was_added_while_it_was_away(
    world: World, clock: Standing
) -> None:
    filled(world, count=2)
    checkpoint = Checkpoint()
    query = Unasked(world.stream_reader(), checkpoint)
    query.step()
    clock.pass_s(2)
    query.step()
    wait(alter_stream(world.store, "orders", partitions=2))
    Unasked(world.stream_reader(), checkpoint).step()
    world.produce([b"new"], partition=1)
    Unasked(world.stream_reader(), checkpoint).step()
    assert checkpoint.values == [b"0", b"1", b"new"]


def _deleted_while_away(world: World, clock: Standing, other: str) -> Checkpoint:
    """The checkpoint of a query on Spark 4.1 that read `orders` and this stream."""
    filled(world, count=2)
    world.stream(other)
    checkpoint = Checkpoint()
    query = Unasked(world.stream_reader(subscribePattern="orders|.*later"), checkpoint)
    query.step()
    clock.pass_s(2)
    query.step()
    wait(delete_stream(world.store, other))
    return checkpoint


def test_spark_4_1_goes_on_where_one_of_its_streams_was_deleted_while_it_was_away(
    world: World, clock: Standing
) -> None:
    checkpoint = _deleted_while_away(world, clock, "zlater")
    Unasked(world.stream_reader(subscribePattern="orders|.*later"), checkpoint).step()
    world.produce([b"new"])
    Unasked(world.stream_reader(subscribePattern="orders|.*later"), checkpoint).step()
    assert checkpoint.values == [b"0", b"1", b"new"]


def test_spark_4_1_says_that_the_stream_is_gone_whose_partition_counted_its_micro_batches(
    world: World, clock: Standing
) -> None:
    checkpoint = _deleted_while_away(world, clock, "later")
    with pytest.raises(Refused, match=rf"has 'later', and the query reads none.*{CURE}"):
        Unasked(world.stream_reader(subscribePattern="orders|.*later"), checkpoint).step()


def test_spark_4_1_says_that_all_streams_of_a_checkpoint_are_gone(world: World) -> None:
    filled(world, count=2)
    checkpoint = Checkpoint()
    options = {"subscribePattern": "orders|later", "startingOffsets": "latest"}
    Unasked(world.stream_reader(**options), checkpoint).step()
    wait(delete_stream(world.store, "orders"))
    world.stream("later")
    world.produce([b"before"], "later")
    for _ in range(2):
        with pytest.raises(Refused, match=rf"has 'orders', and the query reads none.*{CURE}"):
            Unasked(world.stream_reader(**options), checkpoint).step()
    fresh = Checkpoint()
    world.produce([b"after"], "later")
    Unasked(world.stream_reader(**options), fresh).step()
    assert (checkpoint.values, fresh.values) == ([], [b"after"])
