"""Rows by their 16-byte id, without an object for each: 20 to 28 bytes a row.

A dict from `bytes` to `int` takes some 180 bytes a row, which would be most of the cache.
"""

from __future__ import annotations

from array import array
from typing import Final

ID_BYTES: Final = 16
_FREE: Final = -1
_DELETED: Final = -2
_LEAST_SLOTS: Final = 8


class IdTable:
    """A hash table with open addressing, at most two thirds full."""

    __slots__ = ("_ids", "_mask", "_rows", "_slots", "_taken")

    def __init__(self) -> None:
        self._ids = bytearray()
        self._slots = array("i", [_FREE]) * _LEAST_SLOTS
        self._mask = _LEAST_SLOTS - 1
        self._rows = 0
        self._taken = 0

    def __len__(self) -> int:
        return self._rows

    def id_of(self, row: int) -> bytes:
        """The id that was last put for a row."""
        return bytes(self._ids[row * ID_BYTES : (row + 1) * ID_BYTES])

    def __copy__(self) -> IdTable:
        twin = IdTable()
        twin._ids, twin._slots = self._ids[:], self._slots[:]
        twin._mask, twin._rows, twin._taken = self._mask, self._rows, self._taken
        return twin

    def find(self, id_bytes: bytes) -> int | None:
        """The row of an id."""
        slot = self._slot_of(id_bytes)
        return None if slot is None else self._slots[slot]

    def put(self, id_bytes: bytes, row: int) -> None:
        """Give a row its id, which no other row has; rows grow by one or are used again."""
        place = row * ID_BYTES
        self._ids[place : place + ID_BYTES] = id_bytes
        if 3 * (self._taken + 1) > 2 * len(self._slots):
            self._grow()
        self._insert(id_bytes, row)
        self._rows += 1

    def remove(self, id_bytes: bytes) -> None:
        """Forget an id; one that is not there is no matter."""
        slot = self._slot_of(id_bytes)
        if slot is not None:
            # Not free: whoever was put past this slot is looked for past it.
            self._slots[slot] = _DELETED
            self._rows -= 1

    def _slot_of(self, id_bytes: bytes) -> int | None:
        slots, mask, ids = self._slots, self._mask, self._ids
        slot = hash(id_bytes) & mask
        while (row := slots[slot]) != _FREE:
            if row >= 0 and ids[row * ID_BYTES : (row + 1) * ID_BYTES] == id_bytes:
                return slot
            slot = (slot + 1) & mask
        return None

    def _insert(self, id_bytes: bytes, row: int) -> None:
        slots, mask = self._slots, self._mask
        slot = hash(id_bytes) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._taken += slots[slot] == _FREE
        slots[slot] = row

    def _grow(self) -> None:
        rows = [row for row in self._slots if row >= 0]
        size = _LEAST_SLOTS
        while size < 3 * (len(rows) + 1):
            size *= 2
        self._slots = array("i", [_FREE]) * size
        self._mask = size - 1
        self._taken = 0
        for row in rows:
            self._insert(self.id_of(row), row)
