"""A store in memory that tells a witness of every change at the instant it is applied."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from headwater.core.runtime import installed
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer, Object
from headwater.store.register import decode_envelope
from headwater.testing import Simulation

T = TypeVar("T")


class Witness(Protocol):
    """Sees every change that a store applies."""

    simulation: Simulation
    prefix: str

    def wrote(self, key: str, data: bytes, objects: RecordingBackend) -> None:
        """A write was applied."""

    def deleted(self, key: str) -> None:
        """A delete was applied to something that was there."""

    def leftovers(self, objects: RecordingBackend) -> list[str]:
        """What is there, once everything was collected, and nobody needs."""


class RecordingBackend(MemoryBackend):
    """Tells the truth of every change."""

    def __init__(self, truth: Witness) -> None:
        super().__init__(versions_by_content=True)
        self._truth = truth

    def has(self, key: str) -> bool:
        """Whether an object is there at this instant."""
        return key in self._objects

    def data(self, key: str) -> bytes:
        """What an object holds at this instant."""
        return bytes(self._objects[key].data)

    def damage(self, key: str, data: bytes | None) -> None:
        """Let an object hold something else, or be gone, behind everybody's back."""
        found = self._objects.pop(key)
        if data is not None:
            self._objects[key] = Object(found.meta, data)

    @property
    def names(self) -> list[str]:
        """Everything there is at this instant."""
        return sorted(self._objects)

    def keys(self, folder: str) -> list[str]:
        """What is there at this instant."""
        return sorted(
            key for key in self._objects if key.startswith(f"{self._truth.prefix}/{folder}/")
        )

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        # The store's clock is its own, whatever that of the process says which sent the request.
        with installed(self._truth.simulation.runtime):
            version = await super().put(key, data, condition)
        self._truth.wrote(key, bytes(data), self)
        return version

    async def delete(self, key: str) -> None:
        there = key in self._objects
        await super().delete(key)
        if there:
            self._truth.deleted(key)


def register_value(key: str, data: bytes, kind: type[T]) -> T:
    """What stands in a register."""
    return msgspec.json.decode(decode_envelope(key, data).value, type=kind)
