"""Whether a stream may be consumed by whoever asks, and how long it keeps what was."""

from __future__ import annotations

import shlex

import msgspec

from headwater.buffer.layout import check_group_name
from headwater.buffer.queue.contract import Retention
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.transaction.expiry import held
from headwater.core.errors import Refused


def consumable(stream: Stream, partition: int, group: str) -> Stream:
    """The stream itself; `Refused` if a query may not consume it so."""
    check_group_name(group)
    stream.check_partition(partition)
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
