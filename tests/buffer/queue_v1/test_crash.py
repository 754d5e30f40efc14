"""Wherever a consumer stops, the next one goes on with the same numbers."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.appender import V1Appender
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.reader import V1Queue, V1Reader
from headwater.buffer.queue.v1.side_object import create_v1_queue
from headwater.core.errors import Fenced, OutcomeUnknown, RolledBack
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    SIDE,
    OtherProducer,
    Queue,
    memory,
    new_batch,
    produce,
)
from tests.store.scripted import Apply, Scripted, virtual


class Died(Exception):
    """The process is gone."""


class Dying(MemoryBackend):
    """Carries out so many writes, and then none of any kind."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.writes_left: int | None = None
        self.written: list[str] = []
        self.deleted: list[str] = []

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        self._write()
        self.written.append(key)
        return await super().put(key, data, condition)

    async def delete(self, key: str) -> None:
        self._write()
        self.deleted.append(key)
        await super().delete(key)

    def _write(self) -> None:
        if self.writes_left is not None:
            if not self.writes_left:
                raise Died
            self.writes_left -= 1


ROWS = (2, 1, 0, 3, 1)
NUMBERS = [(0, 1, 2), (1, 3, 1), (2, 4, 0), (3, 4, 3), (4, 7, 1)]


async def given() -> tuple[Dying, Queue]:
    backend = Dying()
    queue = await Queue(Store(backend)).made()
    appender = queue.appender()
    for rows in ROWS:
        await produce(appender, *[b"x"] * rows)
    return backend, queue


def numbers(batches: list[Descriptor]) -> list[tuple[int, int, int]]:
    return [(batch.sequence, batch.first_lsn, batch.rows) for batch in batches]


async def check_goes_on(queue: Queue, acked_at_most: int) -> None:
    """Another consumer opens, sees the same numbers, and drains the queue."""
    queue_consumer = queue.queue_consumer()
    position = await queue_consumer.open("g")
    side = await queue.side()
    assert side.sequence <= acked_at_most
    assert queue_consumer.pending == len(ROWS) - side.sequence
    manifest = await queue.manifest()
    assert [entry.sequence for entry in manifest.entries] == list(range(side.sequence, len(ROWS)))
    assert numbers(await queue_consumer.after(position, 9)) == NUMBERS[side.sequence :]
    assert numbers(await queue.queue_reader().after(None, 9)) == NUMBERS
    await queue_consumer.dequeue(len(ROWS) - 1)
    assert numbers(await queue.queue_reader().after(None, 9)) == NUMBERS
    state = await queue.queue_reader().state()
    assert (state.acked_sequence, state.acked_lsn, state.pending) == (5, 8, 0)


@pytest.mark.parametrize("writes", range(4))
@virtual
async def test_a_crash_at_any_write_of_a_dequeue(writes: int) -> None:
    backend, queue = await given()
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)
    await queue_consumer.dequeue(0)
    backend.writes_left = writes
    if writes < 3:
        with pytest.raises(Died):
            await queue_consumer.dequeue(3)
    else:
        await queue_consumer.dequeue(3)
    backend.writes_left = None
    assert (await queue.side()).sequence == (1 if writes < 2 else 4)
    await check_goes_on(queue, acked_at_most=4)


@pytest.mark.parametrize("writes", range(4))
@virtual
async def test_a_crash_at_any_write_of_opening(writes: int) -> None:
    backend, queue = await given()
    before = await queue.opened()
    await before.after(None, 9)
    await before.dequeue(1)
    backend.writes_left = writes
    if writes < 3:
        with pytest.raises(Died):
            await queue.queue_consumer().open("g")
    else:
        await queue.opened()
    backend.writes_left = None
    await check_goes_on(queue, acked_at_most=2)


@virtual
async def test_a_dequeue_writes_segment_then_side_object_then_manifest() -> None:
    backend, queue = await given()
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)
    backend.written.clear()
    await queue_consumer.dequeue(3)
    assert backend.written == [(await queue.segments())[3], SIDE, MANIFEST]


@virtual
async def test_opening_claims_the_side_object_before_it_raises_the_epoch() -> None:
    backend, queue = await given()
    backend.written.clear()
    await queue.opened()
    assert backend.written == [SIDE, MANIFEST, SIDE]


@virtual
async def test_a_consumer_that_lost_its_claim_acknowledges_nothing() -> None:
    backend, queue = await given()
    first = await queue.opened()
    await first.after(None, 9)
    backend.writes_left = 1
    with pytest.raises(Died):
        await queue.queue_consumer().open("g")
    backend.writes_left = None
    # The epoch is still the first one's: only the claim tells.
    with pytest.raises(Fenced, match="another consumer"):
        await first.dequeue(2)
    assert (await queue.side()).sequence == 0
    await check_goes_on(queue, acked_at_most=0)


@virtual
async def test_segments_of_a_crashed_consumer_overlap_those_of_the_next() -> None:
    backend, queue = await given()
    crashed = await queue.opened()
    await crashed.after(None, 9)
    backend.writes_left = 1
    with pytest.raises(Died):
        await crashed.dequeue(3)
    backend.writes_left = None
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 9)
    await queue_consumer.dequeue(1)
    await queue_consumer.dequeue(3)  # the segment of the crashed one is there, and covers this
    await queue_consumer.dequeue(4)
    queue_reader = queue.queue_reader()
    assert numbers(await queue_reader.after(None, 9)) == NUMBERS
    assert [await queue_reader.sequence_at_lsn(lsn) for lsn in range(1, 8)] == [0, 0, 1, 3, 3, 3, 4]


