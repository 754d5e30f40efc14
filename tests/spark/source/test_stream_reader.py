"""A stream reader, asked what Spark asks: where it begins, what is next, what it acknowledges."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer
from headwater.buffer.stream import alter_stream, delete_stream
from headwater.core.errors import Fenced, HeadwaterError, NotFound, Refused, RolledBack, Trimmed
from headwater.spark.source import StreamReader
from tests.spark.source.engine import Checkpoint, Engine, places
from tests.spark.source.given import Standing, World, rows_of, values_of, wait

LIMITS: Any = pytest.importorskip("pyspark.sql.streaming.datasource")
ALL = LIMITS.ReadAllAvailable()


def rows_between(reader: StreamReader, start: Any, end: Any) -> list[bytes]:
    return values_of(rows_of(reader, reader.partitions(start, end)))


def next_rows(reader: StreamReader, start: Any) -> tuple[list[bytes], Any]:
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return rows_between(reader, start, end), end


# Where a query begins


def test_making_a_reader_and_asking_for_the_schema_opens_nothing(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    before = world.state()
    reader = world.stream_reader()
    pickle.loads(pickle.dumps(reader))
    reader.initialOffset()
    assert world.state() == before
    reader.latestOffset(reader.initialOffset(), ALL)
    assert (world.state().epoch, world.state().group) == (1, "g")


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
        ({"startingTimestamp": "99999999999999"}, 6),
    ],
)
def test_a_new_group_begins_where_it_is_asked_to(
    world: World, asked: dict[str, str], first: int
) -> None:
    world.stream()
    world.produce([b"1", b"2", b"3"])
    world.produce([b"4", b"5"])
    reader = world.stream_reader(**asked)
    assert places(reader.initialOffset())[0][0] == first
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
        ('{"orders": {"0": 1}}', "says nothing of stream 'orders', partition 1"),
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


def test_a_group_that_consumed_in_python_goes_on_in_spark(world: World) -> None:
    stream = world.stream()
    world.produce([b"a"])
    world.produce([b"b"])

    async def consume() -> None:
        async with await Consumer.open(stream, group="g", gc=False) as consumer:
            await consumer.next_batch()
            await consumer.ack(0)

    wait(consume())
    reader = world.stream_reader()
    assert next_rows(reader, reader.initialOffset())[0] == [b"b"]


# Owners and followers


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
    second.latestOffset(second.initialOffset(), ALL)
    clock.pass_s(10)
    for refused in (lambda: first.latestOffset(end, ALL), lambda: first.commit(end)):
        with pytest.raises(Fenced, match=r"group 'g' opened .* at \d{4}-.*groupId of its own"):
            refused()
    assert world.state().acked_sequence == 0
    second.commit(end)
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


# Limits


def test_a_limit_is_kept_and_one_record_always_advances(world: World) -> None:
    world.stream()
    world.produce([b"%d" % n for n in range(10)])
    world.produce([b"x" * 1000 for _ in range(10)])
    rows, end = next_rows(world.stream_reader(groupId="a", maxOffsetsPerTrigger="3"), _start(world))
    assert (rows, places(end)[0]) == ([b"0", b"1", b"2"], (4, 0))
    rows, end = next_rows(world.stream_reader(groupId="b", maxBytesPerTrigger="1"), _start(world))
    assert (len(rows), places(end)[0]) == (1, (2, 0))
    rows, end = next_rows(
        world.stream_reader(groupId="c", maxBytesPerTrigger="4KiB", maxOffsetsPerTrigger="11"),
        _start(world),
    )
    assert (len(rows), places(end)[0]) == (11, (12, 1))


def _start(world: World) -> Any:
    return world.stream_reader().initialOffset()


def test_spark_may_ask_for_everything_whatever_the_options_say(world: World) -> None:
    world.stream()
    world.produce([b"%d" % n for n in range(10)])
    reader = world.stream_reader(maxOffsetsPerTrigger="3")
    assert reader.getDefaultReadLimit() == LIMITS.ReadMaxRows(3)
    assert places(reader.latestOffset(reader.initialOffset(), ALL))[0] == (11, 1)
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
    assert places(json.loads(checkpoint.offsets[0]))[2] == (2, 1)


def test_available_now_ends_where_the_stream_ended_when_it_began(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader, checkpoint = world.stream_reader(), Checkpoint()
    engine = Engine(reader, checkpoint)
    world.produce([b"later"])
    engine.run()
    assert checkpoint.values == [b"a"]
    assert world.state().acked_sequence == 1


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
    assert world.state().pending == 1
    clock.pass_s(1)
    assert engine.step()
    assert (checkpoint.values, world.state().pending) == ([b"a"], 0)
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
    assert world.state("orders-b").pending == 0


def test_the_end_of_the_stream_is_reported_beyond_a_limit(world: World) -> None:
    world.stream()
    for _ in range(3):
        world.produce([b"%d" % n for n in range(5)])
    reader = world.stream_reader(maxOffsetsPerTrigger="1")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    found = reader.reportLatestOffset()
    assert found is not None
    assert places(found)[0] == (16, 3)


# What is wrong


def _expire(world: World) -> None:
    """Acknowledge everything and let it go."""

    async def go() -> None:
        stream = await alter_stream(world.store, "orders", retention_ms=0, gc_grace_ms=0)
        async with await Consumer.open(stream, group="owner", gc=False) as consumer:
            while (batch := await consumer.next_batch()) is not None:
                await consumer.ack(batch.sequence)
        await stream.collector(0).collect(stream.retention())

    wait(go())


def _behind(world: World) -> tuple[StreamReader, Any]:
    """A follower that stands before what the retention took."""
    world.stream()
    world.produce([b"0", b"1", b"2"])
    reader = world.stream_reader(groupId="audit", maxOffsetsPerTrigger="1")
    start = reader.initialOffset()
    _expire(world)
    world.produce([b"3"])
    return reader, start


def test_data_loss_fails_saying_what_and_why_and_what_to_do(world: World) -> None:
    reader, start = _behind(world)
    told = r"'orders', partition 0: data loss. Wanted from offset 1 .* is 4: 3 records .*retention"
    with pytest.raises(
        Trimmed, match=told + ".*failOnDataLoss=false.*stream alter memory://.* orders"
    ):
        reader.latestOffset(start, ALL)


def test_data_loss_warns_where_that_is_asked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _, start = _behind(world)
    reader = world.stream_reader(groupId="audit", failOnDataLoss="false")
    rows, end = next_rows(reader, start)
    assert (rows, places(end)[0][0]) == ([b"3"], 5)
    assert next_rows(reader, end)[0] == []
    assert "data loss. Wanted from offset 1" in caplog.text


def test_a_replay_of_what_is_gone_is_data_loss(world: World) -> None:
    world.stream()
    world.produce([b"0", b"1"])
    reader = world.stream_reader(groupId="owner")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    _expire(world)
    world.produce([b"2"])
    with pytest.raises(Trimmed, match="data loss"):
        world.stream_reader(groupId="owner").partitions(start, end)
    lenient = world.stream_reader(groupId="owner", failOnDataLoss="false")
    assert rows_between(lenient, start, end) == []


def test_a_batch_that_goes_while_it_is_read_is_data_loss(world: World) -> None:
    world.stream()
    world.produce([b"x" * 20_000])
    reader = world.stream_reader(groupId="owner")
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ALL))
    _expire(world)
    with pytest.raises(Trimmed, match=r"Wanted offsets 1 to 1, .*failOnDataLoss"):
        rows_of(reader, tasks)
    lenient = world.stream_reader(groupId="owner", failOnDataLoss="false")
    assert rows_of(lenient, tasks).num_rows == 0


def _damage(world: World) -> None:
    """Remove the first batch."""

    async def go() -> None:
        keys = [meta.key async for meta in world.store.list("streams/orders/0/ingest")]
        (batch,) = [key for key in keys if "/batches/" in key]
        await world.store.delete(batch)

    wait(go())


def test_a_batch_that_is_missing_fails_or_is_noted(world: World) -> None:
    world.stream()
    world.produce([b"x" * 20_000])
    world.produce([b"b"])
    _damage(world)
    with pytest.raises(HeadwaterError, match="cannot be read"):
        Engine(world.stream_reader(), Checkpoint()).run()
    checkpoint = Checkpoint()
    Engine(world.stream_reader(onBadBatch="deadLetter"), checkpoint).run()
    assert checkpoint.values == [b"b"]

    async def letters() -> list[str]:
        return [meta.key async for meta in world.store.list("streams/orders/0/dlq")]

    assert len(wait(letters())) == 1
    assert world.state().pending == 0


def test_a_start_after_the_end_is_refused_with_the_cause(world: World) -> None:
    world.stream()
    world.produce([b"a", b"b"])
    reader = world.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with pytest.raises(Refused, match=r"begin at offset 3 and end at 1.*groupId of its own"):
        reader.partitions(end, start)


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        ({"orders": {"0": 5}}, "not of this source"),
        ({"format": 2, "streams": {}}, "format 2.*upgrade"),
        (
            {"format": 1, "streams": {"orders": {"id": "x", "partitions": {}}}},
            "deleted and made again",
        ),
    ],
)
def test_a_foreign_checkpoint_is_refused(world: World, offset: Any, told: str) -> None:
    world.stream()
    with pytest.raises(Refused, match=told):
        world.stream_reader().latestOffset(offset, ALL)


def test_a_checkpoint_ahead_of_its_stream_is_refused(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    start = _start(world)
    ahead = json.loads(
        json.dumps(start).replace('"lsn": 1', '"lsn": 9').replace('"sequence": 0', '"sequence": 8')
    )
    with pytest.raises((Refused, RolledBack), match=r"earlier state|lies ahead|only 1"):
        world.stream_reader().partitions(start, ahead)
    with pytest.raises((Refused, RolledBack), match=r"lies ahead|only 1"):
        world.stream_reader().latestOffset(ahead, ALL)


def test_a_stream_that_is_not_there_is_named_with_those_that_are(world: World) -> None:
    world.stream("bills")
    with pytest.raises(NotFound, match=r"no stream 'orders' at memory://.*there: bills\).*create"):
        world.stream_reader()


def test_a_stream_deleted_under_a_query_is_told(world: World, clock: Standing) -> None:
    world.stream()
    reader = world.stream_reader()
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    wait(delete_stream(world.store, "orders"))
    clock.pass_s(1)
    with pytest.raises(NotFound, match="was deleted"):
        reader.latestOffset(start, ALL)


def test_a_partition_that_is_not_there_is_refused(world: World) -> None:
    world.stream(partitions=2)
    reader = world.stream_reader(assign='{"orders": [2]}')
    with pytest.raises(Refused, match="has partitions 0 to 1, not 2"):
        reader.initialOffset()


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
    assert closing == {"closed": 1, **end}
    reader.commit(end)
    assert (rows_between(reader, end, closing), world.state().pending) == ([], 0)
    # Started again with nothing new, it tells the same place, and closes what was not closed.
    again = world.stream_reader()
    assert again.latestOffset() == closing
