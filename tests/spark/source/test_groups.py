"""Stream readers and their groups: epochs that fence, resets, and groups of another kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.buffer.group import (
    GroupEpoch,
    GroupPosition,
    GroupRegister,
    OtherKind,
    delete_group,
)
from headwater.buffer.stream import alter_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused
from headwater.spark.source.checkpoint import QueryFenced
from tests.spark.source.engine import Checkpoint, Engine, positions
from tests.spark.source.micro_batch_rows import ALL, next_rows
from tests.spark.source.source_world import Standing, World, wait


def filled(world: World, partitions: int = 1) -> World:
    world.stream(partitions=partitions)
    for number in range(6):
        world.produce([b"%d" % number], partition=number % partitions)
    return world


def test_a_group_neither_holds_the_stream_nor_meets_another(world: World) -> None:
    filled(world, partitions=2)
    before = world.state()
    for group in ("first", "second"):
        checkpoint = Checkpoint()
        Engine(world.stream_reader(groupId=group), checkpoint).run()
        assert len(checkpoint.values) == 6
    assert world.positions("first") == world.positions("second") == {0: 4, 1: 4}
    assert world.state() == before


# Two runs of one query


def test_a_second_run_of_a_query_fences_the_first_which_says_so(
    world: World, clock: Standing
) -> None:
    filled(world)
    checkpoint = Checkpoint()
    limit = {"maxOffsetsPerTrigger": "2"}
    first = Engine(world.stream_reader(**limit), checkpoint, available_now=False)
    first.step()
    world.stream_reader(**limit).latestOffset(json.loads(checkpoint.offsets[0]), ALL)
    acked = world.positions()
    clock.pass_s(10)
    told = r"another run of this query .* started at \d{4}-.*epoch 2.*epoch 1.*groupId of its own"
    for ask in (
        lambda: first.step(),
        lambda: first.reader.commit({**json.loads(checkpoint.offsets[0]), "step": 2}),
    ):
        with pytest.raises(QueryFenced, match=told):
            ask()
    assert (world.positions(), len(checkpoint.offsets)) == (acked, 1)


def test_what_is_refused_fences_no_run(world: World, clock: Standing) -> None:
    filled(world)
    limit = {"maxOffsetsPerTrigger": "2"}
    lost = Checkpoint()
    Engine(world.stream_reader(**limit), lost).step()
    newest, copy = Checkpoint(), Checkpoint()
    running = Engine(world.stream_reader(**limit), newest, available_now=False)
    running.step()
    copy.offsets, copy.done, copy.sink = dict(newest.offsets), set(newest.done), newest.sink
    clock.pass_s(10)
    running.step()
    for checkpoint, told in ((lost, "another checkpoint"), (copy, "older copy")):
        with pytest.raises((Refused, Fenced), match=told):
            Engine(world.stream_reader(**limit), checkpoint).run()
    clock.pass_s(10)
    assert running.step()
    assert newest.values == [b"%d" % number for number in range(6)]


class AckedMeanwhile(GroupRegister):
    """Before a partition is first taken, the run before acknowledges more of it."""

    predecessor: GroupEpoch | None = None

    async def take(self, partition: int, epoch: GroupEpoch) -> GroupPosition:
        held, AckedMeanwhile.predecessor = self.predecessor, None
        if held is not None:
            await self.acknowledge(partition, held, 4)
        return await super().take(partition, epoch)


def test_what_the_run_before_acknowledges_until_it_is_fenced_is_not_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world)
    Engine(world.stream_reader(maxOffsetsPerTrigger="2"), Checkpoint()).step()
    epoch = GroupEpoch.of(world.record())
    monkeypatch.setattr(AckedMeanwhile, "predecessor", epoch)
    monkeypatch.setattr("headwater.spark.source.checkpoint.GroupRegister", AckedMeanwhile)
    late = world.stream_reader()
    start = late.initialOffset()
    assert positions(start) == {0: 1}
    with pytest.raises(Fenced, match=r"has gone on from offset 1 .*Start it again"):
        late.latestOffset(start, ALL)
    again = Checkpoint()
    Engine(world.stream_reader(), again).run()
    assert again.values == [b"3", b"4", b"5"]


def test_a_restart_acknowledges_what_its_checkpoint_has_processed(world: World) -> None:
    filled(world)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint, available_now=False).step()
    assert world.positions() == {0: 1}
    world.stream_reader().latestOffset(json.loads(checkpoint.offsets[0]), ALL)
    # It dies here. Without the checkpoint, the group continues after what was processed.
    fresh = Checkpoint()
    Engine(world.stream_reader(), fresh).run()
    assert fresh.values == []


def test_a_run_of_a_replaced_checkpoint_acknowledges_nothing(world: World) -> None:
    filled(world)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint, available_now=False).step()
    newer = world.stream_reader(maxOffsetsPerTrigger="1")
    newer.latestOffset(newer.initialOffset(), newer.getDefaultReadLimit())
    with pytest.raises(Fenced, match="continues with another checkpoint"):
        world.stream_reader().latestOffset(json.loads(checkpoint.offsets[0]), ALL)
    assert world.positions() == {0: 1}


# Requests


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The calls of these methods of group registers, from now on."""
    called: list[str] = []
    for name in names:
        honest = getattr(GroupRegister, name)

        def counting(*args: Any, honest: Any = honest, name: str = name, **more: Any) -> Any:
            called.append(name)
            return honest(*args, **more)

        monkeypatch.setattr(GroupRegister, name, counting)
    return called


