"""What a stream's collectors go by: settings, the required group, and the policy of both."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.collection import GarbageCollection, lowest_position, retention_of
from headwater.buffer.group import GroupEpoch, GroupRegister, delete_group, reset_group
from headwater.buffer.producer import Producer
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, alter_stream, create_stream, handle, policy
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.stream.policy import renew_policy
from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.store import MemoryBackend, Store
from tests.store.scripted import virtual

FORMATS = pytest.mark.parametrize("name", ["native", "v1"])


async def a_stream(store: Store | None = None, **settings: Any) -> Stream:
    """Two partitions with five records each, one batch a record, past the retention."""
    store = store or Store(MemoryBackend(versions_by_content=True))
    stream = await create_stream(
        store, "orders", partitions=2, retention_ms=0, gc_grace_ms=0, **settings
    )
    async with Producer(stream, linger_ms=0) as producer:
        for number in range(5):
            for partition in range(2):
                await (await producer.produce([b"%d" % number], partition=partition))
    await runtime.sleep(3600)
    return stream


async def at(stream: Stream, group: str, *lsns: int) -> GroupEpoch:
    """Let a group be at these LSNs."""
    register = GroupRegister(stream, group)
    await register.begin("query", dict.fromkeys(range(stream.partitions), 1))
    epoch = await register.start_query("q", is_new=True)
    for partition, lsn in enumerate(lsns):
        await register.take(partition, epoch)
        await register.acknowledge(partition, epoch, lsn)
    return epoch


async def floors(stream: Stream) -> list[int]:
    """The LSNs of the floors after a pass over each partition."""
    return [(await GarbageCollection(stream, one).run_pass()).floor_lsn for one in range(2)]


@virtual
async def test_a_required_group_holds_back_what_it_has_not_processed() -> None:
    stream = await a_stream(required_group="billing")
    assert await floors(stream) == [1, 1]  # it never began
    await at(stream, "billing", 3, 5)
    await at(stream, "audit", 1, 1)  # holds nothing back
    assert await floors(stream) == [3, 5]
    await alter_stream(stream.store, "orders", required_group="audit")
    await at(stream, "billing", 6, 6)
    assert await floors(stream) == [3, 5]
    await alter_stream(stream.store, "orders", required_group="none")
    assert await floors(stream) == [6, 6]


@virtual
async def test_a_required_group_that_was_deleted_holds_everything_back() -> None:
    stream = await a_stream(required_group="billing")
    await at(stream, "billing", 3, 5)
    await GroupRegister(stream, "billing").delete()
    assert await floors(stream) == [1, 1]


@virtual
async def test_a_partition_that_is_added_is_held_back_from_its_first_record_on() -> None:
    stream = await a_stream(required_group="billing")
    await at(stream, "billing", 6, 6)
    stream = await alter_stream(stream.store, "orders", partitions=3)
    async with Producer(stream, linger_ms=0) as producer:
        await (await producer.produce([b"new"], partition=2))
    await runtime.sleep(3600)
    assert (await GarbageCollection(stream, 2).run_pass()).floor_lsn == 1


@FORMATS
@virtual
async def test_an_alteration_reaches_every_queue_before_it_returns(name: str) -> None:
    stream = await a_stream(format=name)
    old = [await retention_of(stream, one) for one in range(2)]
    altered = await alter_stream(stream.store, "orders", retention="forever")
    assert altered.config.policy == 1
    for partition in range(2):
        report = await stream.collector(partition).collect(old[partition])
        assert (report.is_outdated, report.floor_lsn) == (True, 1)


@virtual
async def test_an_alteration_that_changes_nothing_that_is_kept_leaves_the_policy() -> None:
    stream = await a_stream()
    assert (await alter_stream(stream.store, "orders", linger_ms=5)).config.policy == 0


@pytest.mark.parametrize("unreached", [0, 1])
@virtual
async def test_an_alteration_that_was_interrupted_is_finished_by_repeating_it(
    unreached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await a_stream()
    old = [await retention_of(stream, one) for one in range(2)]
    raise_policy = handle.raise_queue_policy

    async def interrupted(store: Store, config: StreamConfig, partition: int) -> int:
        if partition == unreached:
            raise Unavailable("no route to host")
        return await raise_policy(store, config, partition)

    with monkeypatch.context() as context:
        context.setattr(policy, "raise_queue_policy", interrupted)
        with pytest.raises(Unavailable):
            await alter_stream(stream.store, "orders", retention="forever")
    again = await alter_stream(stream.store, "orders", retention="forever")
    assert again.config.policy == 2
    for partition in range(2):
        assert (await stream.collector(partition).collect(old[partition])).floor_lsn == 1


@virtual
async def test_a_collector_that_read_the_position_before_a_reset_deletes_nothing() -> None:
    stream = await a_stream(required_group="billing")
    await at(stream, "billing", 6, 6)
    old = [await retention_of(stream, one) for one in range(2)]
    assert [one.below_lsn for one in old] == [6, 6]
    await reset_group(stream, group="billing", to=2, dry_run=False, force=True)
    for partition in range(2):
        report = await stream.collector(partition).collect(old[partition])
        assert (report.is_outdated, report.floor_lsn) == (True, 1)
    assert await floors(stream) == [2, 2]


@virtual
async def test_so_do_a_seek_and_a_deletion_of_the_required_group() -> None:
    stream = await a_stream(required_group="billing")
    epoch = await at(stream, "billing", 6, 6)
    old = await retention_of(stream, 0)
    await GroupRegister(stream, "billing").seek(0, epoch, 2)
    assert (await stream.collector(0).collect(old)).is_outdated
    old = await retention_of(stream, 1)
    await GroupRegister(stream, "billing").delete()
    assert (await stream.collector(1).collect(old)).is_outdated


@virtual
async def test_a_required_group_is_not_deleted() -> None:
    stream = await a_stream(required_group="billing")
    await at(stream, "billing", 6, 6)
    with pytest.raises(Refused, match="--required-group none"):
        await delete_group(stream, group="billing", force=True)
    await alter_stream(stream.store, "orders", required_group="none")
    await delete_group(stream, group="billing", force=True)


@virtual
async def test_a_reset_of_another_group_leaves_the_policy() -> None:
    stream = await a_stream(required_group="billing")
    await at(stream, "audit", 6, 6)
    await reset_group(stream, group="audit", to=2, dry_run=False, force=True)
    assert (await retention_of(stream, 0)).policy == 0


@virtual
async def test_a_register_that_went_back_continues_above_its_queues() -> None:
    backend = MemoryBackend(versions_by_content=True)
    stream = await a_stream(Store(backend))
    key = "streams/orders/stream.json"
    earlier = bytes((await stream.store.get(key)).data)
    for _ in range(3):
        await renew_policy(stream)
    await stream.store.put(key, earlier)
    restored = Stream(Store(backend), stream.config)
    assert (await GarbageCollection(restored, 0).run_pass()).is_outdated
    altered = await alter_stream(restored.store, "orders", retention_ms=0)
    assert altered.config.policy == 4
    assert await floors(altered) == [6, 6]


@virtual
async def test_a_retention_is_that_of_the_stream_and_its_partitions() -> None:
    stream = await a_stream()
    with pytest.raises(Refused, match="partitions 0 to 1, not 2"):
        await retention_of(stream, 2)
    await alter_stream(stream.store, "orders", required_group="billing")
    assert stream.retention() == Retention(0, None, 0)
    assert (await retention_of(stream, 0)).below_lsn == 1


@virtual
async def test_the_lowest_position_is_that_of_the_group_furthest_behind() -> None:
    stream = await a_stream()
    assert await lowest_position(stream, 0) is None
    await at(stream, "billing", 4, 2)
    await at(stream, "audit", 3, 5)
    assert [await lowest_position(stream, one) for one in range(2)] == [3, 2]
    await GroupRegister(stream, "audit").delete()
    assert await lowest_position(stream, 0) == 4


@virtual
async def test_while_clocks_are_in_doubt_only_what_every_group_processed_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = await a_stream()
    await at(stream, "billing", 4, 1)
    await at(stream, "audit", 3, 1)
    collections = [GarbageCollection(stream, one) for one in range(2)]
    here_ms = runtime.wall_ms
    monkeypatch.setattr(runtime, "wall_ms", lambda: here_ms() + 7_200_000)
    done = [await one.run_pass() for one in collections]
    assert [one.floor_lsn for one in done] == [3, 1]
    assert "set by 2.0 hours" in done[0].clock_doubt
    assert done[0].batches_expired == 2
