"""Segments in a store: written once under an id of their own, read by ranges, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.log import Group
from headwater.store import ByteRange, MemoryBackend, Object, PreconditionFailed, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from headwater.tier import SegmentId, TopicIdPartition
from headwater.tier.segments import (
    EncodedSegment,
    ObjectStorage,
    SegmentConfig,
    SegmentPlan,
    encode_segment,
    new_segment_id,
    segment_key,
)
from tests.store.scripted import LOST, Scripted, Step, fails, lands_then, stalls, virtual
from tests.tier.given import ORDERS, segment_id
from tests.tier.segments.given import by_lsn, decoded, encoded, lost, lsns, orders, storage, told

LARGE = [orders(first, 100, size=2000) for first in range(1, 1001, 100)]
LARGE_CONFIG = SegmentConfig(row_group_rows=100)
ONE_TRY = RetryPolicy(attempts=1)


class Ranges(Scripted):
    """Notes which bytes were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ByteRange | None] = []

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        self.asked.append(byte_range)
        return await super().get(key, byte_range)


@virtual
async def test_what_was_copied_is_fetched() -> None:
    groups = [orders(5, 9), lost(14, 15), orders(16, 3, term=2, headers=True), lost(19, 20, term=2)]
    segment, found = encoded(groups), storage()
    await found.copy(segment)
    fetched = [group async for group in found.fetch(told(segment), 1, 100)]
    assert lsns(fetched) == list(range(5, 21))
    assert by_lsn(fetched) == by_lsn(groups)
    for first, end in ((5, 6), (8, 17), (14, 15), (20, 21), (9, 9), (12, 3), (21, 30), (1, 5)):
        parts = [part for group in groups if (part := group.between(first, end - 1)) is not None]
        fetched = [group async for group in found.fetch(told(segment), first, end)]
        assert by_lsn(fetched) == by_lsn(parts)
        assert lsns(fetched) == lsns(parts)


def test_it_works_on_every_kind_of_store(any_store: Store) -> None:
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage(any_store)

    async def main() -> None:
        await found.copy(segment)
        fetched = [group async for group in found.fetch(told(segment), 250, 260)]
        assert lsns(fetched) == list(range(250, 260))
        await found.verify(told(segment))
        await found.delete(segment.description.identity)
        with pytest.raises(NotFound):
            await found.fetch_index(told(segment))

    asyncio.run(main())


@virtual
async def test_only_the_footer_and_the_row_groups_that_are_needed_are_read() -> None:
    backend = Ranges()
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage(Store(backend))
    await found.copy(segment)
    assert [group async for group in found.fetch(told(segment), 250, 260)]
    footer, rows = backend.asked
    third = segment.description.row_groups[2]
    assert rows == ByteRange(third.offset, third.offset + third.size_bytes)
    assert footer is not None
    assert footer.length == segment.receipt.footer_bytes + 48


@virtual
async def test_row_groups_side_by_side_are_one_request_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Ranges()
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage(Store(backend))
    await found.copy(segment)
    size = segment.description.row_groups[0].size_bytes
    monkeypatch.setattr(limits, "TIER_FETCH_BYTES", size * 3 + 1000)
    fetched = [group async for group in found.fetch(told(segment), 1, 2000)]
    assert by_lsn(fetched) == by_lsn(LARGE)
    assert len(backend.asked) == 1 + 4


@virtual
async def test_a_small_segment_is_one_request() -> None:
    backend = Ranges()
    segment, found = encoded([orders(1, 9)]), storage(Store(backend))
    await found.copy(segment)
    assert [group async for group in found.fetch(told(segment), 1, 10)]
    assert len(backend.asked) == 1


@virtual
async def test_a_footer_larger_than_was_guessed_is_read_in_a_second_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TIER_FOOTER_GUESS_BYTES", 100)
    backend = Ranges()
    segment, found = encoded([orders(1, 9)]), storage(Store(backend))
    await found.copy(segment)
    bare = msgspec.structs.replace(told(segment), custom_metadata=None)
    assert (await found.fetch_index(bare)).description == segment.description
    assert len(backend.asked) == 2


@virtual
async def test_the_next_row_groups_are_under_way_while_one_is_used_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TIER_FETCH_BYTES", 1)
    backend = Ranges()
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage(Store(backend))
    await found.copy(segment)
    async with aclosing(found.fetch(told(segment), 1, 2000)) as groups:
        await anext(groups)
        await runtime.sleep(60)
        assert len(backend.asked) == 1 + 2
        await anext(groups)
        await runtime.sleep(60)
        assert len(backend.asked) == 1 + 3
    await runtime.sleep(60)
    assert len(backend.asked) == 1 + 3


@virtual
async def test_a_reader_that_leaves_does_not_wait_for_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TIER_FETCH_BYTES", 1)
    backend = Ranges()
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage(Store(backend))
    await found.copy(segment)
    groups = found.fetch(told(segment), 1, 2000)
    await anext(groups)
    backend.next("get", stalls(20))
    await anext(groups)
    left_s = runtime.monotonic_s()
    await groups.aclose()
    assert runtime.monotonic_s() - left_s < 10


@virtual
async def test_the_index_says_which_columns_records_had() -> None:
    segment, found = encoded(LARGE, config=LARGE_CONFIG), storage()
    await found.copy(segment)
    index = await found.fetch_index(told(segment))
    assert [schema.names for schema in index.schemas] == [LARGE[0].records.schema.names]


