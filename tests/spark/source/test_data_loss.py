"""What a stream reader says when records or positions are gone or do not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, FollowerRegister
from headwater.buffer.producer import Producer
from headwater.buffer.stream import alter_stream, delete_stream, open_stream
from headwater.buffer.truncation import plan_truncation, truncate_partition
from headwater.core.errors import HeadwaterError, NotFound, Refused, RolledBack, Trimmed
from headwater.spark.data_source import StreamReader
from headwater.spark.source.feed import Bounds, PartitionFeed
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset
from headwater.spark.source.slices import Limits
from tests.spark.source.engine import Checkpoint, Engine, positions
from tests.spark.source.micro_batch_rows import ALL, next_rows, rows_between
from tests.spark.source.source_world import Standing, World, rows_of, wait


def _expire(world: World, group: str = "owner") -> None:
    """Acknowledge everything and let it go."""
    wait(_acknowledge_and_expire(world, group))


async def _acknowledge_and_expire(world: World, group: str) -> None:
    stream = await alter_stream(world.store, "orders", retention_ms=0, gc_grace_ms=0)
    async with await Consumer.open(stream, group=group, gc=False) as consumer:
        while (batch := await consumer.next_batch()) is not None:
            await consumer.ack(batch.sequence)
    await stream.collector(0).collect(stream.retention())


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
    _behind(world)
    reader = world.stream_reader(groupId="audit", failOnDataLoss="false")
    rows, end = next_rows(reader, reader.initialOffset())
    assert (rows, positions(end)[0][0]) == ([b"3"], 5)
    assert next_rows(reader, end)[0] == []
    assert "data loss. Wanted from offset 1" in caplog.text


def test_more_that_goes_while_a_query_passes_over_a_loss_is_passed_over_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stream()
    world.produce([b"0"])
    reader = world.stream_reader(groupId="audit", failOnDataLoss="false")
    start = reader.initialOffset()
    _expire(world)
    world.produce([b"1"])
    bounds = PartitionFeed.bounds

    async def expiring(feed: PartitionFeed) -> Bounds:
        found = await bounds(feed)
        monkeypatch.setattr(PartitionFeed, "bounds", bounds)
        await _acknowledge_and_expire(world, "owner")
        async with Producer(world.store, "orders") as producer:
            await producer.produce([b"2"])
        return found

    monkeypatch.setattr(PartitionFeed, "bounds", expiring)
    assert next_rows(reader, start)[0] == [b"2"]


@pytest.mark.parametrize("owner", ["audit", "another"])
def test_a_truncation_is_data_loss_to_a_query_before_the_new_start(
    world: World, owner: str
) -> None:
    world.stream()
    world.produce([b"0"])
    if owner == "another":
        wait(_own(world, owner))
    reader = world.stream_reader(groupId="audit")
    _, end = next_rows(reader, reader.initialOffset())
    world.produce([b"1", b"2", b"3"])
    wait(_truncate(world, "latest"))
    world.produce([b"4"])
    # Another run: one that is under way relies on the floor that it has read, for up to 30 s.
    told = r"data loss. Wanted from offset 2 .* is 5: 3 records .* were truncated"
    with pytest.raises(Trimmed, match=told):
        world.stream_reader(groupId="audit").latestOffset(end, ALL)
    lenient = world.stream_reader(groupId="audit", failOnDataLoss="false")
    rows, end = next_rows(lenient, end)
    assert rows == [b"4"]
    lenient.commit(end)
    assert wait(_owner_of(world)) == owner


async def _own(world: World, group: str) -> None:
    async with await Consumer.open(world.store, "orders", group=group, gc=False):
        pass


async def _owner_of(world: World) -> str:
    return (await (await open_stream(world.store, "orders")).queue_reader(0).state()).group


def test_a_truncation_before_where_a_query_is_changes_nothing_for_it(world: World) -> None:
    world.stream()
    for value in (b"0", b"1", b"2"):
        world.produce([value])
    reader = world.stream_reader(groupId="audit")
    rows, end = next_rows(reader, reader.initialOffset())
    assert rows == [b"0", b"1", b"2"]
    wait(_truncate(world, 3))
    world.produce([b"3"])
    assert next_rows(reader, end)[0] == [b"3"]


async def _truncate(world: World, before: int | str) -> None:
    stream = await open_stream(world.store, "orders", writing=True)
    (plan,) = await plan_truncation(stream, before)
    await truncate_partition(stream, plan)


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
    with pytest.raises(Refused, match=r"begin at offset 3 and end at 1.*a new checkpoint"):
        reader.partitions(end, start)


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        ({"orders": {"0": 5}}, "not of this source"),
        ({"format": 3, "streams": {}}, "format 3.*upgrade"),
        ({"format": 1, "streams": {}}, "format 1.*a new checkpoint"),
        (
            {
                "format": 2,
                "query": "q",
                "step": 1,
                "streams": {"orders": {"id": "x", "partitions": {}}},
            },
            "deleted and created again",
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
    reader = world.stream_reader()
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    text = json.dumps(start).replace('"lsn": 1', '"lsn": 9').replace('"step": 0', '"step": 1')
    ahead = json.loads(text.replace('"sequence": 0', '"sequence": 8'))
    with pytest.raises(RolledBack, match="earlier state"):
        world.stream_reader().partitions(start, ahead)
    with pytest.raises(RolledBack, match="earlier state"):
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


def test_a_stream_that_is_deleted_before_a_commit_is_told_as_that(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader = world.stream_reader()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    wait(delete_stream(world.store, "orders"))
    for ask in (lambda: reader.partitions(start, end), lambda: reader.commit(end)):
        with pytest.raises(NotFound, match=r"'orders' .*was deleted while it was in use"):
            ask()


def test_a_position_that_somebody_removed_is_told_as_that(world: World) -> None:
    world.stream()
    world.produce([b"a"])
    reader = world.stream_reader()
    end = reader.latestOffset(reader.initialOffset(), ALL)

    async def remove() -> None:
        for meta in [meta async for meta in world.store.list("streams/orders/0/groups")]:
            await world.store.delete(meta.key)

    wait(remove())
    with pytest.raises(RolledBack, match=r"is gone.*new checkpoint"):
        reader.commit(end)


def test_what_another_query_of_the_group_let_expire_is_not_called_data_loss(
    world: World, clock: Standing
) -> None:
    world.stream()
    world.produce([b"a"])
    late = world.stream_reader()
    start = late.initialOffset()
    late.latestOffset(start, ALL)
    newer = Checkpoint()
    Engine(world.stream_reader(), newer).run()
    _expire(world, group="g")
    world.produce([b"b"])
    fresh = MicroBatches(world.store, late._options)
    fresh._guard._entered = start["query"]
    with pytest.raises(Refused, match=r"another checkpoint.*new checkpoint"):
        wait(fresh.latest(Offset.from_json(start), Limits()))
    assert newer.values == [b"a"]


def test_a_micro_batch_of_a_stream_that_is_gone_is_refused_with_the_cure(world: World) -> None:
    world.stream()
    world.stream("rest")
    world.produce([b"a"])
    pattern = {"subscribePattern": "orders|rest"}
    reader = world.stream_reader(**pattern)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    closed = {**end, "step": 2, "closed": 1}
    moved = json.loads(json.dumps(closed))
    moved["streams"]["orders"]["partitions"]["0"] = {"lsn": 3, "sequence": 2}
    wait(delete_stream(world.store, "orders"))
    with pytest.raises(Refused, match=r"'orders'.*run again.*deleted, or not.*new checkpoint"):
        world.stream_reader(**pattern).partitions(end, moved)


@pytest.mark.parametrize("format_", ["native", "v1"])
@pytest.mark.parametrize("on_bad", ["fail", "deadLetter"])
def test_a_batch_that_goes_with_its_stream_is_told_as_that(
    world: World, format_: str, on_bad: str
) -> None:
    world.stream(format=format_)
    world.produce([b"x" * 20_000])
    reader = world.stream_reader(onBadBatch=on_bad)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ALL))

    async def delete_half() -> None:
        """Where the queue is still there, and its batches are not."""
        metas = [meta async for meta in world.store.list("streams/orders/0/ingest")]
        kept = [await world.store.get(meta.key) for meta in metas if "batch" not in meta.key]
        await delete_stream(world.store, "orders")
        for one in kept:
            await world.store.put(one.meta.key, one.data)

    wait(delete_half())
    with pytest.raises(NotFound, match="was deleted while it was in use"):
        rows_of(reader, tasks)


@pytest.mark.parametrize("role", ["owner", "follower"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new checkpoint", "same checkpoint"])
def test_a_stream_that_was_restored_to_an_earlier_state_skips_nothing(
    world: World, role: str, is_new: bool
) -> None:
    """What is produced after that has offsets that the query has read past before."""
    world.stream()
    world.produce([b"a"])
    if role == "follower":
        wait(_own(world, "another"))
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint).run()
    kept = _backup(world, with_groups=not is_new)
    world.produce([b"b"])
    world.produce([b"c"])
    Engine(world.stream_reader(), checkpoint).run()
    _restore(world, kept)
    before = wait(_group_of(world))
    told = r"'orders', partition 0: .* is at offset 4, and the next record .* will be 2.*groupId"
    for _ in range(2):
        with pytest.raises(RolledBack, match=told):
            Engine(world.stream_reader(), Checkpoint() if is_new else checkpoint).run()
    assert wait(_group_of(world)) == before


def _backup(world: World, *, with_groups: bool) -> dict[str, bytes]:
    """Everything, with the positions of groups or without them."""

    async def go() -> dict[str, bytes]:
        keys = [meta.key async for meta in world.store.list("streams/")]
        wanted = [key for key in keys if with_groups or "/groups/" not in key]
        return {key: bytes((await world.store.get(key)).data) for key in wanted}

    return wait(go())


def _restore(world: World, kept: dict[str, bytes]) -> None:
    async def go() -> None:
        async for meta in world.store.list("streams/"):
            if meta.key in kept:
                await world.store.put(meta.key, kept[meta.key])
            elif "/groups/" not in meta.key:
                await world.store.delete(meta.key)

    wait(go())


async def _group_of(world: World) -> object:
    return await FollowerRegister(await open_stream(world.store, "orders"), 0, "g").read()
