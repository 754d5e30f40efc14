"""A batch that cannot be counted stops the queue until it is given up."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.contract import Retention, Uncounted
from headwater.buffer.queue.v1.manifest_format import MetadataItem
from headwater.core.errors import Corrupt, Fenced, NotFound, Refused
from headwater.store import Store
from tests.buffer.queue_v1.given import (
    MANIFEST,
    OtherProducer,
    filled,
    memory,
    nothing,
    places,
    produce,
    scripted,
)
from tests.store.scripted import after, virtual


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
    taker = await queue.opened()
    assert places(await taker.after(None, 9)) == [(0, 1, 2)]
    with pytest.raises(Uncounted) as uncounted:
        await taker.after(0, 9)
    assert isinstance(uncounted.value.__cause__, cause)
    bad = uncounted.value.descriptor
    assert (bad.sequence, bad.location, bad.first_lsn, bad.rows) == (1, "o/bad", 3, 0)
    with pytest.raises(Uncounted):
        await taker.dequeue(2)
    assert (await queue.side()).sequence == 0
    looker = queue.looker()
    state = await looker.state()
    assert (state.next_lsn, state.uncounted_sequence, state.pending) == (3, 1, 3)
    await taker.give_up(1)
    assert places(await taker.after(0, 9)) == [(1, 3, 0), (2, 3, 1)]
    assert (await looker.state()).next_lsn == 4
    await taker.dequeue(2)
    assert places(await looker.after(None, 9)) == [(0, 1, 2), (1, 3, 0), (2, 3, 1)]


@virtual
async def test_only_what_cannot_be_counted_can_be_given_up() -> None:
    queue = await filled(memory(), 2, 1)
    taker = await queue.opened()
    with pytest.raises(Refused, match="keeps its rows"):
        await taker.give_up(1)
    for sequence in (-1, 2):
        with pytest.raises(Refused, match="not pending"):
            await taker.give_up(sequence)
    assert (await queue.side()).given_up == []


@virtual
async def test_who_counted_a_batch_before_it_was_lost_agrees_once_it_is_given_up() -> None:
    queue = await filled(memory(), 2, 3, 1)
    looker = queue.looker()
    assert (await looker.state()).next_lsn == 7
    taker = await queue.opened()
    lost = (await taker.after(None, 3))[1]
    await queue.store.delete(lost.location)
    later = await queue.opened()
    with pytest.raises(Uncounted):
        await later.after(0, 1)
    await later.give_up(1)
    assert (await looker.state()).next_lsn == 4
    assert places(await looker.after(None, 9)) == [(0, 1, 2), (1, 3, 0), (2, 3, 1)]


@virtual
async def test_a_fenced_consumer_is_told_so_and_not_that_a_batch_is_lost() -> None:
    backend, queue = scripted()
    await filled(queue, 1)
    stale = queue.taker(Store(backend))
    await stale.open("g")

    async def successor_takes_all() -> None:
        taker = await queue.opened()
        await taker.after(None, 1)
        await taker.dequeue(0)
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
        await queue.taker().open("g")
