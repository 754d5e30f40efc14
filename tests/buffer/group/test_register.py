"""A group's registers: epochs fence, a reset is one write, take returns the position."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer.progress import FollowerRegister, UnknownGroup
from headwater.buffer.group.record import (
    GroupEpoch,
    GroupRecord,
    OtherCheckpoint,
    OtherKind,
)
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.layout import group_key, group_record_key
from headwater.buffer.queue.contract import QueuePosition
from headwater.core.errors import Bug, Contended, Fenced, NotSupported, Refused, RolledBack
from headwater.core.limits import GROUP_RESET_ATTEMPTS
from headwater.store import MemoryBackend, Register
from headwater.store.claims import Claim, ClaimState, ClaimTable
from tests.buffer.group.given import BEGINS, ID, claimed, group_on
from tests.store.scripted import Scripted, after, virtual


async def query_on(backend: MemoryBackend, token: str = "q1") -> tuple[GroupRegister, GroupEpoch]:
    """A group that a query reads."""
    group = group_on(backend)
    await group.begin("query", BEGINS)
    return group, await group.start_query(token, is_new=True)


async def positions_of(backend: MemoryBackend) -> dict[int, int]:
    return (await group_on(backend).positions())[1]


# Beginning


@virtual
async def test_a_group_that_never_began_is_unknown() -> None:
    with pytest.raises(UnknownGroup, match="never begun"):
        await group_on().read()
    with pytest.raises(UnknownGroup):
        await group_on().start_query("q", is_new=True)
    with pytest.raises(UnknownGroup):
        await group_on().positions()


@virtual
async def test_the_first_beginning_counts() -> None:
    backend = MemoryBackend()
    first = await group_on(backend).begin("consumers", BEGINS)
    again = await group_on(backend).begin("consumers", {0: 1, 1: 1})
    assert first == again
    assert (first.epoch, first.resets, first.begins) == (0, 0, {"0": 11, "1": 21})
    assert await positions_of(backend) == BEGINS


@virtual
async def test_a_partition_that_was_added_later_is_read_whole() -> None:
    backend = MemoryBackend()
    await group_on(backend).begin("query", BEGINS)
    wider = group_on(backend, partitions=3)
    assert (await wider.positions())[1] == {**BEGINS, 2: 1}
    epoch = await wider.start_query("q", is_new=True)
    assert (await wider.take(2, epoch)).lsn == 1


@pytest.mark.parametrize("begins", [{0: 0}, {0: -1}, {0: 1 << 63}, {0: True}, {0: "7"}])
@virtual
async def test_a_beginning_that_is_no_lsn_is_refused(begins: Any) -> None:
    with pytest.raises(Refused):
        await group_on().begin("query", begins)


@virtual
async def test_a_group_is_read_by_consumers_or_by_a_query() -> None:
    backend = MemoryBackend()
    group = group_on(backend)
    await group.begin("consumers", BEGINS)
    cure = "headwater group delete memory://.* orders billing"
    with pytest.raises(OtherKind, match=f"read by consumers.*by a query as well.*{cure}"):
        await group.begin("query", BEGINS)
    with pytest.raises(OtherKind):
        await group.start_query("q", is_new=True)
    other = GroupRegister(group.stream, "audit")
    await other.begin("query", BEGINS)
    with pytest.raises(OtherKind, match="read by a query"):
        await claimed(other, "a", 0)


@virtual
async def test_a_group_says_which_one_it_is() -> None:
    assert repr(group_on()) == "<group 'billing' of 'orders'>"
    with pytest.raises(Refused, match="not a valid group name"):
        GroupRegister(group_on().stream, "a/b")


# Epochs


@virtual
async def test_each_start_of_a_query_has_a_higher_epoch() -> None:
    backend = MemoryBackend()
    group, first = await query_on(backend)
    second = await group.start_query("q1", is_new=False)
    assert (first.number, second.number) == (1, 2)


@virtual
async def test_the_position_is_the_one_that_take_returns() -> None:
    backend = Scripted()
    old = group_on(backend.inner)
    await old.begin("query", BEGINS)
    old_epoch = await old.start_query("q1", is_new=True)
    await old.take(0, old_epoch)
    new = group_on(backend)
    epoch = await new.start_query("q1", is_new=False)

    async def acknowledges() -> None:
        await old.acknowledge(0, old_epoch, 15)

    # The old run acknowledges after the new one has read the position and before it writes it.
    backend.next("put_if_unchanged", after(acknowledges))
    assert (await new.take(0, epoch)).lsn == 15
    with pytest.raises(Fenced, match="epoch 2 took it over from epoch 1"):
        await old.acknowledge(0, old_epoch, 16)
    assert (await positions_of(backend.inner))[0] == 15  # type: ignore[arg-type]


@virtual
async def test_an_old_epoch_never_takes_a_partition_back() -> None:
    backend = MemoryBackend()
    group, old = await query_on(backend)
    new = await group.start_query("q1", is_new=False)
    await group.take(0, new)
    with pytest.raises(Fenced, match="epoch 2 took it over from epoch 1"):
        await group.take(0, old)
    # Nobody has taken partition 1: the old run takes it, and loses it to the new one.
    await group.take(1, old)
    await group.acknowledge(1, old, 25)
    assert (await group.take(1, new)).lsn == 25


@virtual
async def test_an_acknowledgement_only_moves_forward_and_a_seek_both_ways() -> None:
    group, epoch = await query_on(MemoryBackend())
    await group.take(0, epoch)
    assert (await group.acknowledge(0, epoch, 20)).lsn == 20
    assert (await group.acknowledge(0, epoch, 15)).lsn == 20
    assert (await group.seek(0, epoch, 12)).lsn == 12
    assert (await group.acknowledge(0, epoch, 13)).lsn == 13
    with pytest.raises(Refused, match="LSN 0"):
        await group.seek(0, epoch, 0)


@virtual
async def test_taking_again_changes_nothing() -> None:
    backend = Scripted()
    group = group_on(backend)
    await group.begin("query", BEGINS)
    epoch = await group.start_query("q", is_new=True)
    first = await group.take(0, epoch)
    writes = backend.count("put_if_unchanged")
    assert await group.take(0, epoch) == first
    assert backend.count("put_if_unchanged") == writes


# Consumers


@virtual
async def test_a_claim_gives_an_epoch_in_the_same_write() -> None:
    backend = MemoryBackend()
    group = group_on(backend)
    await group.begin("consumers", BEGINS)
    record = await claimed(group, "a", 0, 1)
    epoch = record.claim_of(0)
    assert epoch is not None
    assert epoch == record.claim_of(1)
    assert (epoch.number, record.epoch) == (1, 1)
    assert record.claim_of(2) is None
    other = (await claimed(group, "b", 1)).claim_of(1)
    assert other is not None
    assert other.number == 2
    assert (await group.check({0: epoch, 1: other})).table.claims["1"].member == "b"
    with pytest.raises(Fenced, match="partition 1 is at epoch 2"):
        await group.check({0: epoch, 1: epoch})


@virtual
async def test_changes_that_claim_nothing_give_no_epoch() -> None:
    group = group_on()
    await group.begin("consumers", BEGINS)
    joined = await group.share(lambda now: ClaimState(now.epoch, ClaimTable(joins=1)))
    assert (joined.epoch, joined.table.joins) == (0, 1)


@pytest.mark.parametrize(("raised", "claim"), [(0, 0), (0, 1), (1, 0), (1, 2), (2, 2), (-1, 0)])
@virtual
async def test_a_claim_without_an_epoch_of_its_own_is_a_bug(raised: int, claim: int) -> None:
    group = group_on()
    await group.begin("consumers", BEGINS)

    def change(now: ClaimState) -> ClaimState:
        return ClaimState(raised, ClaimTable(claims={"0": Claim("a", claim)}))

    with pytest.raises(Bug):
        await group.share(change)


# Checks of a query


@virtual
async def test_a_query_is_fenced_by_a_later_start_a_reset_and_a_deletion() -> None:
    group, first = await query_on(MemoryBackend())
    await group.check({0: first, 1: first})
    second = await group.start_query("q1", is_new=False)
    with pytest.raises(Fenced, match="is at epoch 2, and epoch 1 reads it no longer"):
        await group.check({0: first})
    with pytest.raises(Fenced):
        await group.count(first, 1)
    with pytest.raises(Fenced):
        await group.beat(first)
    await group.reset({0: 1, 1: 1})
    with pytest.raises(Fenced, match="was reset"):
        await group.check({0: second})
    third = await group.start_query("q2", is_new=True)
    await group.delete()
    with pytest.raises(Fenced, match="was deleted"):
        await group.check({0: third})
    with pytest.raises(Fenced, match="was deleted"):
        await group.beat(third)


@virtual
async def test_another_checkpoint_is_refused_before_anything_changes() -> None:
    group, running = await query_on(MemoryBackend())
    with pytest.raises(OtherCheckpoint, match="belongs to checkpoint q1, not to checkpoint q2"):
        await group.start_query("q2", is_new=False)
    await group.check({0: running})
    await group.start_query("q2", is_new=True)
    with pytest.raises(OtherCheckpoint):
        await group.start_query("q1", is_new=False)


@virtual
async def test_a_start_that_its_own_check_refuses_changes_nothing() -> None:
    group, running = await query_on(MemoryBackend())

    def refuses(record: GroupRecord) -> None:
        raise Refused(f"step {record.step}")

    with pytest.raises(Refused, match="step 0"):
        await group.start_query("q1", is_new=False, check=refuses)
    await group.check({0: running})


@virtual
async def test_planned_micro_batches_are_counted_and_an_older_copy_is_refused() -> None:
    group, epoch = await query_on(MemoryBackend())
    await group.count(epoch, 1)
    assert (await group.count(epoch, 2, closed=True)).closed
    assert await group.count(epoch, 2) == await group.read()
    with pytest.raises(OtherCheckpoint, match="has planned 2 micro-batches, and this query 1"):
        await group.count(epoch, 1)
    await group.start_query("q1", is_new=False)
    assert (await group.read()).step == 2
    await group.start_query("q2", is_new=True)
    assert ((await group.read()).step, (await group.read()).closed) == (0, False)


# Resets and deletions


@virtual
async def test_a_reset_moves_all_partitions_in_one_write() -> None:
    backend = Scripted()
    group = group_on(backend)
    await group.begin("query", BEGINS)
    old = await group.start_query("q1", is_new=True)
    for partition, lsn in BEGINS.items():
        await group.take(partition, old)
        await group.acknowledge(partition, old, lsn + 5)
    writes = backend.count("put_if_unchanged")
    record = await group.reset({0: 3, 1: 4})
    assert backend.count("put_if_unchanged") == writes + 1
    assert (record.epoch, record.resets, record.query) == (2, 1, "")
    assert (await group.positions())[1] == {0: 3, 1: 4}


@virtual
async def test_an_acknowledgement_from_before_a_reset_changes_nothing() -> None:
    backend = MemoryBackend()
    group, old = await query_on(backend)
    await group.take(0, old)
    await group.reset({0: 3, 1: 4})
    await group.acknowledge(0, old, 19)
    await group.take(1, old)
    await group.acknowledge(1, old, 29)
    assert await positions_of(backend) == {0: 3, 1: 4}
    new = await group.start_query("q2", is_new=True)
    assert [(await group.take(p, new)).lsn for p in (0, 1)] == [3, 4]
    with pytest.raises(Fenced):
        await group.acknowledge(0, old, 20)


@virtual
async def test_a_reset_of_one_partition_leaves_the_others_where_they_are() -> None:
    backend = MemoryBackend()
    group, old = await query_on(backend)
    await group.take(1, old)
    await group.acknowledge(1, old, 28)
    await group.reset({0: 3})
    assert await positions_of(backend) == {0: 3, 1: 28}
    with pytest.raises(Fenced):
        await group.acknowledge(1, old, 29)


@virtual
async def test_a_reset_of_one_partition_loses_no_acknowledgement_of_another() -> None:
    backend = Scripted()
    inner = backend.inner
    assert isinstance(inner, MemoryBackend)
    reader, old = await query_on(inner)
    await reader.take(1, old)

    async def acknowledges() -> None:
        await reader.acknowledge(1, old, 28)

    # Between the reads of the reset and its first write, which stops the readers.
    backend.next("put_if_unchanged", after(acknowledges))
    await group_on(backend).reset({0: 3})
    assert await positions_of(inner) == {0: 3, 1: 28}


@pytest.mark.parametrize("before", ["the position is taken", "the reset"])
@virtual
async def test_a_reader_that_starts_during_a_reset_has_it_begin_again(before: str) -> None:
    backend = Scripted()
    inner = backend.inner
    assert isinstance(inner, MemoryBackend)
    reader, old = await query_on(inner)
    await reader.take(1, old)

    async def reads_on() -> None:
        again = await reader.start_query("q1", is_new=False)
        await reader.take(1, again)
        await reader.acknowledge(1, again, 28)

    async def at_once(apply: Any) -> Any:
        return await apply()

    # The first write stops the readers, the second takes partition 1, the third is the reset.
    waits = {"the position is taken": 1, "the reset": 2}[before]
    backend.next("put_if_unchanged", *[at_once] * waits, after(reads_on))
    record = await group_on(backend).reset({0: 3})
    assert record.epoch == 5, "a start, two attempts, a start in between, and the reset"
    assert await positions_of(inner) == {0: 3, 1: 28}


@virtual
async def test_a_reset_gives_up_when_readers_start_again_and_again() -> None:
    backend = Scripted()
    inner = backend.inner
    assert isinstance(inner, MemoryBackend)
    reader, old = await query_on(inner)
    await reader.take(1, old)

    async def starts() -> None:
        await reader.take(1, await reader.start_query("q1", is_new=False))

    async def at_once(apply: Any) -> Any:
        return await apply()

    # Each attempt stops the readers, and finds that one has taken the partition since.
    backend.next("put_if_unchanged", *[at_once, after(starts)] * GROUP_RESET_ATTEMPTS)
    with pytest.raises(Contended, match="readers started again 8 times"):
        await group_on(backend).reset({0: 3})
    assert (await reader.read()).resets == 0


@virtual
async def test_a_reset_that_its_check_refuses_changes_nothing() -> None:
    group, epoch = await query_on(MemoryBackend())

    def refuses(_: GroupRecord) -> None:
        raise Refused("it is read")

    for begins in (BEGINS, {0: 1}):
        with pytest.raises(Refused, match="it is read"):
            await group.reset(begins, check=refuses)
    with pytest.raises(Refused, match="it is read"):
        await group.delete(check=refuses)
    await group.check({0: epoch})


@virtual
async def test_a_deleted_group_is_unknown_and_its_name_begins_again_with_higher_epochs() -> None:
    backend = MemoryBackend()
    group, old = await query_on(backend)
    await group.take(0, old)
    await group.acknowledge(0, old, 19)
    await group.delete()
    for call in (group.read(), group.positions(), group.delete(), group.reset({0: 1, 1: 1})):
        with pytest.raises(UnknownGroup, match="was deleted"):
            await call
    begun = await group.begin("consumers", {0: 5, 1: 6})
    assert begun.epoch >= old.number
    assert begun.resets == 1
    assert await positions_of(backend) == {0: 5, 1: 6}
    await group.acknowledge(0, old, 25)
    assert await positions_of(backend) == {0: 5, 1: 6}
    new = (await claimed(group, "a", 0)).claim_of(0)
    assert new is not None
    assert new.number > old.number
    assert (await group.take(0, new)).lsn == 5


# Registers that go back


def stored(backend: MemoryBackend, group: GroupRegister, partition: int | None = None) -> str:
    if partition is None:
        return group_record_key(group.stream.name, ID, group.group)
    return group_key(group.stream.name, partition, ID, group.group)


@virtual
async def test_a_position_that_went_back_is_not_acknowledged() -> None:
    backend = MemoryBackend()
    group, epoch = await query_on(backend)
    await group.take(0, epoch)
    key = stored(backend, group, 0)
    before = await backend.get(key)
    newer = await group.start_query("q1", is_new=False)
    await group.take(0, newer)
    await backend.put(key, before.data)
    with pytest.raises(RolledBack):
        await group.acknowledge(0, newer, 15)
    with pytest.raises(RolledBack, match="went back to epoch 1, and epoch 2 had taken it"):
        await group_on(backend).acknowledge(0, newer, 15)
    await backend.delete(key)
    with pytest.raises(RolledBack, match="is gone"):
        await group_on(backend).acknowledge(0, newer, 15)


@virtual
async def test_a_record_that_went_back_is_reported_and_a_reset_continues_above_it() -> None:
    backend = MemoryBackend()
    group, newest = await query_on(backend)
    key = stored(backend, group)
    before = await backend.get(key)
    for _ in range(3):
        newest = await group.start_query("q1", is_new=False)
        await group.take(0, newest)
    await backend.put(key, before.data)
    restarted = group_on(backend)
    with pytest.raises(RolledBack, match=r"epoch 4 was given, and .* does not know of it"):
        await group_on(backend).check({0: newest})
    lower = await restarted.start_query("q1", is_new=False)
    assert lower.number < newest.number
    with pytest.raises(RolledBack, match="headwater group reset"):
        await restarted.take(0, lower)
    record = await restarted.reset({0: 5})
    assert record.epoch > newest.number
    higher = await restarted.start_query("q2", is_new=True)
    assert [(await restarted.take(p, higher)).lsn for p in (0, 1)] == [5, 21]


@virtual
async def test_resets_that_a_record_does_not_know_of_are_reported() -> None:
    backend = MemoryBackend()
    group, _ = await query_on(backend)
    key = stored(backend, group)
    before = await backend.get(key)
    await group.reset({0: 3, 1: 4})
    epoch = await group.start_query("q2", is_new=True)
    await group.take(0, epoch)
    await backend.put(key, before.data)
    with pytest.raises(RolledBack, match="its position knows of 1 resets"):
        await group_on(backend).positions()
    behind = GroupEpoch(9, 0, {})
    with pytest.raises(RolledBack, match="its position knows of 1 resets"):
        await group_on(backend).take(0, behind)
    record = await group_on(backend).reset({0: 7, 1: 8})
    assert record.resets == 2


@virtual
async def test_a_record_that_is_gone_is_reported_to_its_reader() -> None:
    backend = MemoryBackend()
    group, epoch = await query_on(backend)
    await backend.delete(stored(backend, group))
    for call in (group_on(backend).check({0: epoch}), group_on(backend).beat(epoch)):
        with pytest.raises(RolledBack, match="is gone"):
            await call


# What is stored


@virtual
async def test_both_registers_hold_what_the_format_says() -> None:
    backend = MemoryBackend()
    group, epoch = await query_on(backend)
    await group.take(1, epoch)
    store = group.stream.store
    record = (await Register(store, stored(backend, group), dict[str, Any]).read()).value
    times = {name: record.pop(name) for name in ("changed_ms", "seen_ms")}
    assert all(time > 0 for time in times.values())
    assert record == {
        "kind": "query",
        "epoch": 1,
        "resets": 0,
        "begins": {"0": 11, "1": 21},
        "query": "q1",
    }
    position = (await Register(store, stored(backend, group, 1), dict[str, Any]).read()).value
    assert position.pop("committed_ms") > 0
    assert position == {"epoch": 1, "resets": 0, "lsn": 21}


@virtual
async def test_a_position_of_the_earlier_form_is_refused_with_the_cure() -> None:
    backend = MemoryBackend()
    group, epoch = await query_on(backend)
    await FollowerRegister(group.stream, 0, "billing").begin(QueuePosition(7, 12))
    for call in (group.take(0, epoch), group.positions(), group.reset({0: 3})):
        with pytest.raises(NotSupported, match="Read under another group name, or remove"):
            await call
    assert (await group.take(1, epoch)).lsn == 21
