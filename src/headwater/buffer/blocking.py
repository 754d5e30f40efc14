"""Streams and their lag for blocking code: one call each, and nothing stays open.

    from headwater.buffer import blocking

    blocking.create_stream("s3://bucket/root", "orders", partitions=4, exists_ok=True)
    blocking.lag("s3://bucket/root", "orders").records

Each function takes an address, which it opens and closes, or an open store, or an open stream where
a stream is expected. They do what the awaitable functions of the same names do.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import date
from typing import Any, TypeVar

from headwater.buffer.consumer import DeadLetter, Lag
from headwater.buffer.consumer import lag as lag_async
from headwater.buffer.consumer import list_dead_letters as list_dead_letters_async
from headwater.buffer.consumer import lsn_at_time as lsn_at_time_async
from headwater.buffer.queue.contract import TimeBy
from headwater.buffer.stream import DeletedReport, Stream
from headwater.buffer.stream import alter_stream as alter_stream_async
from headwater.buffer.stream import create_stream as create_stream_async
from headwater.buffer.stream import delete_stream as delete_stream_async
from headwater.buffer.stream import list_streams as list_streams_async
from headwater.core import portal
from headwater.store import Store

T = TypeVar("T")


def create_stream(source: str | Store, name: str, **settings: Any) -> Stream:
    return _call(create_stream_async(source, name, **settings))


def alter_stream(source: str | Store, name: str, **changes: Any) -> Stream:
    """Change settings of a stream, or declare its next schema."""
    return _call(alter_stream_async(source, name, **changes))


def delete_stream(source: str | Store, name: str) -> DeletedReport:
    """Delete a stream and its objects, or the leftovers of a deleted one."""
    return _call(delete_stream_async(source, name))


def list_streams(source: str | Store) -> list[Stream]:
    """The existing streams, sorted by name."""
    return _call(list_streams_async(source))


def lag(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    partition: int = 0,
    group: str | None = None,
) -> Lag:
    """What the owner of a partition, or another group, has not processed. Opens nothing."""
    return _call(lag_async(source, name, partition=partition, group=group))


def list_dead_letters(
    source: str | Store | Stream, name: str | None = None, *, partition: int = 0
) -> list[DeadLetter]:
    """The dead letters of a partition, in order."""
    return _call(list_dead_letters_async(source, name, partition=partition))


def lsn_at_time(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    time: int | str | date,
    partition: int = 0,
    time_by: TimeBy = "timestamp",
) -> int | None:
    """The LSN of the first retained record with this timestamp or a later one, or None."""
    search = lsn_at_time_async(source, name, time=time, partition=partition, time_by=time_by)
    return _call(search)


def _call(coroutine: Coroutine[Any, Any, T]) -> T:
    return portal.shared().call(coroutine)
