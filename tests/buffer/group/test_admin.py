"""Listing, describing, resetting and deleting groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group import (
    GroupRegister,
    delete_group,
    describe_group,
    group_lag,
    list_groups,
    reset_group,
)
from headwater.buffer.layout import group_record_key
from headwater.buffer.stream import Stream, alter_stream, create_stream, delete_stream, open_stream
from headwater.buffer.truncation import plan_truncation, truncate_partition
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused, RolledBack, Trimmed
from headwater.core.limits import GROUP_QUERY_SEEN_S
from headwater.store import MemoryBackend, Store
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member
from tests.buffer.consumer.fakes import FakeQueue
from tests.buffer.consumer.given import produce
from tests.store.scripted import virtual


async def a_stream(partitions: int = 2) -> Stream:
    """Ten records in each partition, in batches of 4, 4 and 2, an hour apart."""
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders", partitions=partitions)
    values = [str(number).encode() for number in range(10)]
    for batch in (values[:4], values[4:8], values[8:]):
        for partition in range(partitions):
            await produce(stream, batch, partition=partition)
        await runtime.sleep(3600)
    return stream


async def a_query(stream: Stream, group: str = "billing", **lsns: int) -> GroupRegister:
    """A query that is at these LSNs, by partition, and gave its last sign of life just now."""
    register = GroupRegister(stream, group)
    await register.begin("query", dict.fromkeys(range(stream.partitions), 1))
    epoch = await register.start_query("q1", is_new=True)
    for name, lsn in lsns.items():
        await register.take(int(name[1:]), epoch)
        await register.acknowledge(int(name[1:]), epoch, lsn)
    return register


async def members(register: GroupRegister, *names: str, timeout_s: float = 60.0) -> None:
    """Consumers that read the group: the first one has partition 0, and so on."""

    def join(now: ClaimState) -> ClaimState:
        seen_ms = runtime.wall_ms()
        joined = {name: Member(1, timeout_s, 1, f"host-{name}", seen_ms) for name in names}
        claims = {str(one): Claim(name, now.epoch + 1) for one, name in enumerate(names)}
        return ClaimState(now.epoch + 1, ClaimTable(joined, claims, len(names)))

    await register.share(join)


async def positions(stream: Stream, group: str = "billing") -> dict[int, int]:
    return (await GroupRegister(stream, group).positions())[1]


async def later() -> None:
    """So late that the query does not count as running any more."""
    await runtime.sleep(GROUP_QUERY_SEEN_S)


# Listing


@virtual
async def test_groups_are_listed_by_name_with_their_readers() -> None:
    stream = await a_stream()
    assert await list_groups(stream) == []
    await a_query(stream, "etl")
    consumers = GroupRegister(stream, "audit")
    await consumers.begin("consumers", {0: 1, 1: 1})
    await members(consumers, "a", "b")
    await GroupRegister(stream, "waiting").begin("query", {0: 1, 1: 1})
    gone = await a_query(stream, "gone")
    await gone.delete()
    found = await list_groups(stream.store, "orders")
    assert [(one.group, one.kind, one.is_running, one.readers) for one in found] == [
        ("audit", "consumers", True, ("a", "b")),
        ("etl", "query", True, ("q1",)),
        ("waiting", "query", False, ()),
    ]
    await runtime.sleep(60)
    assert [one.is_running for one in await list_groups(stream)] == [False, True, False]
    await later()
    assert not any(one.is_running for one in await list_groups(stream))


@virtual
async def test_a_damaged_register_is_listed_with_its_problem() -> None:
    stream = await a_stream()
    await a_query(stream, "etl")
    await stream.store.put(group_record_key("orders", stream.id, "bad"), b"{}\n")
    found = await list_groups(stream)
    assert [(one.group, bool(one.problem)) for one in found] == [("bad", True), ("etl", False)]


@virtual
async def test_groups_go_with_their_stream() -> None:
    stream = await a_stream()
    await a_query(stream, p0=4)
    await delete_stream(stream.store, "orders")
    again = await create_stream(stream.store, "orders")
    assert await list_groups(again) == []
    assert [meta async for meta in stream.store.list("streams/orders/groups")] == []


# Lag


@virtual
async def test_the_lag_is_what_is_not_processed_in_each_partition() -> None:
    stream = await a_stream(partitions=3)
    await a_query(stream, p0=5, p1=7, p2=11)
    found = (await group_lag(stream, group="billing")).partitions
    seen = {
        one: (lag.lsn, lag.end_lsn, lag.lag.batches, lag.lag.records) for one, lag in found.items()
    }
    assert seen == {0: (5, 11, 2, 6), 1: (7, 11, 2, 4), 2: (11, 11, 0, 0)}
    assert found[0].lag.seconds == pytest.approx(7200, abs=60)
    assert found[0].lag.size_bytes
    assert found[2].lag.seconds == 0


@virtual
async def test_what_retention_deleted_is_lost_and_not_lag() -> None:
    stream = await a_stream(partitions=1)
    await a_query(stream, p0=3)
    (plan,) = await plan_truncation(stream, 9)
    await truncate_partition(stream, plan)
    found = (await group_lag(stream, group="billing")).partitions[0]
    assert (found.lsn, found.floor_lsn, found.lost, found.lag.records) == (3, 9, 6, 2)


@virtual
async def test_a_position_beyond_the_end_is_reported() -> None:
    stream = await a_stream()
    await a_query(stream, p0=12)
    with pytest.raises(RolledBack, match=r"at LSN 12 .* ends at 11"):
        await group_lag(stream, group="billing")
    described = await describe_group(stream, group="billing")
    assert ["ends at 11" in one.problem for one in described.partitions] == [True, False]


@virtual
async def test_a_description_says_who_reads_what() -> None:
    stream = await a_stream()
    register = GroupRegister(stream, "audit")
    await register.begin("consumers", {0: 5, 1: 9})
    await members(register, "a")
    found = await describe_group(stream.store, "orders", group="audit")
    assert (found.record.kind, found.is_running, found.record.epoch) == ("consumers", True, 1)
    rows = [(one.partition, one.reader, one.lsn, one.lag.records) for one in found.partitions]
    assert rows == [(0, "a", 5, 6), (1, "", 9, 2)]


@virtual
async def test_a_group_that_never_began_is_unknown() -> None:
    stream = await a_stream()
    for call in (
        group_lag(stream, group="nope"),
        describe_group(stream, group="nope"),
        reset_group(stream, group="nope", to="latest", dry_run=False),
        delete_group(stream, group="nope"),
    ):
        with pytest.raises(UnknownGroup, match="'nope'"):
            await call


@virtual
async def test_retention_may_delete_records_while_a_lag_is_computed() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    await a_query(queue.stream(), p0=1)

    async def trimmed(call: str) -> None:
        if call == "sequence_at_lsn":
            queue.floor = 2
        await FakeQueue.ask(queue, call)

    queue.ask = trimmed  # type: ignore[method-assign]
    found = (await group_lag(queue.stream(), group="billing")).partitions[0]
    assert (found.floor_lsn, found.lost, found.lag.records) == (5, 4, 2)


@pytest.mark.parametrize(("lsn", "batches"), [(2, 4), (4, 2), (5, 2)])
@virtual
async def test_a_batch_that_cannot_be_counted_ends_what_is_known(lsn: int, batches: int) -> None:
    stream = await create_stream(Store(MemoryBackend()), "orders", format="v1")
    await produce(stream, *[[b"%d" % number] for number in range(5)])
    lost = (await stream.queue_reader(0).after(None, 5))[3]
    await a_query(stream, p0=lsn)
    await stream.store.delete(lost.location)
    found = (await group_lag(stream, group="billing")).partitions[0]
    assert (found.end_lsn, found.lag.batches) == (4, batches)
    assert found.lag.records == max(0, 4 - lsn)


# Resets


@virtual
async def test_a_dry_run_says_what_would_move_and_changes_nothing() -> None:
    stream = await a_stream()
    register = await a_query(stream, p0=5, p1=11)
    before = await register.read()
    planned = await reset_group(stream, group="billing", to="earliest")
    assert (planned.is_done, planned.is_running) == (False, True)
    assert [tuple(msgspec.structs.astuple(one)) for one in planned.moved] == [(0, 5, 1), (1, 11, 1)]
    assert await register.read() == before
    assert await positions(stream) == {0: 5, 1: 11}


TARGETS: list[tuple[Any, dict[int, int]]] = [
    ("earliest", {0: 1, 1: 1}),
    ("latest", {0: 11, 1: 11}),
    (6, {0: 6, 1: 6}),
    ({1: 6}, {0: 3, 1: 6}),
    ({0: "latest", 1: "earliest"}, {0: 11, 1: 1}),
]


@pytest.mark.parametrize(("to", "after"), TARGETS)
@virtual
async def test_a_reset_moves_to_its_targets(to: Any, after: dict[int, int]) -> None:
    stream = await a_stream()
    await a_query(stream, p0=3, p1=4)
    await later()
    done = await reset_group(stream, group="billing", to=to, dry_run=False)
    assert done.is_done
    assert await positions(stream) == after


@virtual
async def test_a_reset_to_a_time_goes_to_the_first_record_of_that_time() -> None:
    stream = await a_stream(partitions=1)
    await a_query(stream)
    await later()
    now_s = runtime.wall_ms() / 1000
    for ago_s, lsn in ((2.5 * 3600, 5), (1.5 * 3600, 9), (0, 11), (99 * 3600, 1)):
        at = datetime.fromtimestamp(now_s - ago_s, UTC)
        await reset_group(stream, group="billing", to=at, dry_run=False)
        assert await positions(stream) == {0: lsn}


@virtual
async def test_a_running_group_is_reset_only_by_force() -> None:
    stream = await a_stream()
    register = await a_query(stream, p0=3)
    epoch = await register.start_query("q1", is_new=False)
    with pytest.raises(Refused, match=r"is running \(query q1\)\. Stop it"):
        await reset_group(stream, group="billing", to=1, dry_run=False)
    with pytest.raises(Refused, match="is running"):
        await delete_group(stream, group="billing")
    await register.check({0: epoch})
    await reset_group(stream, group="billing", to=1, dry_run=False, force=True)
    with pytest.raises(Fenced):
        await register.check({0: epoch})


@virtual
async def test_members_run_for_their_own_timeout() -> None:
    stream = await a_stream()
    register = GroupRegister(stream, "audit")
    await register.begin("consumers", {0: 1, 1: 1})
    await members(register, "a", timeout_s=30.0)
    await runtime.sleep(29)
    with pytest.raises(Refused, match="member a on host-a"):
        await delete_group(stream, group="audit")
    await runtime.sleep(1)
    await delete_group(stream, group="audit")


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (12, "LSN 12 does not exist yet; the next record will have LSN 11"),
        (0, "LSN 0"),
        ("soon", "not a position"),
        (None, "no position"),
        ({}, "no position"),
        ({2: 1}, "partitions 0 to 1"),
    ],
)
@virtual
async def test_a_target_that_is_none_is_refused(to: Any, message: str) -> None:
    stream = await a_stream()
    await a_query(stream, p0=3)
    with pytest.raises(Refused, match=message):
        await reset_group(stream, group="billing", to=to, force=True)


@virtual
async def test_a_target_that_is_not_retained_is_refused() -> None:
    stream = await a_stream(partitions=1)
    await a_query(stream, p0=10)
    (plan,) = await plan_truncation(stream, 9)
    await truncate_partition(stream, plan)
    with pytest.raises(Trimmed, match="LSN 3 is not retained"):
        await reset_group(stream, group="billing", to=3)
    await reset_group(stream, group="billing", to="earliest", dry_run=False, force=True)
    assert await positions(stream) == {0: 9}


@virtual
async def test_a_reset_knows_partitions_that_were_added_since_the_stream_was_opened() -> None:
    stream = await a_stream(partitions=1)
    await a_query(stream, p0=5)
    await later()
    wider = await alter_stream(stream.store, "orders", partitions=2)
    await produce(wider, [b"x"], [b"y"], partition=1)
    register = GroupRegister(wider, "billing")
    epoch = await register.start_query("q1", is_new=False)
    await register.take(1, epoch)
    await register.acknowledge(1, epoch, 2)
    await reset_group(stream, group="billing", to={0: 1}, dry_run=False, force=True)
    assert await positions(wider) == {0: 1, 1: 2}
    await reset_group(stream, group="billing", to="latest", dry_run=False, force=True)
    assert await positions(wider) == {0: 11, 1: 3}


@virtual
async def test_a_stream_that_was_created_again_is_refused() -> None:
    stream = await a_stream()
    await a_query(stream)
    await delete_stream(stream.store, "orders")
    await create_stream(stream.store, "orders")
    with pytest.raises(Refused, match="deleted and created again"):
        await reset_group(stream, group="billing", to="latest")


@virtual
async def test_a_reset_repairs_a_group_whose_record_went_back() -> None:
    stream = await a_stream()
    register = await a_query(stream, p0=5)
    key = group_record_key("orders", stream.id, "billing")
    before = await stream.store.get(key)
    await register.reset({0: 2, 1: 2})
    newest = await register.start_query("q2", is_new=True)
    await register.take(0, newest)
    await stream.store.put(key, before.data)
    opened = await open_stream(stream.store, "orders")
    with pytest.raises(RolledBack, match="headwater group reset"):
        await group_lag(opened, group="billing")
    done = await reset_group(opened, group="billing", to=7, dry_run=False, force=True)
    assert done.is_done
    assert await positions(opened) == {0: 7, 1: 7}
    assert (await GroupRegister(opened, "billing").read()).epoch > newest.number
