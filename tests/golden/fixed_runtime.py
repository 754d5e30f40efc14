"""A runtime without chance: tokens are 1, 2, 3, …"""

from __future__ import annotations

from headwater.core.runtime import TOKEN_BYTES, RealRuntime


class FixedRuntime(RealRuntime):
    """The real one, but for its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = 0

    def new_token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(TOKEN_BYTES, "big")
