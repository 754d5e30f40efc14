"""The owning consumer gets every batch in order, numbered, once, and acknowledges it for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.buffer.queue.contract import BatchTrimmed, Uncounted
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.manifest_format import MetadataItem
from headwater.core import limits
from headwater.core.errors import (
    BadKey,
    Corrupt,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Refused,
    Trimmed,
    Unavailable,
)
from headwater.store import Store
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    OtherProducer,
    either,
    filled,
    memory,
    nothing,
    places,
    produce,
    real,
    scripted,
)
from tests.store.scripted import LOST, after, lands_then, virtual


@pytest.mark.parametrize("kind", ["memory", "local"])
@real
async def test_batches_come_in_order_with_their_rows_and_lsns(kind: str, tmp_path: Path) -> None:
    queue = await filled(either(kind, tmp_path), 2, 1, 0, 3)
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g") is None
    assert (queue_consumer.epoch, queue_consumer.pending) == (1, 4)
    batches = await queue_consumer.after(None, 3)
    assert places(batches) == [(0, 1, 2), (1, 3, 1), (2, 4, 0)]
    batches += await queue_consumer.after(2, 10)
    assert places(batches[3:]) == [(3, 4, 3)]
    assert await queue.records(batches) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert {batch.format for batch in batches} == {"v1"}
    assert [f"{PREFIX}/{b.batch_id}.batch" for b in batches] == [b.location for b in batches]
    await queue_consumer.dequeue(1)
    assert queue_consumer.pending == 2
    assert places(await queue_consumer.after(1, 10)) == [(2, 4, 0), (3, 4, 3)]


@virtual
async def test_the_end_of_each_batch_is_read_once() -> None:
    backend, queue = scripted()
    await filled(queue, 2, 1)
    queue_consumer = queue.queue_consumer(Store(backend))
    await queue_consumer.open("g")
    backend.calls.clear()
    for position in (None, None, 0):
        await queue_consumer.after(position, 10)
    footers = [key for name, key in backend.calls if name == "get" and key.endswith(".batch")]
    assert len(footers) == len(set(footers)) == 2
    assert len(backend.calls) == 3 + 2  # and a look at the manifest for each call


@virtual
async def test_what_a_producer_said_comes_with_the_batch() -> None:
    queue = await memory().made()
    other = OtherProducer(queue)
    await other.put("o/1", b"a", b"b", b"c")
    items = [MetadataItem(0, 30, b"first"), MetadataItem(2, 10, b"last")]
    await other.enqueue("o/1", items)
    queue_consumer = await queue.opened()
    (batch,) = await queue_consumer.after(None, 1)
    assert (batch.min_ms, batch.max_ms, batch.metadata, batch.batch_id) == (10, 30, b"last", "")
    (entry,) = (await queue.manifest()).entries
    assert batch.calls == bytes(entry.metadata.packed_bytes)  # type: ignore[attr-defined]


@virtual
async def test_without_a_word_of_the_producer_the_name_or_the_store_tells_the_time() -> None:
    queue = await memory().made()
    other = OtherProducer(queue)
    for location in ("o/01ARYZ6S41TSV4RRFFQ69G5FAV.batch", "o/1"):
        await other.put(location, b"a")
        await other.enqueue(location)
    written_ms = (await queue.store.head("o/1")).modified_ms
    queue_consumer = await queue.opened()
    named, unnamed = await queue_consumer.after(None, 2)
    assert (named.min_ms, named.max_ms) == (1469918176385, 1469918176385)
    assert (unnamed.min_ms, unnamed.max_ms) == (written_ms, written_ms)


@virtual
async def test_what_was_acknowledged_is_where_the_next_one_goes_on() -> None:
    queue = await filled(memory(), 2, 3, 1)
    first = await queue.opened()
    await first.after(None, 3)
    await first.dequeue(1)
    second = queue.queue_consumer()
    assert await second.open("g") == 1
    assert places(await second.after(1, 9)) == [(2, 6, 1)]


@virtual
async def test_a_position_ahead_acknowledges_and_one_behind_delivers_again() -> None:
    queue = await filled(memory(), 2, 3, 1, 1)
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g", last_acked_sequence=1) == 1
    assert queue_consumer.pending == 2
    assert [entry.sequence for entry in (await queue.manifest()).entries] == [2, 3]
    again = queue.queue_consumer()
    assert await again.open("g", last_acked_sequence=0) == 0
    batches = await again.after(0, 9)
    assert places(batches) == [(1, 3, 3), (2, 6, 1), (3, 7, 1)]
    assert await queue.records(batches) == [b"3", b"4", b"5", b"6", b"7"]
    assert places(await again.after(None, 2)) == [(0, 1, 2), (1, 3, 3)]


@virtual
async def test_a_position_at_or_past_the_next_sequence_is_refused() -> None:
    queue = await filled(memory(), 1, 1)
    before = await queue.side()
    for position in (2, 5_000):
        with pytest.raises(Refused, match="the next one is 2"):
            await queue.queue_consumer().open("g", last_acked_sequence=position)
    assert await queue.side() == before
    queue_consumer = await queue.opened()
    assert await queue_consumer.after(1, 9) == []
    with pytest.raises(Refused, match="the next one is 2"):
        await queue_consumer.after(2, 9)


@virtual
async def test_a_position_before_the_first_begins_with_it_and_one_further_back_is_none() -> None:
    queue = await filled(memory(), 2, 3)
    await (await queue.opened()).dequeue(0)
    queue_consumer = queue.queue_consumer()
    assert await queue_consumer.open("g", last_acked_sequence=-1) == -1
    assert places(await queue_consumer.after(-1, 9)) == [(0, 1, 2), (1, 3, 3)]
    assert (await queue.queue_reader().state()).acked_sequence == 1
    before = await queue.side()
    with pytest.raises(Refused, match="or -1 if there is none"):
        await queue.queue_consumer().open("g", last_acked_sequence=-2)
    assert await queue.side() == before


@virtual
async def test_a_position_whose_successor_is_gone_is_trimmed() -> None:
    queue = await filled(memory(), 1, 1, 1)
    queue_consumer = await queue.opened()
    await queue_consumer.after(None, 3)
    await queue_consumer.dequeue(1)
    await queue.collector().collect(Retention(0))
    with pytest.raises(BatchTrimmed) as trimmed:
        await queue.queue_consumer().open("g", last_acked_sequence=0)
    assert trimmed.value.floor_sequence == 2
    with pytest.raises(Trimmed):
        await queue_consumer.after(None, 1)
    assert await queue.queue_consumer().open("g", last_acked_sequence=1) == 1


@virtual
async def test_what_is_not_there_cannot_be_acknowledged() -> None:
    queue = await filled(memory(), 1, 1)
    with pytest.raises(Refused, match="open"):
        await queue.queue_consumer().dequeue(0)
    queue_consumer = await queue.opened()
    with pytest.raises(Refused, match="the next one is 2"):
        await queue_consumer.dequeue(2)
    await queue_consumer.dequeue(1)
    await queue_consumer.dequeue(0)
    assert (await queue.side()).sequence == 2
    assert queue_consumer.pending == 0


@virtual
async def test_a_location_that_comes_twice_is_delivered_once() -> None:
    queue = await memory().made()
    other = OtherProducer(queue)
    await other.produce("o/1", b"a", b"b")
    await other.enqueue("o/1", [MetadataItem(0, 5, b"")])
    await other.produce("o/2", b"c")
    queue_consumer = await queue.opened()
    batches = await queue_consumer.after(None, 9)
    assert places(batches) == [(0, 1, 2), (1, 3, 0), (2, 3, 1)]
    assert [batch.duplicate for batch in batches] == [False, True, False]
    assert await queue.records(batches) == [b"a", b"b", b"c"]


@virtual
async def test_a_location_that_comes_again_after_it_was_acknowledged_is_delivered_once() -> None:
    queue = await memory().made()
    other = OtherProducer(queue)
    await other.produce("o/1", b"a")
    first = await queue.opened()
    await first.after(None, 1)
    await first.dequeue(0)
    await other.enqueue("o/1", [MetadataItem(0, 5, b"")])
    second = await queue.opened()
    assert [batch.duplicate for batch in await second.after(0, 9)] == [True]
    assert [batch.duplicate for batch in await queue.queue_reader().after(None, 9)] == [False, True]


@virtual
async def test_beyond_what_is_remembered_a_location_is_delivered_again_to_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "V1_REMEMBERED", 2)
    queue = await memory().made()
    other = OtherProducer(queue)
    await other.produce("o/1", b"a")
    for number in (2, 3):
        await other.produce(f"o/{number}", b"b")
    await other.enqueue("o/1")
    await other.enqueue("o/3")
    expected = [False, False, False, False, True]
    queue_reader = queue.queue_reader()
    assert [batch.duplicate for batch in await queue_reader.after(None, 9)] == expected
    queue_consumer = await queue.opened()
    for batch in await queue_consumer.after(None, 9):
        await queue_consumer.dequeue(batch.sequence)
        again = await queue.queue_reader().after(None, 9)
        assert [batch.duplicate for batch in again] == expected


@pytest.mark.parametrize(
    "location", ["elsewhere/x=1/some_thing.bin", "o/café.batch", "o/a%2Fb", "o/~x", "o/#1", "o/a b"]
)
@virtual
async def test_a_location_of_another_making_is_read_as_it_is(location: str) -> None:
    queue = await memory().made()
    await OtherProducer(queue).produce(location, b"a")
    queue_consumer = await queue.opened()
    batches = await queue_consumer.after(None, 1)
    assert await queue.records(batches) == [b"a"]


@pytest.mark.parametrize("location", ["", "/o", "o//1", "../o", "o/../../x"])
@virtual
async def test_a_location_that_cannot_be_a_key_is_named_and_not_bent(location: str) -> None:
    queue = await memory().made()
    await OtherProducer(queue).enqueue(location)
    queue_consumer = await queue.opened()
    with pytest.raises(Uncounted) as uncounted:
        await queue_consumer.after(None, 1)
    assert repr(location) in str(uncounted.value)
    assert isinstance(uncounted.value.__cause__, BadKey)


@pytest.mark.parametrize("write", [0, 1])
@virtual
async def test_a_dequeue_whose_answer_was_lost_is_made_once(write: int) -> None:
    backend, queue = scripted()
    await filled(queue, 2, 1)
    queue_consumer = queue.queue_consumer(Store(backend))
    await queue_consumer.open("g")
    await queue_consumer.after(None, 2)
    backend.next("put_if_absent", lands_then(LOST))
    steps = [after(nothing)] * write
    backend.next("put_if_unchanged", *steps, lands_then(LOST))
    await queue_consumer.dequeue(0)
    assert (await queue.side()).sequence == 1
    assert [entry.sequence for entry in (await queue.manifest()).entries] == [1]
    assert places(await queue.queue_reader().after(None, 9)) == [(0, 1, 2), (1, 3, 1)]


@virtual
async def test_a_dequeue_that_only_reached_the_side_object_is_finished_by_the_next() -> None:
    backend, queue = scripted()
    await filled(queue, 2, 1)
    queue_consumer = queue.queue_consumer(Store(backend))
    await queue_consumer.open("g")
    await queue_consumer.after(None, 2)

    async def down(_: object) -> None:
        raise Unavailable("503")

    # The register's write, and then none of the tries to shorten the manifest.
    backend.next("put_if_unchanged", after(nothing), *[down] * 1000)
    with pytest.raises(OutcomeUnknown):
        await queue_consumer.dequeue(0)
    assert queue_consumer.pending == 1
    assert len((await queue.manifest()).entries) == 2
    backend._steps.clear()
    await queue_consumer.dequeue(0)
    assert [entry.sequence for entry in (await queue.manifest()).entries] == [1]


# A batch that cannot be counted stops the queue until it is given up.


@pytest.mark.parametrize(
    ("content", "cause"), [(None, NotFound), (b"short", Corrupt), (b"\0\5\0\0\0\1\0", Corrupt)]
)
@virtual
async def test_a_batch_that_cannot_be_counted_stops_the_queue_until_it_is_given_up(
    content: bytes | None, cause: type[Exception]
) -> None:
    queue = await filled(memory(), 2)
    await OtherProducer(queue).enqueue("o/bad", [MetadataItem(0, 77, b"m")])
    if content is not None:
        await queue.store.put("o/bad", content)
    await produce(queue.appender(), b"3")
    queue_consumer = await queue.opened()
    assert places(await queue_consumer.after(None, 9)) == [(0, 1, 2)]
    with pytest.raises(Uncounted) as uncounted:
        await queue_consumer.after(0, 9)
    assert isinstance(uncounted.value.__cause__, cause)
    bad = uncounted.value.descriptor
    assert (bad.sequence, bad.location, bad.first_lsn, bad.rows) == (1, "o/bad", 3, 0)
    with pytest.raises(Uncounted):
        await queue_consumer.dequeue(2)
    assert (await queue.side()).sequence == 0
    queue_reader = queue.queue_reader()
    state = await queue_reader.state()
    assert (state.next_lsn, state.uncounted_sequence, state.pending) == (3, 1, 3)
    await queue_consumer.give_up(1)
    assert places(await queue_consumer.after(0, 9)) == [(1, 3, 0), (2, 3, 1)]
    assert (await queue_reader.state()).next_lsn == 4
    await queue_consumer.dequeue(2)
    assert places(await queue_reader.after(None, 9)) == [(0, 1, 2), (1, 3, 0), (2, 3, 1)]


@virtual
async def test_only_what_cannot_be_counted_can_be_given_up() -> None:
    queue = await filled(memory(), 2, 1)
    queue_consumer = await queue.opened()
    with pytest.raises(Refused, match="keeps its rows"):
        await queue_consumer.give_up(1)
    for sequence in (-1, 2):
        with pytest.raises(Refused, match="not pending"):
            await queue_consumer.give_up(sequence)
    assert (await queue.side()).given_up == []


@virtual
async def test_who_counted_a_batch_before_it_was_lost_agrees_once_it_is_given_up() -> None:
    queue = await filled(memory(), 2, 3, 1)
    queue_reader = queue.queue_reader()
    assert (await queue_reader.state()).next_lsn == 7
    queue_consumer = await queue.opened()
    lost = (await queue_consumer.after(None, 3))[1]
    await queue.store.delete(lost.location)
    later = await queue.opened()
    with pytest.raises(Uncounted):
        await later.after(0, 1)
    await later.give_up(1)
    assert (await queue_reader.state()).next_lsn == 4
    assert places(await queue_reader.after(None, 9)) == [(0, 1, 2), (1, 3, 0), (2, 3, 1)]


@virtual
async def test_a_fenced_consumer_is_told_so_and_not_that_a_batch_is_lost() -> None:
    backend, queue = scripted()
    await filled(queue, 1)
    stale = queue.queue_consumer(Store(backend))
    await stale.open("g")

    async def successor_takes_all() -> None:
        queue_consumer = await queue.opened()
        await queue_consumer.after(None, 1)
        await queue_consumer.dequeue(0)
        await queue.collector().collect(Retention(0))

    backend.next("get", after(nothing), after(successor_takes_all))
    with pytest.raises(Fenced):
        await stale.after(None, 1)


@virtual
async def test_a_manifest_with_a_gap_is_damaged() -> None:
    queue = await filled(memory(), 1, 1, 1)
    data = bytes((await queue.store.get(MANIFEST)).data)
    manifest = await queue.manifest()
    gap = len(data) - 22
    first = bytes(manifest.entries[:1].packed_bytes)  # type: ignore[attr-defined]
    last = bytes(manifest.entries[2:].packed_bytes)  # type: ignore[attr-defined]
    await queue.store.put(MANIFEST, first + last + b"\2\0\0\0" + data[gap + 4 :])
    with pytest.raises(Corrupt, match="entries were lost"):
        await queue.queue_consumer().open("g")
