"""Headwater: a brokerless, durable, replicated, tiered log on object storage, read by PySpark.

What a program needs is here, for code that awaits, and in `headwater.blocking` under the same names
for code that does not. docs/api.md shows each name with an example. The packages below
(`headwater.buffer`, `headwater.spark`, …) say what they do in their own first lines.

Always holds: importing this loads none of the packages; a name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater import blocking, metrics
    from headwater.buffer.consumer import UnreadableBatch, list_dead_letters, lsn_at_time, read
    from headwater.buffer.group import GroupConsumer as Consumer
    from headwater.buffer.group import delete_group, describe_group, list_groups, reset_group
    from headwater.buffer.group import group_lag as lag
    from headwater.buffer.murmur2 import partition_for_key
    from headwater.buffer.producer import BufferFull, Producer
    from headwater.buffer.retained import verify_stream
    from headwater.buffer.stream import (
        Stream,
        alter_stream,
        create_stream,
        delete_stream,
        list_streams,
        open_stream,
    )
    from headwater.core.errors import (
        AlreadyExists,
        Damaged,
        Denied,
        Fenced,
        HeadwaterError,
        NotFound,
        OutcomeUnknown,
        Refused,
        Trimmed,
        Unavailable,
    )
    from headwater.store import Store, open_store
    from headwater.version import __version__

__all__ = [
    "AlreadyExists",
    "BufferFull",
    "Consumer",
    "Damaged",
    "Denied",
    "Fenced",
    "HeadwaterError",
    "NotFound",
    "OutcomeUnknown",
    "Producer",
    "Refused",
    "Store",
    "Stream",
    "Trimmed",
    "Unavailable",
    "UnreadableBatch",
    "__version__",
    "alter_stream",
    "blocking",
    "create_stream",
    "delete_group",
    "delete_stream",
    "describe_group",
    "lag",
    "list_dead_letters",
    "list_groups",
    "list_streams",
    "lsn_at_time",
    "metrics",
    "open_store",
    "open_stream",
    "partition_for_key",
    "read",
    "reset_group",
    "verify_stream",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "buffer.consumer": "UnreadableBatch list_dead_letters lsn_at_time read",
        "buffer.group": "Consumer=GroupConsumer lag=group_lag delete_group describe_group "
        "list_groups reset_group",
        "buffer.murmur2": "partition_for_key",
        "buffer.producer": "BufferFull Producer",
        "buffer.retained": "verify_stream",
        "buffer.stream": "Stream alter_stream create_stream delete_stream list_streams open_stream",
        "core.errors": "AlreadyExists Damaged Denied Fenced HeadwaterError NotFound "
        "OutcomeUnknown Refused Trimmed Unavailable",
        "store": "Store open_store",
        "version": "__version__",
    },
    modules="blocking metrics",
)
