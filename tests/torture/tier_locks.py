"""Objects that nobody may read or remove for a while: a lock, an archive, a policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headwater.core.errors import Denied
from headwater.store import ByteRange, Object
from tests.torture.surroundings import EchoingStore


class LockingStore(EchoingStore):
    """A store that denies some of its segments to leaders, until it is calm."""

    def __init__(
        self, *how: Any, locks: random.Random, is_segment: Callable[[str], bool], **more: Any
    ) -> None:
        super().__init__(*how, **more)
        self._locks = locks
        self._is_segment = is_segment
        self._unreadable = locks.choice((0.0, 0.0, 0.1))
        self._undeletable = locks.choice((0.0, 0.0, 0.1))
        self._denied: dict[tuple[str, str], bool] = {}

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        self._refuse("read", key, self._unreadable)
        return await super().get(key, byte_range)

    async def delete(self, key: str) -> None:
        self._refuse("delete", key, self._undeletable)
        await super().delete(key)

    def _refuse(self, what: str, key: str, rate: float) -> None:
        """One that is denied once stays denied."""
        if self.calm or not rate or not self._is_segment(key):
            return
        if self._denied.setdefault((what, key), self._locks.random() < rate):
            raise Denied(f"{key} may not be {what}")
