"""Headwater: a brokerless, durable, replicated, tiered log on object storage, read by PySpark.

Enters: records. Leaves: DataFrames, exactly once. `open_store` is where every use begins, and
`read` shows what a stream holds; the rooms (`headwater.core`, `headwater.store`, …) say in their
own words what they do.

Always holds: importing this loads no room; a name is loaded when it is asked for.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.buffer.consumer import read, read_async
    from headwater.core.errors import HeadwaterError
    from headwater.store import Store, open_store

__all__ = ["HeadwaterError", "Store", "open_store", "read", "read_async"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "buffer.consumer": "read read_async",
        "core.errors": "HeadwaterError",
        "store": "Store open_store",
    },
)
