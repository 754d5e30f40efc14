"""Headwater: a brokerless, durable, replicated, tiered log on object storage, read by PySpark.

`open_store` opens the store that every other call needs, and `read` returns the records of a
stream. Each package (`headwater.buffer`, `headwater.spark`, …) documents what it does.

Always holds: importing this loads none of the packages; a name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

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
