"""Taking over a published v1 stream whose batches another implementation's consumer dequeued."""

from __future__ import annotations

from headwater.buffer.queue.v1 import Adopted, adopt_v1_queue
from headwater.buffer.stream.handle import Stream
from headwater.buffer.stream.queues import queue_prefix
from headwater.buffer.stream.register import StreamRegister
from headwater.buffer.stream.streams import open_stream
from headwater.core.errors import Refused
from headwater.store import Store


async def adopt_stream(
    source: Store | Stream, name: str | None = None, *, partition: int | None = None
) -> dict[int, Adopted]:
    """Go on with what is pending, and leave out what another consumer took.

    Returns what became of each partition. LSNs go on above every one that Headwater can have told,
    from 1 if it never had the queue; what our own consumers acknowledged stays readable for its
    retention, unless more than V1_TAKEN_MAX batches were taken since. Of a partition from which
    nobody else took anything, nothing is changed. The other consumer is fenced; stop it all the
    same, or it will take more as soon as it is opened again.

    The stream may be given by its store and name, since one that was never consumed here cannot be
    opened before.
    """
    store = source.store if isinstance(source, Stream) else source
    name = source.name if isinstance(source, Stream) else name
    if name is None:
        raise Refused("which stream of the store? Give its name")
    config = await StreamRegister(store, name).read_live(writing=True)
    stream = Stream(store, config)
    if config.format != "v1":
        raise Refused(
            f"stream {name!r} is in the native format, which nobody else consumes: there is "
            "nothing to adopt"
        )
    if partition is not None:
        stream.check_partition(partition)
    wanted = range(config.partitions) if partition is None else [partition]
    begins = {
        one: await adopt_v1_queue(
            store, queue_prefix(config, one), config.id, lenient=config.is_lenient
        )
        for one in wanted
    }
    if partition is None:
        await open_stream(store, name, writing=True)  # marks its queues as made
    return begins
