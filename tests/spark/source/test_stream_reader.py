"""A stream reader, asked what Spark asks: where it begins, what is next, what it acknowledges."""

from __future__ import annotations

import json
import pickle

import pytest

from headwater.buffer.group import list_groups
from headwater.buffer.stream import alter_stream
from headwater.core.errors import Refused
from tests.spark.source.engine import Checkpoint, Engine, positions
from tests.spark.source.micro_batch_rows import ALL, LIMITS, first_rows, next_rows, rows_between
from tests.spark.source.source_world import Standing, World, rows_of, values_of, wait

# Where a query begins


def test_making_a_reader_and_asking_for_the_schema_opens_nothing(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    before = world.state()
    reader = world.stream_reader()
    pickle.loads(pickle.dumps(reader))
    assert wait(list_groups(world.store, "orders")) == []
    start = reader.initialOffset()
    assert (world.record().epoch, world.record().query) == (0, "")
    reader.latestOffset(start, ALL)
    assert (world.record().epoch, world.record().query) == (1, start["query"])
    assert world.state() == before


def test_a_reader_that_is_in_use_goes_elsewhere_without_what_it_holds(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader = world.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    (task,) = reader.partitions(start, end)
    sent, sent_task = pickle.loads(pickle.dumps((reader, task)))
    assert values_of(rows_of(sent, [sent_task])) == [b"a"]


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ({"startingOffsets": "earliest"}, 1),
        ({"startingOffsets": "latest"}, 6),
        ({"startingOffsets": '{"orders": {"0": 4}}'}, 4),
        ({"startingOffsets": '{"orders": {"0": -2}}'}, 1),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, 6),
        ({"startingTimestamp": "1"}, 1),
        (
            {
                "startingTimestamp": "99999999999999",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            6,
        ),
    ],
)
def test_a_new_group_begins_where_it_is_asked_to(
    world: World, asked: dict[str, str], first: int
) -> None:
    world.stream()
    world.produce([b"1", b"2", b"3"])
    world.produce([b"4", b"5"])
    reader = world.stream_reader(**asked)
    assert positions(reader.initialOffset())[0] == first
    world.produce([b"6"])
    assert next_rows(reader, reader.initialOffset())[0] == [b"%d" % n for n in range(first, 7)]


