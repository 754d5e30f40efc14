"""So many bytes a second on average, whoever asks."""

from __future__ import annotations

from typing import Final

from headwater.core import runtime


class ByteRate:
    """Lets whoever moves bytes wait for what was moved before; -1 lets everybody through."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def change(self, bytes_per_s: int) -> None:
        """Let so many through from now on, also for whoever is in the middle of something."""
        self._bytes_per_s = bytes_per_s
        self._free_at_s = min(self._free_at_s, runtime.monotonic_s())

    async def take(self, size_bytes: int) -> None:
        """Wait until so many may be moved: an object larger than a second's worth holds up what
        comes after it, not itself."""
        wait_s = self._free_at_s - runtime.monotonic_s()
        self.spend(size_bytes)
        if wait_s > 0:
            await runtime.sleep(wait_s)

    def spend(self, size_bytes: int) -> None:
        """So many are moved: whoever comes next waits for them."""
        if self._bytes_per_s > 0:
            begins_s = max(runtime.monotonic_s(), self._free_at_s)
            self._free_at_s = begins_s + size_bytes / self._bytes_per_s


NO_RATE: Final = ByteRate(-1)
