"""Where Parquet writes to: one stretch of memory, with checksums of parts that are asked for."""

from __future__ import annotations

import pyarrow as pa
import xxhash


class HashingSink:
    """A file to write to, as Arrow wants one."""

    def __init__(self) -> None:
        self.closed = False
        self.data = bytearray()
        """All that was written: it grows in place, so that it is in memory once."""
        self._hasher = xxhash.xxh3_64()

    def write(self, data: bytes | pa.Buffer) -> None:
        """Keep it."""
        self.data += memoryview(data)
        self._hasher.update(data)

    def tell(self) -> int:
        """How much was written."""
        return len(self.data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing more is written."""
        self.closed = True

    def begin_part(self) -> int:
        """Begin a stretch here, and say where that is."""
        self._hasher.reset()
        return len(self.data)

    def part_xxh3(self) -> str:
        """The checksum of what was written since."""
        return str(self._hasher.hexdigest())