@virtual
async def test_segments_are_merged_by_fetching_them_into_another() -> None:
    parts = [
        [orders(1, 5), lost(6, 7)],
        [orders(8, 3, term=2, headers=True)],
        [orders(11, 4, term=2)],
    ]
    found = storage()
    segments = [encoded(groups, number=number) for number, groups in enumerate(parts, start=1)]
    for segment in segments:
        await found.copy(segment)

    async def fetched() -> AsyncIterator[Group]:
        for segment in segments:
            async for group in found.fetch(told(segment), 1, 100):
                yield group

    indexes = [await found.fetch_index(told(segment)) for segment in segments]
    schemas = [schema for index in indexes for schema in index.schemas]
    merged = await encode_segment(SegmentPlan(segment_id(9), 1, 14, schemas), fetched())
    assert by_lsn(decoded(merged.data)) == by_lsn([group for groups in parts for group in groups])
    assert merged.description.epochs == ((1, 1), (2, 8))


@virtual
async def test_deleting_is_idempotent_and_leaves_others_alone() -> None:
    found = storage()
    first, second = (encoded([orders(1, 3)], number=number) for number in (1, 2))
    await found.copy(first)
    await found.copy(second)
    for _ in range(2):
        await found.delete(segment_id(1))
    assert [one async for one, _ in found.list(ORDERS)] == [segment_id(2)]
    assert (await found.fetch_index(told(second))).description == second.description


@virtual
async def test_an_id_is_used_once() -> None:
    found = storage()
    await found.copy(encoded([orders(1, 3)]))
    with pytest.raises(AlreadyExists):
        await found.copy(encoded([orders(1, 4)]))
    assert len(by_lsn([g async for g in found.fetch(told(encoded([orders(1, 3)])), 1, 9)])) == 3


@pytest.mark.parametrize(
    "loss", [lands_then(LOST), lands_then(PreconditionFailed("412")), fails(LOST)]
)
@virtual
async def test_a_lost_answer_is_settled_by_looking(loss: Step) -> None:
    backend = Scripted()
    backend.next("put_if_absent", loss)
    found, segment = storage(Store(backend)), encoded([orders(1, 3)])
    await found.copy(segment)
    await found.verify(told(segment))


@virtual
async def test_an_outcome_that_stays_unknown_is_said_and_the_next_attempt_is_another_object() -> (
    None
):
    backend = Scripted()
    backend.next("put_if_absent", lands_then(LOST))
    found = storage(Store(backend, policy=ONE_TRY))
    first, second = (encoded([orders(1, 3)], number=number) for number in (1, 2))
    with pytest.raises(OutcomeUnknown):
        await found.copy(first)
    await found.copy(second)
    await found.verify(told(second))
    await found.delete(first.description.identity)
    assert [one async for one, _ in found.list(ORDERS)] == [segment_id(2)]


def test_ids_are_new_each_time_and_sort_by_when_they_were_made() -> None:
    made = [new_segment_id(ORDERS) for _ in range(50)]
    assert len({one.id for one in made}) == 50
    assert {one.id.version for one in made} == {7}
    stamps = [one.id.int >> 80 for one in made]
    assert stamps == sorted(stamps)


@virtual
async def test_what_else_stands_in_the_folder_is_of_no_segment() -> None:
    store = Store(MemoryBackend())
    found = storage(store)
    await found.copy(encoded([orders(1, 3)]))
    folder = segment_key(segment_id(7)).rpartition("/")[0]
    assert folder == f"streams/orders/0/segments/{ORDERS.topic_id}"
    for other in ("clock", "notes.txt", f"below/{segment_id(7).id}.parquet"):
        await store.put(f"{folder}/{other}", b"x")
    listed = {(one, meta.key.removeprefix(f"{folder}/")) async for one, meta in found.list(ORDERS)}
    own = f"{segment_id(7).id}.parquet"
    assert listed == {(segment_id(7), own), (None, "notes.txt"), (None, f"below/{own}")}


def test_a_name_that_no_stream_has_names_no_object() -> None:
    foreign = TopicIdPartition(ORDERS.topic_id, "../orders", 0)
    with pytest.raises(Refused, match="not a valid stream name"):
        segment_key(SegmentId(foreign, segment_id(1).id))


@virtual
async def test_an_error_in_the_middle_reaches_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIER_FETCH_BYTES", 1)
    backend = Ranges()
    segment = encoded(LARGE, config=LARGE_CONFIG)
    found = storage(Store(backend, policy=ONE_TRY))
    await found.copy(segment)
    seen = []

    async def read() -> None:
        async for group in found.fetch(told(segment), 1, 2000):
            seen.append(group)
            if len(seen) == 2:
                backend.next("get", fails(Unavailable("down")))

    with pytest.raises(Unavailable):
        await read()
    assert lsns(seen) == list(range(1, 301))


@pytest.mark.parametrize("seed", range(40))
def test_under_store_faults_a_copy_that_succeeded_is_whole_and_no_read_is_wrong(seed: int) -> None:
    groups = [orders(1, 9), lost(10, 11), orders(12, 5, term=2)]

    async def copied(found: ObjectStorage) -> EncodedSegment:
        for number in range(1, 20):
            segment = encoded(groups, number=number)
            try:
                await found.copy(segment)
            except (OutcomeUnknown, Unavailable):
                continue
            return segment
        raise AssertionError("twenty attempts failed")

    async def main(_: Simulation) -> None:
        faulty = FaultyStore(
            MemoryBackend(), Faults.swarm(random.Random(seed)), random.Random(seed)
        )
        found = storage(Store(faulty))
        segment = await copied(found)
        for _round in range(3):
            with contextlib.suppress(Unavailable):
                fetched = [group async for group in found.fetch(told(segment), 3, 15)]
                assert lsns(fetched) == list(range(3, 15))
        faulty.calm = True
        await found.verify(told(segment))

    simulate(main, seed=seed)