@virtual
async def test_what_a_crashed_consumer_noted_of_a_batch_that_was_then_lost_is_not_believed() -> (
    None
):
    backend, queue = await given()
    crashed = await queue.opened()
    (_, lost, *_) = await crashed.after(None, 9)
    backend.writes_left = 1
    with pytest.raises(Died):
        await crashed.dequeue(3)
    backend.writes_left = None
    await queue.store.delete(lost.location)
    queue_consumer = await queue.opened()
    await queue_consumer.give_up(1)
    await queue_consumer.dequeue(4)
    assert numbers(await queue.queue_reader().after(None, 9)) == [
        (0, 1, 2),
        (1, 3, 0),
        (2, 3, 0),
        (3, 3, 3),
        (4, 6, 1),
    ]


@pytest.mark.parametrize("dequeues", [(4,), (1, 4), (2, 3, 4)])
def test_a_segment_that_arrives_after_a_batch_of_it_was_given_up_counts_for_nothing(
    dequeues: tuple[int, ...],
) -> None:
    @virtual
    async def run() -> None:
        backend, queue = await given()
        under_way: list[Apply] = []

        async def holds_up(apply: Apply) -> None:
            under_way.append(apply)
            raise OutcomeUnknown("no answer")

        wire = Scripted(backend)
        slow = queue.queue_consumer(Store(wire, policy=RetryPolicy(attempts=1)))
        await slow.open("g")
        (_, lost, *_) = await slow.after(None, 9)
        wire.next("put_if_absent", holds_up)
        with pytest.raises(OutcomeUnknown):
            await slow.dequeue(3)

        await queue.store.delete(lost.location)
        queue_consumer = await queue.opened()
        await queue_consumer.give_up(1)
        for sequence in dequeues:
            await queue_consumer.dequeue(sequence)
        for apply in under_way:
            await apply()

        expected = [(0, 1, 2), (1, 3, 0), (2, 3, 0), (3, 3, 3), (4, 6, 1)]
        queue_reader = queue.queue_reader()
        assert numbers(await queue_reader.after(None, 9)) == expected
        assert [await queue_reader.sequence_at_lsn(lsn) for lsn in range(1, 7)] == [
            0,
            0,
            3,
            3,
            3,
            4,
        ]
        collected = await queue.collector().collect(Retention(0))
        assert (collected.floor_sequence, collected.floor_lsn) == (5, 7)

    run()


@virtual
async def test_a_delete_that_arrives_again_takes_nothing_that_was_written_since() -> None:
    backend, queue = await given()
    crashed = await queue.opened()
    (_, lost, *_) = await crashed.after(None, 9)
    backend.writes_left = 1
    with pytest.raises(Died):
        await crashed.dequeue(3)
    backend.writes_left = None
    await queue.store.delete(lost.location)
    queue_consumer = await queue.opened()
    backend.deleted.clear()
    await queue_consumer.give_up(1)
    discarded = list(backend.deleted)
    assert discarded
    await queue_consumer.dequeue(3)
    for key in discarded:
        await queue.store.delete(key)
    found = numbers(await queue.queue_reader().after(None, 4))
    assert found == [(0, 1, 2), (1, 3, 0), (2, 3, 0), (3, 3, 3)]


@virtual
async def test_a_segment_that_an_earlier_queue_of_the_place_left_is_not_read() -> None:
    old = await memory().made()
    batch, data = new_batch(b"old", b"older")
    await old.appender().upload(batch.batch_id, data)
    await old.appender().append([batch])
    await old.opened()
    await (await old.opened()).dequeue(0)
    late = {key: (await old.store.get(key)).data for key in (await old.segments()).values()}
    for key in await old.keys():
        await old.store.delete(key)
    for key, segment in late.items():
        await old.store.put(key, segment)  # by a consumer that stood still meanwhile
    await create_v1_queue(old.store, PREFIX, "another")
    batch, data = new_batch(b"new")
    appender = V1Appender(V1Queue(old.store, PREFIX, "another"))
    await appender.upload(batch.batch_id, data)
    await appender.append([batch])
    queue_consumer = V1Consumer(V1Queue(old.store, PREFIX, "another"))
    await queue_consumer.open("g")
    await queue_consumer.dequeue(0)
    found = await V1Reader(V1Queue(old.store, PREFIX, "another")).after(None, 9)
    assert await old.records(found) == [b"new"]


@virtual
async def test_making_a_queue_may_stop_anywhere_and_be_done_again() -> None:
    for writes in range(3):
        backend = Dying()
        queue = Queue(Store(backend))
        backend.writes_left = writes
        if writes < 2:
            with pytest.raises(Died):
                await queue.made()
        else:
            await queue.made()
        backend.writes_left = None
        await OtherProducer(queue).produce("o/1", b"a")
        await queue.made()
        assert numbers(await queue.queue_reader().after(None, 9)) == [(0, 1, 1)]


@virtual
async def test_a_manifest_is_made_before_the_side_object() -> None:
    backend = Dying()
    await Queue(Store(backend)).made()
    assert backend.written == [MANIFEST, SIDE]


@virtual
async def test_a_segment_that_is_gone_is_reported_and_not_passed_over() -> None:
    _, queue = await given()
    queue_consumer = await queue.opened()
    await queue_consumer.dequeue(1)
    await queue_consumer.dequeue(2)
    await queue.store.delete((await queue.segments())[1])
    with pytest.raises(RolledBack, match="is gone"):
        await queue.queue_reader().after(None, 9)
    with pytest.raises(RolledBack, match="is gone"):
        await queue.queue_reader().sequence_at_lsn(1)
