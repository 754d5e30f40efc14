"""Which partitions of which streams a query reads: by name, by pattern, or one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwater.buffer.stream import Stream, open_streams, stream_names
from headwater.core.errors import HeadwaterError, Refused
from headwater.spark.options import ReadOptions
from headwater.spark.source.offset import Part
from headwater.spark.streams import named_stream
from headwater.store import Store


async def subscribed_streams(store: Store, options: ReadOptions) -> list[Stream]:
    """The streams, by name. Opens no consumer."""
    if options.subscribe_pattern is not None:
        return await _matching(store, re.compile(options.subscribe_pattern))
    return [await named_stream(store, name) for name in sorted(options.subscribe or options.assign)]


def parts_of(streams: Sequence[Stream], options: ReadOptions) -> list[tuple[Stream, Part]]:
    """Their partitions: those that were assigned, or all."""
    found: list[tuple[Stream, Part]] = []
    for stream in streams:
        numbers = options.assign.get(stream.name) or range(stream.partitions)
        beyond = [number for number in numbers if number >= stream.partitions]
        if beyond:
            raise Refused(
                f"assign: stream {stream.name!r} has partitions 0 to {stream.partitions - 1}, not "
                f"{beyond[0]}"
            )
        found += [(stream, Part(stream.name, number)) for number in numbers]
    return found


async def _matching(store: Store, pattern: re.Pattern[str]) -> list[Stream]:
    names = [name for name in await stream_names(store) if pattern.fullmatch(name)]
    streams = []
    for found in (await open_streams(store, names)).values():
        if isinstance(found, HeadwaterError):
            raise found
        streams.append(found)
    return streams
