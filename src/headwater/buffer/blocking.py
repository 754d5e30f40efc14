"""Streams and what waits in them, for code that blocks: a call each, and nothing stays open.

    from headwater.buffer import blocking

    blocking.create_stream("s3://bucket/root", "orders", partitions=4, exists_ok=True)
    blocking.lag("s3://bucket/root", "orders").records

Each takes an address, which it opens and closes, or an open store, or, where a stream is meant, an
open stream. They mean what the functions of the same names mean that are awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any, TypeVar

from headwater.buffer.consumer import DeadLetter, Lag
from headwater.buffer.consumer import lag as lag_async
from headwater.buffer.consumer import list_dead_letters as list_dead_letters_async
from headwater.buffer.consumer import lsn_at_time as lsn_at_time_async
from headwater.buffer.consumer.source import resolve
from headwater.buffer.stream import DeletedReport, Stream
from headwater.buffer.stream import alter_stream as alter_stream_async
from headwater.buffer.stream import create_stream as create_stream_async
from headwater.buffer.stream import delete_stream as delete_stream_async
from headwater.buffer.stream import list_streams as list_streams_async
from headwater.core import portal
from headwater.store import Store, open_store

T = TypeVar("T")


def create_stream(source: str | Store, name: str, **settings: Any) -> Stream:
    """Make a stream."""
    made = _on_store(source, lambda store: create_stream_async(store, name, **settings))
    return _usable(source, made)


def alter_stream(source: str | Store, name: str, **changes: Any) -> Stream:
    """Change settings of a stream, or declare its next schema."""
    altered = _on_store(source, lambda store: alter_stream_async(store, name, **changes))
    return _usable(source, altered)


def delete_stream(source: str | Store, name: str) -> DeletedReport:
    """Delete a stream and its objects; of one that is deleted, what is left of them."""
    return _on_store(source, lambda store: delete_stream_async(store, name))


def list_streams(source: str | Store) -> list[Stream]:
    """The streams that exist, by name."""
    return [_usable(source, found) for found in _on_store(source, list_streams_async)]


def lag(source: str | Store | Stream, name: str | None = None, *, partition: int = 0) -> Lag:
    """What the owner of a partition's consumer has not acknowledged. Opens nothing."""
    return _on_stream(source, name, lambda stream: lag_async(stream, partition))


def list_dead_letters(
    source: str | Store | Stream, name: str | None = None, *, partition: int = 0
) -> list[DeadLetter]:
    """Every batch of a partition that could not be read, in order."""
    return _on_stream(source, name, lambda stream: list_dead_letters_async(stream, partition))


def lsn_at_time(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    time: int | str | date,
    partition: int = 0,
) -> int | None:
    """The LSN of the first retained record ingested at or after a time; None if there is none."""
    return _on_stream(source, name, lambda stream: lsn_at_time_async(stream, partition, time))


def _on_store(source: str | Store, ask: Callable[[Store], Awaitable[T]]) -> T:
    async def asked() -> T:
        if not isinstance(source, str):
            return await ask(source)
        async with open_store(source) as store:
            return await ask(store)

    return portal.shared().call(asked())


def _on_stream(
    source: str | Store | Stream, name: str | None, ask: Callable[[Stream], Awaitable[T]]
) -> T:
    async def asked() -> T:
        if not isinstance(source, str):
            return await ask(await resolve(source, name))
        async with open_store(source) as store:
            return await ask(await resolve(store, name))

    return portal.shared().call(asked())


def _usable(source: str | Store, stream: Stream) -> Stream:
    """The stream on a store of its own, which holds nothing before it is used."""
    return Stream(open_store(source), stream.config) if isinstance(source, str) else stream
