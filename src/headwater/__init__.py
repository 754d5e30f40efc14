"""Headwater: a brokerless, durable, replicated, tiered log on object storage, read by PySpark.

Enters: records. Leaves: DataFrames, exactly once. `open_store` is where every use begins, and
`read` shows what a stream holds; the rooms (`headwater.core`, `headwater.store`, …) say in their
own words what they do.
"""

from headwater.core.errors import HeadwaterError
from headwater.front import read, read_async
from headwater.store import Store, open_store

__all__ = ["HeadwaterError", "Store", "open_store", "read", "read_async"]