def test_without_being_asked_a_query_begins_with_what_comes_next(world: World) -> None:
    world.stream()
    world.produce([b"old"])
    source = world.source(groupId="g")
    reader = source.streamReader(source.schema())
    world.produce([b"also old"])
    start = reader.initialOffset()
    world.produce([b"new"])
    assert reader.initialOffset() == start
    assert next_rows(reader, start)[0] == [b"new"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ('{"orders": {"0": 1}}', "does not name stream 'orders', partition 1"),
        ('{"orders": {"0": 1, "1": 1, "2": 1}}', "partition 2, which is not read here"),
        ('{"orders": {"0": 1, "1": 1}, "bills": {"0": 1}}', "'bills', partition 0, which is not"),
        ('{"orders": {"0": 9, "1": 1}}', "offset 9 lies ahead; the next record will be 2"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(world: World, asked: str, told: str) -> None:
    world.stream(partitions=2)
    world.produce([b"a"])
    with pytest.raises(Refused, match=told):
        world.stream_reader(startingOffsets=asked).initialOffset()


def test_a_known_group_goes_on_whatever_it_is_asked(world: World) -> None:
    world.stream()
    world.produce([b"a", b"b"])
    Engine(world.stream_reader(), Checkpoint()).run()
    world.produce([b"c"])
    reader = world.stream_reader(startingOffsets='{"orders": {"0": 1}}')
    assert next_rows(reader, reader.initialOffset())[0] == [b"c"]


# Limits


def test_a_limit_is_kept_and_one_record_always_advances(world: World) -> None:
    world.stream()
    world.produce([b"%d" % n for n in range(10)])
    world.produce([b"x" * 1000 for _ in range(10)])
    rows, end = first_rows(world.stream_reader(groupId="a", maxOffsetsPerTrigger="3"))
    assert (rows, positions(end)[0]) == ([b"0", b"1", b"2"], 4)
    rows, end = first_rows(world.stream_reader(groupId="b", maxBytesPerTrigger="1"))
    assert (len(rows), positions(end)[0]) == (1, 2)
    rows, end = first_rows(
        world.stream_reader(groupId="c", maxBytesPerTrigger="4KiB", maxOffsetsPerTrigger="11")
    )
    assert (len(rows), positions(end)[0]) == (11, 12)


def test_spark_may_ask_for_everything_whatever_the_options_say(world: World) -> None:
    world.stream()
    world.produce([b"%d" % n for n in range(10)])
    reader = world.stream_reader(maxOffsetsPerTrigger="3")
    assert reader.getDefaultReadLimit() == LIMITS.ReadMaxRows(3)
    assert positions(reader.latestOffset(reader.initialOffset(), ALL))[0] == 11
    assert world.stream_reader(maxBytesPerTrigger="5").getDefaultReadLimit() == LIMITS.ReadMaxBytes(
        5
    )
    assert world.stream_reader().getDefaultReadLimit() == ALL


def test_partitions_share_a_limit_and_none_is_starved(world: World) -> None:
    world.stream(partitions=3)
    for partition, count in enumerate((100, 100, 1)):
        world.produce([b"v"] * count, partition=partition)
    checkpoint = Checkpoint()
    Engine(world.stream_reader(maxOffsetsPerTrigger="10"), checkpoint).run()
    sizes = [len(batch) for batch in checkpoint.sink.values()]
    assert sizes == [10] * 20 + [1, 0]
    assert positions(json.loads(checkpoint.offsets[0]))[2] == 2


def test_available_now_ends_where_the_stream_ended_when_it_began(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader, checkpoint = world.stream_reader(), Checkpoint()
    engine = Engine(reader, checkpoint)
    world.produce([b"later"])
    engine.run()
    assert checkpoint.values == [b"a"]
    assert world.positions() == {0: 2}


# Going on


def test_idle_polls_ask_the_store_ever_more_seldom(world: World, clock: Standing) -> None:
    world.stream()
    reader = world.stream_reader()
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    asked = []
    for _ in range(12):
        before = world.store.stats.requests
        for _ in range(10):
            clock.pass_s(0.01)
            assert reader.latestOffset(start, ALL) == start
            reader.reportLatestOffset()
        asked.append(world.store.stats.requests - before)
    assert asked[0] > asked[1] >= asked[2]
    assert sum(asked[-5:]) <= 6
    world.produce([b"a"])
    clock.pass_s(0.5)
    assert next_rows(reader, start)[0] == [b"a"]


def test_the_last_batch_is_acknowledged_once_nothing_more_comes(
    world: World, clock: Standing
) -> None:
    world.stream()
    world.produce([b"a"])
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(), checkpoint, available_now=False)
    assert engine.step()
    assert not engine.step()
    assert world.unprocessed() == 1
    clock.pass_s(1)
    assert engine.step()
    assert (checkpoint.values, world.unprocessed()) == ([b"a"], 0)
    clock.pass_s(100)
    assert not engine.step()
    again = Engine(world.stream_reader(), checkpoint, available_now=False)
    clock.pass_s(100)
    assert not again.step()


def test_partitions_and_streams_that_come_later_are_read_from_their_first_record(
    world: World, clock: Standing
) -> None:
    world.stream("orders-a")
    reader = world.stream_reader(subscribePattern="orders-.*", startingOffsets="latest")
    checkpoint = Checkpoint()
    engine = Engine(reader, checkpoint, available_now=False)
    engine.step()
    world.stream("orders-b")
    world.stream("other")
    wait(alter_stream(world.store, "orders-a", partitions=2))
    world.produce([b"1"], "orders-b")
    world.produce([b"2"], "orders-a", partition=1)
    assert not engine.step()
    clock.pass_s(60)
    engine.run()
    assert sorted(checkpoint.values) == [b"1", b"2"]
    clock.pass_s(2)
    engine.run()
    assert world.unprocessed(name="orders-b") == 0


def test_the_end_of_the_stream_is_reported_beyond_a_limit(world: World) -> None:
    world.stream()
    for _ in range(3):
        world.produce([b"%d" % n for n in range(5)])
    reader = world.stream_reader(maxOffsetsPerTrigger="1")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    found = reader.reportLatestOffset()
    assert found is not None
    assert positions(found)[0] == 16


# Spark 4.1, which says neither where to begin nor how much


def test_a_spark_that_does_not_say_the_start_is_served(world: World, clock: Standing) -> None:
    world.stream()
    world.produce([b"a"])
    reader = world.stream_reader(maxOffsetsPerTrigger="1")
    world.produce([b"b"])
    start, end = reader.initialOffset(), reader.latestOffset()
    assert rows_between(reader, start, end) == [b"a", b"b"]
    clock.pass_s(2)
    closing = reader.latestOffset()
    assert closing == {"closed": 1, **end, "step": 2}
    reader.commit(end)
    assert (rows_between(reader, end, closing), world.unprocessed()) == ([], 0)
    # Started again with nothing new, it tells the same place, and closes what was not closed.
    again = world.stream_reader()
    assert again.latestOffset() == closing