def test_a_poll_checks_the_fence_once_for_each_stream_and_beats_once_a_minute(
    world: World, clock: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream("a", partitions=4)
    world.stream("b", partitions=2)
    reader = world.stream_reader(subscribe="a,b")
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    called = count_calls(monkeypatch, "check", "beat", "take", "acknowledge", "start_query")
    for _ in range(5):
        clock.pass_s(10)
        reader.latestOffset(start, ALL)
    assert called == ["check", "check"] * 5
    called.clear()
    before_ms = [world.record(name=name).seen_ms for name in "ab"]
    clock.pass_s(10)
    monkeypatch.setattr(clock, "wall_ms", lambda: before_ms[0] + 60_000)
    reader.latestOffset(start, ALL)
    assert called == ["beat", "beat"]
    assert [world.record(name=name).seen_ms for name in "ab"] == [before_ms[0] + 60_000] * 2


def test_partitions_are_taken_under_one_epoch_added_ones_too(world: World, clock: Standing) -> None:
    filled(world, partitions=2)
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(), checkpoint, available_now=False)
    engine.step()
    wait(alter_stream(world.store, "orders", partitions=4))
    world.produce([b"new"], partition=3)
    clock.pass_s(61)
    engine.run()
    register = GroupRegister(world.opened(), "g")
    found = wait(register._read_positions())
    assert [found[p].epoch for p in range(4) if found[p]] == [1, 1, 1, 1]  # type: ignore[union-attr]
    assert checkpoint.values[-1] == b"new"


def test_partitions_that_a_query_does_not_read_begin_at_their_oldest_record(world: World) -> None:
    filled(world, partitions=2)
    reader = world.stream_reader(assign='{"orders": [1]}', startingOffsets="latest")
    assert positions(reader.initialOffset()) == {1: 4}
    assert world.record().begins == {"0": 1, "1": 4}


# Resets and deletions


@pytest.mark.parametrize("to", ["earliest", 3])
def test_a_reset_stops_a_query_and_its_next_checkpoint_begins_there(
    world: World, clock: Standing, to: Any
) -> None:
    filled(world)
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(maxOffsetsPerTrigger="2"), checkpoint, available_now=False)
    engine.step()
    engine.step()
    world.reset(to)
    before = world.positions()
    # A commit that comes after the reset lands in a position that does not count any more.
    engine.reader.commit(json.loads(checkpoint.offsets[1]))
    assert world.positions() == before
    clock.pass_s(10)
    told = r"group 'g' was reset at \d{4}-.*Give the query a new checkpoint to continue from there"
    for run in (engine, Engine(world.stream_reader(), checkpoint)):
        with pytest.raises(QueryFenced, match=told):
            run.run()
    assert world.positions() == before
    fresh = Checkpoint()
    Engine(world.stream_reader(), fresh).run()
    assert fresh.values == [b"%d" % n for n in range(0 if to == "earliest" else to - 1, 6)]


def test_a_micro_batch_that_was_planned_before_a_reset_is_not_read(world: World) -> None:
    filled(world)
    reader = world.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    world.reset("latest")
    for again in (reader, world.stream_reader()):
        with pytest.raises(QueryFenced, match="was reset"):
            again.partitions(start, end)


def test_a_reset_while_a_query_starts_counts(world: World) -> None:
    filled(world)
    reader = world.stream_reader()
    start = reader.initialOffset()
    world.reset(5)
    with pytest.raises(QueryFenced, match="was reset"):
        reader.latestOffset(start, ALL)
    again = world.stream_reader()
    assert next_rows(again, again.initialOffset())[0] == [b"4", b"5"]


