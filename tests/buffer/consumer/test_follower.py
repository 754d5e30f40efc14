"""Followers: a position of their own, and nothing that anybody else would notice."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, Follower
from headwater.buffer.queue.contract import BatchTrimmed
from headwater.core.errors import OutcomeUnknown, Refused, RolledBack, Trimmed
from tests.buffer.consumer.fakes import ID, FakeQueue
from tests.store.scripted import LOST, Apply, Scripted, lands_then, virtual


async def following(queue: FakeQueue, group: str = "audit", **options: Any) -> Follower:
    return await Follower.open(queue.stream(), group=group, **options)


async def sequence_of_next(follower: Follower) -> int | None:
    batch = await follower.next_batch()
    return None if batch is None else batch.sequence


@virtual
async def test_it_reads_what_is_retained_acknowledged_or_not_and_fences_nobody() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    owner = await Consumer.open(queue.stream(), gc=False)
    await owner.next_descriptors(3)
    await owner.ack_through(1)
    follower = await following(queue)
    assert [await sequence_of_next(follower) for _ in range(4)] == [0, 1, 2, None]
    await follower.commit(2)
    await owner.ack_through(2)
    assert (queue.epoch, queue.acked) == (1, 3)


@virtual
async def test_it_goes_on_after_what_it_committed() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    first = await following(queue)
    for _ in range(3):
        await first.next_batch()
    await first.commit(1)
    again = await following(queue)
    assert again.committed == 1
    assert await sequence_of_next(again) == 2


@virtual
async def test_groups_do_not_see_each_other() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    first, other = await following(queue, "a"), await following(queue, "b")
    await first.next_batch()
    await first.commit(0)
    assert await sequence_of_next(other) == 0
    keys = [meta.key async for meta in queue.store.list("streams")]
    assert keys == [f"streams/orders/0/groups/{ID}/{group}.json" for group in "ab"]


@virtual
async def test_latest_means_the_moment_it_was_first_said() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    await following(queue, start="latest")
    await queue.add_many(1)
    # Opened again before anything was committed: what came in between is not passed over.
    assert await sequence_of_next(await following(queue, start="latest")) == 2


@virtual
async def test_opening_takes_no_other_process_of_the_group_back() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(4)

    async def not_there_yet(apply: Apply) -> None:
        try:
            await apply()
        finally:
            # The group has no position. Before this process writes one, another one comes far.
            other = await following(queue)
            await other.next_descriptors(3)
            await other.commit(2)

    backend.next("get", not_there_yet)
    late = await following(queue)
    assert late.committed == 2
    assert await sequence_of_next(late) == 3


@virtual
async def test_earliest_is_the_oldest_that_is_retained() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    queue.floor = 2
    assert await sequence_of_next(await following(queue)) == 2


@virtual
async def test_what_the_retention_took_is_trimmed() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    follower = await following(queue)
    queue.floor = 2
    with pytest.raises(BatchTrimmed) as told:
        await follower.next_batch()
    assert told.value.floor_sequence == 2
    again = await following(queue)
    with pytest.raises(Trimmed):
        await again.next_batch()
    with pytest.raises(Trimmed):
        await again.lag()
    assert await sequence_of_next(await following(queue, reset=True)) == 2


@virtual
async def test_a_position_only_moves_forward() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    slow, fast = await following(queue), await following(queue)
    for _ in range(3):
        await slow.next_batch()
        await fast.next_batch()
    await fast.commit(2)
    with pytest.raises(Refused, match="non-monotonic commit"):
        await slow.commit(1)
    await slow.commit(2)
    with pytest.raises(Refused, match="beyond what was handed out"):
        await slow.commit(3)
    assert (await following(queue)).committed == 2


@virtual
async def test_a_commit_whose_answer_was_lost_is_settled() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(2)
    follower = await following(queue)
    await follower.next_batch()
    backend.next("put_if_unchanged", lands_then(LOST))
    await follower.commit(0)
    assert follower.committed == 0
    assert isinstance(LOST, OutcomeUnknown)


@virtual
async def test_descriptors_and_batches_come_from_one_cursor() -> None:
    queue = FakeQueue()
    await queue.add_many(4)
    follower = await following(queue)
    assert await sequence_of_next(follower) == 0
    assert [d.sequence for d in await follower.next_descriptors(2)] == [1, 2]
    assert await follower.next_descriptors(0) == []
    assert await sequence_of_next(follower) == 3
    batch = await follower.fetch_handle().fetch(queue.entries[1])
    assert batch.entries == [b"data1", b"data2"]


@virtual
async def test_a_queue_that_went_back_behind_the_position_is_noticed() -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    follower = await following(queue)
    await follower.next_descriptors(3)
    await follower.commit(2)
    del queue.entries[1:]
    with pytest.raises(RolledBack, match="is at batch 2"):
        await following(queue)


@virtual
async def test_a_position_that_moved_on_while_the_group_was_opened_is_no_damage() -> None:
    backend = Scripted()
    queue = FakeQueue(backend)
    await queue.add_many(1)
    other = await following(queue)

    async def others_first(apply: Apply) -> Any:
        await queue.add_many(2)
        await other.next_descriptors(3)
        await other.commit(2)
        return await apply()

    backend.next("get", others_first)
    again = await following(queue)
    assert again.committed == 2


@virtual
async def test_what_may_not_be_followed_is_refused() -> None:
    queue = FakeQueue()
    with pytest.raises(Refused, match="consumed by nodes"):
        await Follower.open(queue.stream(consumer="nodes"), group="audit")
    with pytest.raises(Refused, match="valid group name"):
        await following(queue, group="../x")
    with pytest.raises(Refused, match="earliest"):
        await following(queue, start="yesterday")
    assert [meta.key async for meta in queue.store.list("")] == []


@virtual
async def test_its_lag_is_what_lies_after_its_position() -> None:
    queue = FakeQueue()
    first, second, third = await queue.add_many(3)
    follower = await following(queue)
    whole = await follower.lag()
    sizes = [d.size_bytes for d in (first, second, third)]
    assert (whole.batches, whole.records, whole.size_bytes) == (3, 6, sum(sizes))
    await follower.next_descriptors(3)
    await follower.commit(1)
    rest = await follower.lag()
    assert (rest.batches, rest.records, rest.size_bytes) == (1, 2, third.size_bytes)
    await follower.commit(2)
    drained = await follower.lag()
    assert (drained.batches, drained.records, drained.size_bytes, drained.seconds) == (0, 0, 0, 0)


@virtual
async def test_a_closed_follower_delivers_and_commits_nothing() -> None:
    queue = FakeQueue()
    await queue.add_many(2)
    follower = await following(queue)
    assert await follower.next_batch() is not None
    await follower.close()
    await follower.close()
    for call in (
        follower.next_batch(),
        follower.next_descriptors(1),
        follower.commit(0),
        follower.lag(),
    ):
        with pytest.raises(Refused, match="closed"):
            await call
