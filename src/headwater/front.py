"""What is called by its short name, and loaded when it is called.

Importing Headwater loads neither Arrow nor a room above the store: a script that opens a store, and
a command that prints its help, do not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.core.limits import READ_AHEAD_BYTES
from headwater.store import Store

if TYPE_CHECKING:
    from headwater.buffer.consumer.async_reader import AsyncReader, OnBadBatch
    from headwater.buffer.consumer.reader import Reader
    from headwater.buffer.consumer.reading import Position
    from headwater.buffer.stream import Stream


def read(
    source: str | Store | Stream,
    stream: str | None = None,
    start: Position = None,
    end: Position = None,
    *,
    partition: int | Sequence[int] | None = None,
    follow: bool = False,
    columns: Sequence[str] | None = None,
    on_bad_batch: OnBadBatch = "raise",
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> Reader:
    """Read a stream as Arrow record batches. Opens nothing and fences nobody.

        table = headwater.read("file:///data", "orders", start="2026-01-31").to_table()

    `start` (inclusive) and `end` (exclusive) are LSNs, "earliest", "latest" or times; a mapping
    gives each partition its own. Without `start`, from the oldest record that is retained;
    without `end`, to the latest one at this moment, or with `follow` for ever.
    """
    from headwater.buffer.consumer import reader

    return reader.read(
        source,
        stream,
        start,
        end,
        partition=partition,
        follow=follow,
        columns=columns,
        on_bad_batch=on_bad_batch,
        read_ahead_bytes=read_ahead_bytes,
    )


async def read_async(
    source: str | Store | Stream,
    stream: str | None = None,
    start: Position = None,
    end: Position = None,
    *,
    partition: int | Sequence[int] | None = None,
    follow: bool = False,
    columns: Sequence[str] | None = None,
    on_bad_batch: OnBadBatch = "raise",
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> AsyncReader:
    """As `read`, for code with an event loop: `async for batch in await read_async(…)`."""
    from headwater.buffer.consumer import async_reader

    return await async_reader.read_async(
        source,
        stream,
        start,
        end,
        partition=partition,
        follow=follow,
        columns=columns,
        on_bad_batch=on_bad_batch,
        read_ahead_bytes=read_ahead_bytes,
    )
