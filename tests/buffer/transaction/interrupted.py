"""Drivers that die on the way, and what they left in the register."""

from __future__ import annotations

from headwater.store import Version
from headwater.store.backend import Condition, MemoryBackend
from headwater.store.objects import Buffer


class Died(Exception):
    """The driver is gone."""


class Interrupted(MemoryBackend):
    """Memory whose client dies at a write, before or after it was carried out."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.fails: dict[str, int] = {}
        """Part of a key → at which write of such keys it dies, counting from 1."""
        self.lands = True
        """Whether that write is carried out."""

        self.is_dead = False

    def revive(self) -> None:
        """From here on it is another client."""
        self.fails, self.is_dead = {}, False

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self.is_dead:
            raise Died(key)
        for part in self.fails:
            self.fails[part] -= part in key
            if self.fails[part] == 0:
                self.is_dead = True
                if self.lands:
                    await super().put(key, data, condition)
                raise Died(key)
        return await super().put(key, data, condition)
