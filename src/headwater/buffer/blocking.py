"""Streams and their lag for blocking code: one call each, and nothing stays open.

    from headwater.buffer import blocking

    blocking.create_stream("s3://bucket/root", "orders", partitions=4, exists_ok=True)
    blocking.lag("s3://bucket/root", "orders").records

Each function takes an address, which it opens and closes, or an open store, or an open stream where
a stream is expected. They are the awaitable functions of the same names, called on the event loop
that all blocking objects of the process share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from headwater.buffer import consumer, stream
from headwater.core import portal

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return portal.shared().call(function(*args, **kwargs))

    return call


create_stream = _blocking(stream.create_stream)
alter_stream = _blocking(stream.alter_stream)
delete_stream = _blocking(stream.delete_stream)
list_streams = _blocking(stream.list_streams)
lag = _blocking(consumer.lag)
list_dead_letters = _blocking(consumer.list_dead_letters)
lsn_at_time = _blocking(consumer.lsn_at_time)
