"""Readings that meet others: streams that come and go, batches that cannot be counted."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, list_dead_letters
from headwater.buffer.queue.contract import Uncounted
from headwater.buffer.stream import alter_stream, delete_stream
from headwater.core.errors import Refused, Trimmed
from headwater.spark.source import bounds
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
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "starting"])
def test_a_batch_that_cannot_be_counted_stops_a_query_or_is_noted(
    world: World, clock: Standing, on_bad_batch: str, is_running: bool
) -> None:
    world.stream(format="v1")
    checkpoint = Checkpoint()
    engine = Engine(world.stream_reader(onBadBatch=on_bad_batch), checkpoint, available_now=False)
    if is_running:
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

    async def stale(*_: object) -> int:
        return 1

    monkeypatch.setattr(bounds, "starting_lsn", stale)
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
