"""What a lost object of a published v1 queue does to those who read it: no more than it must.

The manifest does not say how many records a batch has, so that an object which is gone before
anybody counted it leaves whatever follows without numbers.
"""

from __future__ import annotations

from headwater.buffer.consumer import ConsumedBatch, Consumer, list_dead_letters
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream, create_stream
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.produced import produce
from tests.store.scripted import virtual


async def given(batches: int) -> tuple[Stream, list[Descriptor]]:
    """A stream with so many batches of one record each, and what they are."""
    stream = await create_stream(Store(MemoryBackend()), "orders", format="v1")
    await produce(stream, *[[b"%d" % number] for number in range(batches)])
    return stream, await stream.looker(0).after(None, batches)


async def damage(stream: Stream, batch: Descriptor) -> None:
    """Spoil the records; the count at the end of the object stays as it was."""
    data = bytes((await stream.store.get(batch.location)).data)
    await stream.store.put(batch.location, b"\xff\xff\xff\x7f" + data[4:])


async def some_of(consumer: Consumer, count: int) -> list[ConsumedBatch]:
    found = [await consumer.next_batch() for _ in range(count)]
    return [batch for batch in found if batch is not None]


@virtual
async def test_a_bad_batch_is_passed_over_though_a_later_one_cannot_be_counted() -> None:
    stream, batches = await given(40)
    await damage(stream, batches[0])
    await stream.store.delete(batches[39].location)
    consumer = await Consumer.open(stream, gc=False, on_bad_batch="dead_letter")
    first, second = await some_of(consumer, 2)
    assert first.lost is not None
    assert (second.lost, second.entries, second.first_lsn) == (None, [b"1"], 2)
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [0]
