"""One consumer owns a queue: epochs, groups, and whose folder it is."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.manifest_format import encode_manifest
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.buffer.queue.v1.side_object import create_v1_queue
from headwater.core.errors import Fenced, NotFound, Refused, RolledBack
from headwater.store import Store
from tests.buffer.native.watched import Watched
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    QUEUE,
    OtherConsumer,
    OtherProducer,
    Queue,
    filled,
    memory,
    nothing,
    places,
    scripted,
)
from tests.store.scripted import LOST, after, lands_then, virtual


@virtual
async def test_opening_raises_the_epoch_and_fences_whoever_had_it() -> None:
    queue = await filled(memory(), 1, 1)
    first = await queue.opened()
    second = await queue.opened()
    assert (first.epoch, second.epoch) == (1, 2)
    for call in (
        first.check_fence(),
        first.after(None, 1),
        first.dequeue(0),
        first.give_up(0),
        first.dequeue(-1),
    ):
        with pytest.raises(Fenced):
            await call
    await second.check_fence()
    assert (await queue.side()).sequence == 0
    assert second.pending == 2


@virtual
async def test_another_implementations_consumer_fences_ours_and_ours_fences_it() -> None:
    queue = await filled(memory(), 1)
    ours = await queue.opened()
    theirs = OtherConsumer(queue)
    await theirs.open()
    with pytest.raises(Fenced):
        await ours.after(None, 1)
    await ours.open("g")
    assert ours.epoch == 3
    with pytest.raises(Fenced):
        await theirs.dequeue(0)


@virtual
async def test_two_that_open_at_once_never_have_the_same_epoch() -> None:
    backend, queue = scripted()
    await filled(queue, 1)
    theirs = OtherConsumer(queue)
    # It writes the very bytes that this one is about to write.
    backend.next("put_if_unchanged", after(nothing), after(theirs.open))
    ours = queue.queue_consumer(Store(backend))
    await ours.open("g")
    assert theirs.epoch == 1
    assert ours.epoch == 2


@virtual
async def test_an_epoch_whose_answer_was_lost_is_not_taken_for_ones_own() -> None:
    backend, queue = scripted()
    await filled(queue, 1)
    backend.next("put_if_unchanged", after(nothing), lands_then(LOST))
    queue_consumer = queue.queue_consumer(Store(backend))
    await queue_consumer.open("g")
    assert queue_consumer.epoch == 2
    await queue_consumer.check_fence()


@virtual
async def test_another_group_is_refused_unless_it_takes_over() -> None:
    queue = await filled(memory(), 1, 1)
    first = await queue.opened("g")
    before = await queue.manifest()
    with pytest.raises(Refused, match="'g'"):
        await queue.queue_consumer().open("h")
    assert (await queue.manifest()) == before
    await first.dequeue(0)
    second = queue.queue_consumer()
    assert await second.open("h", take_over=True) == 0
    assert (await queue.side()).group == "h"
    with pytest.raises(Fenced):
        await first.check_fence()
    with pytest.raises(Refused, match="'h'"):
        await queue.queue_consumer().open("g")
    with pytest.raises(Refused, match="name"):
        await queue.queue_consumer().open("")


@virtual
async def test_a_folder_that_another_stream_left_is_refused() -> None:
    queue = await filled(memory(), 1)
    with pytest.raises(Refused, match="another stream"):
        await V1Consumer(V1Queue(queue.store, PREFIX, "orders-again")).open("g")
    with pytest.raises(Refused, match="another stream"):
        await create_v1_queue(queue.store, PREFIX, "orders-again")


@virtual
async def test_a_queue_that_was_never_made_is_not_found() -> None:
    with pytest.raises(NotFound, match="create the queue"):
        await memory().queue_consumer().open("g")


@virtual
async def test_a_manifest_that_others_made_and_nobody_consumed_is_taken_as_it_is() -> None:
    queue = memory()
    await OtherProducer(queue).produce("o/1", b"a")
    queue_consumer = await queue.opened()
    assert places(await queue_consumer.after(None, 9)) == [(0, 1, 1)]
    assert (await queue.side()).queue_id == QUEUE


@virtual
async def test_of_two_groups_that_open_at_once_one_is_refused() -> None:
    backend, queue = scripted()
    await filled(queue, 1)
    watched = Watched(backend.inner)
    winner = queue.queue_consumer()
    watched.on("put_if_unchanged", "side.json", after(lambda: winner.open("quicker")))
    with pytest.raises(Refused, match="belongs to group 'quicker'"):
        await queue.queue_consumer(Store(watched)).open("slower")
    assert (await queue.side()).group == "quicker"
    await winner.dequeue(0)


EPOCH_LAST = 2**64 - 2
"""After it comes 0, as in the reference."""


async def at_epoch(epoch: int) -> Queue:
    queue = await filled(memory(), 2, 1, 1)
    await queue.store.put(MANIFEST, encode_manifest((await queue.manifest()).with_epoch(epoch)))
    return queue


@pytest.mark.parametrize("epoch", [EPOCH_LAST, EPOCH_LAST + 1])
@virtual
async def test_the_epoch_wraps_as_the_reference_does(epoch: int) -> None:
    queue = await at_epoch(epoch)
    queue_consumer = await queue.opened()
    assert (queue_consumer.epoch, (await queue.manifest()).epoch) == (0, 0)
    assert places(await queue_consumer.after(None, 9)) == [(0, 1, 2), (1, 3, 1), (2, 4, 1)]
    await queue_consumer.dequeue(0)
    assert (await queue.queue_reader().state()).epoch == 0


@virtual
async def test_a_consumer_is_fenced_across_the_wrap_and_an_older_manifest_is_noticed() -> None:
    queue = await at_epoch(EPOCH_LAST - 1)
    queue_reader = queue.queue_reader()
    before = await queue.opened()
    assert (before.epoch, (await queue_reader.state()).epoch) == (EPOCH_LAST, EPOCH_LAST)
    older = (await queue.store.get(MANIFEST)).data
    queue_consumer = await queue.opened()
    assert (queue_consumer.epoch, (await queue_reader.state()).epoch) == (0, 0)
    with pytest.raises(Fenced):
        await before.dequeue(0)
    await queue_consumer.dequeue(0)
    assert places(await queue_reader.after(None, 9)) == [(0, 1, 2), (1, 3, 1), (2, 4, 1)]
    await queue.store.put(MANIFEST, older)
    with pytest.raises(RolledBack, match="the epoch is 18,446"):
        await queue.queue_reader().state()
    with pytest.raises(RolledBack, match="epoch went back"):
        await queue_consumer.check_fence()