def test_a_reset_of_one_stream_stops_a_query_of_two(world: World, clock: Standing) -> None:
    world.stream("a")
    world.stream("b")
    for name in "ab":
        world.produce([name.encode()], name)
    checkpoint = Checkpoint()
    options = {"subscribe": "a,b"}
    Engine(world.stream_reader(**options), checkpoint).run()
    world.reset("earliest", name="b")
    with pytest.raises(QueryFenced, match="stream 'b': group 'g' was reset"):
        Engine(world.stream_reader(**options), checkpoint).run()
    fresh = Checkpoint()
    Engine(world.stream_reader(**options), fresh).run()
    assert fresh.values == [b"b"]


def test_a_group_that_is_deleted_stops_its_query_and_begins_again_by_the_options(
    world: World, clock: Standing
) -> None:
    filled(world)
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(), checkpoint, available_now=False)
    engine.step()
    wait(delete_group(world.store, "orders", group="g", force=True))
    clock.pass_s(10)
    for run in (engine, Engine(world.stream_reader(), checkpoint)):
        with pytest.raises(QueryFenced, match=r"was deleted.*new checkpoint.*startingOffsets"):
            run.run()
    fresh = Checkpoint()
    Engine(world.stream_reader(startingOffsets="latest"), fresh).run()
    world.produce([b"new"])
    Engine(world.stream_reader(), fresh).run()
    assert fresh.values == [b"new"]
    with pytest.raises(QueryFenced, match="was reset"):
        Engine(world.stream_reader(), checkpoint).run()


def test_an_option_that_is_ignored_is_reported_with_the_command_that_moves_the_group(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    filled(world)
    Engine(world.stream_reader(), Checkpoint()).run()
    assert "is ignored" not in caplog.text
    world.stream_reader(startingOffsets="earliest").initialOffset()
    assert "startingOffsets is ignored: group 'g' is known" in caplog.text
    assert "partition 0: offset 7" in caplog.text
    assert f"headwater group reset {world.url} orders g --to-" in caplog.text


def test_spark_4_1_acknowledges_nothing_of_a_checkpoint_from_before_a_reset(world: World) -> None:
    world.stream("a")
    filled(world)
    options = {"subscribe": "a,orders"}
    reader = world.stream_reader(**options)
    start, end = reader.initialOffset(), reader.latestOffset()
    reader.partitions(start, end)
    world.reset(2)
    # Spark commits the micro-batch before it plans the next one, which would be refused.
    again = world.stream_reader(**options)
    again.latestOffset()
    with pytest.raises(QueryFenced, match=r"'orders': group 'g' was reset.*new checkpoint"):
        again.commit(end)
    assert world.positions() == {0: 2}


def test_a_query_says_once_that_retention_does_not_wait_for_it(
    world: World, clock: Standing, caplog: pytest.LogCaptureFixture
) -> None:
    world.stream()
    world.stream("kept", required_group="g")
    with caplog.at_level("INFO", logger="headwater.spark"):
        reader = world.stream_reader(subscribe="orders,kept")
        start = reader.initialOffset()
        for _ in range(3):
            reader.latestOffset(start, ALL)
            clock.pass_s(10)
    told = [record.getMessage() for record in caplog.records if "retention" in record.getMessage()]
    assert len(told) == 1
    assert "stream 'orders' does not wait for group 'g'" in told[0]
    assert f"headwater stream alter {world.url} orders --required-group g" in told[0]


# Who may not read


def test_a_group_of_consumers_in_python_is_refused_with_the_cure(world: World) -> None:
    filled(world)
    wait(GroupRegister(world.opened(), "g").begin("consumers", {0: 1}))
    reader = world.stream_reader()
    with pytest.raises(OtherKind, match=r"read by consumers.*another group.*group delete"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_stream_that_nodes_consume_is_refused(world: World) -> None:
    world.stream(consumer="nodes")
    reader = world.stream_reader()
    with pytest.raises(Refused, match="consumer=query"):
        reader.latestOffset(reader.initialOffset(), ALL)


# Collection


def test_a_started_query_collects_until_it_is_fenced(
    world: World, clock: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, partitions=2)
    spawned: list[str] = []
    spawn = runtime.spawn

    def spawning(coroutine: Any, *, name: str) -> Any:
        spawned.append(name)
        return spawn(coroutine, name=name)

    monkeypatch.setattr(runtime, "spawn", spawning)
    reader = world.stream_reader()
    start = reader.initialOffset()
    assert "garbage collection" not in spawned
    reader.latestOffset(start, ALL)
    assert spawned.count("garbage collection") == 2
    assert reader._live is not None
    sweepers = reader._live._group._collection._sweepers.values()
    world.reset("earliest")
    clock.pass_s(10)
    with pytest.raises(QueryFenced):
        reader.latestOffset(start, ALL)

    async def stopped() -> bool:
        for sweeper in sweepers:
            await sweeper.close()
        return all(sweeper._task is not None and sweeper._task.cancelled() for sweeper in sweepers)

    assert wait(stopped())
