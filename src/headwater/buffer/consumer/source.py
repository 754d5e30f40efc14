"""Which stream is meant, and whether it may be consumed by whoever asks."""

from __future__ import annotations

import shlex

import msgspec

from headwater.buffer.layout import check_group_name
from headwater.buffer.queue.contract import Retention
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.transaction.expiry import held
from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Refused
from headwater.store import Store


async def resolve(source: Store | Stream, name: str | None, *, writing: bool = False) -> Stream:
    """The stream itself, or the one of this name in a store."""
    if not isinstance(source, Stream):
        if name is None:
            raise Refused("which stream of the store? Give its name")
        return await open_stream(source, name, writing=writing)
    if name is not None and name != source.name:
        raise Refused(f"the stream is {source.name!r}, not {name!r}")
    return source


def check_partition(stream: Stream, partition: int) -> None:
    """Refuse a partition that the stream does not have."""
    if not 0 <= whole_number("partition", partition) < stream.partitions:
        raise Refused(
            f"stream {stream.name!r} has partitions 0 to {stream.partitions - 1}, not {partition}"
        )


def consumable(stream: Stream, partition: int, group: str) -> Stream:
    """The stream itself; `Refused` if a query may not consume it so."""
    check_group_name(group)
    check_partition(stream, partition)
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is consumed by nodes, and a query reads their log. To consume "
            f"it here: headwater stream alter {shlex.quote(stream.store.url)} {stream.name} "
            "--set consumer=query"
        )
    return stream


async def retention_of(stream: Stream) -> Retention:
    """How long the stream keeps what is acknowledged, as it says at this moment, and from which
    upload on open transactions hold the collector back.

    `Refused` if there is another stream of this name by now: its retention is not this one's.
    """
    current = await open_stream(stream.store, stream.name)
    if current.id != stream.id:
        raise Refused(f"stream {stream.name!r} was deleted and made again since it was opened")
    retention = current.retention()
    if current.config.format == "v1":
        return retention
    kept = await held(current, retention.grace_ms)
    return msgspec.structs.replace(retention, hold_below=kept.below, keep_producers=kept.producers)
