"""How many records batches have: from the seven bytes at their ends, read once.

The published manifest names batches and says nothing of their sizes. A ranged read of the footer
tells the rows, and its answer the size of the object.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from headwater.buffer.compression import Compression
from headwater.core import limits
from headwater.core.errors import BadKey, Corrupt
from headwater.store import ByteRange, Store

_LENGTH_BYTES = 4


class Count(NamedTuple):
    """What the end of a batch and the store tell of it."""

    rows: int
    size_bytes: int
    modified_ms: int


class Counts:
    """The counts of batches, by their location; the ones used last are kept."""

    def __init__(self, store: Store, capacity: int = limits.V1_COUNTS_CACHED) -> None:
        self._store = store
        self._capacity = capacity
        self._known: OrderedDict[str, Count] = OrderedDict()

    def know(self, location: str, count: Count) -> None:
        """Keep what is known without reading: a batch never changes."""
        self._known[location] = count
        self._known.move_to_end(location)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    async def of(self, location: str) -> Count:
        """The count of one batch. What its bytes may be wrong in, `read_footer` says."""
        known = self._known.get(location)
        if known is None:
            known = await self._read(location)
        self.know(location, known)
        return known

    async def _read(self, location: str) -> Count:
        from headwater.buffer.v1_batch import FOOTER_BYTES, read_footer

        try:
            found = await self._store.get(location, ByteRange(-FOOTER_BYTES), foreign=True)
        except BadKey as error:
            # Another implementation may write any text. Escaping it here would look for an object
            # of another name, and perhaps find one.
            raise BadKey(
                f"the batch at location {location!r} cannot be asked for: {error}"
            ) from None
        rows, compression = read_footer(found.data)
        block_bytes = limits.BATCH_MAX_BYTES
        if compression is Compression.NONE:
            block_bytes = min(found.meta.size_bytes - FOOTER_BYTES, block_bytes)
        if rows * _LENGTH_BYTES > block_bytes:
            raise Corrupt(
                f"{location}: record_count is {rows:,}, and {found.meta.size_bytes:,} bytes hold "
                "fewer"
            )
        return Count(rows, found.meta.size_bytes, found.meta.modified_ms)
