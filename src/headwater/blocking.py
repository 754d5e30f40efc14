"""Headwater without an event loop: the names of `headwater`, for code that blocks.

    from headwater import blocking

    blocking.create_stream("s3://bucket/root", "orders", partitions=4, exists_ok=True)
    with blocking.Producer("s3://bucket/root", "orders") as producer:
        producer.produce([b"a", b"b"]).result()
    table = blocking.read("s3://bucket/root", "orders").to_table()

Each function takes an address, which it opens and closes, or an open store, or an open stream where
a stream is expected. It is the awaitable function of the same name, called on the event loop that
all blocking objects of the process share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from headwater.buffer import consumer, group, retained, stream
from headwater.buffer.consumer.blocking import read
from headwater.buffer.group.blocking import BlockingGroupConsumer as Consumer
from headwater.buffer.producer.blocking import BlockingProducer as Producer
from headwater.core import portal

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "Consumer",
    "Producer",
    "alter_stream",
    "create_stream",
    "delete_group",
    "delete_stream",
    "describe_group",
    "lag",
    "list_dead_letters",
    "list_groups",
    "list_streams",
    "lsn_at_time",
    "open_stream",
    "read",
    "reset_group",
    "verify_stream",
]


def _blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return portal.shared().call(function(*args, **kwargs))

    return call


create_stream = _blocking(stream.create_stream)
open_stream = _blocking(stream.open_stream)
alter_stream = _blocking(stream.alter_stream)
delete_stream = _blocking(stream.delete_stream)
list_streams = _blocking(stream.list_streams)
verify_stream = _blocking(retained.verify_stream)
list_groups = _blocking(group.list_groups)
describe_group = _blocking(group.describe_group)
reset_group = _blocking(group.reset_group)
delete_group = _blocking(group.delete_group)
lag = _blocking(group.group_lag)
list_dead_letters = _blocking(consumer.list_dead_letters)
lsn_at_time = _blocking(consumer.lsn_at_time)
