"""Where Parquet writes to: parts in memory, with checksums of the stretches that are asked for."""

from __future__ import annotations

import pyarrow as pa
import xxhash


class HashingSink:
    """A file to write to, as Arrow wants one."""

    def __init__(self) -> None:
        self.closed = False
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._hasher = xxhash.xxh3_64()

    def write(self, data: bytes | pa.Buffer) -> None:
        """Keep it."""
        kept = data if isinstance(data, bytes) else data.to_pybytes()
        self._parts.append(kept)
        self._size_bytes += len(kept)
        self._hasher.update(kept)

    def tell(self) -> int:
        """How much was written."""
        return self._size_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing more is written."""
        self.closed = True

    def begin_part(self) -> int:
        """Begin a stretch here, and say where that is."""
        self._hasher.reset()
        return self._size_bytes

    def part_xxh3(self) -> str:
        """The checksum of what was written since."""
        return str(self._hasher.hexdigest())

    def end(self) -> bytes:
        """The last few bytes."""
        return b"".join(self._parts[-4:])[-64:]

    def cut(self, end_bytes: int) -> tuple[list[bytes], bytes]:
        """All but the last so many bytes, and those."""
        parts, ends, missing = list(self._parts), [], end_bytes
        while missing:
            part = parts.pop()
            if len(part) > missing:
                parts.append(part[:-missing])
                part = part[-missing:]
            ends.append(part)
            missing -= len(part)
        return parts, b"".join(reversed(ends))
