"""The first of many numbers, from a place on, that is at least so large: in O(log n)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

_LEAST: Final = -(1 << 63)


class MaxTree:
    """A tree of maxima over numbers whose count does not change."""

    __slots__ = ("_count", "_size", "_tree")

    def __init__(self, values: Sequence[int]) -> None:
        self._count = len(values)
        self._size = 1 << max(self._count - 1, 0).bit_length()
        tree = array("q", [_LEAST]) * (2 * self._size)
        tree[self._size : self._size + self._count] = array("q", values)
        for place in range(self._size - 1, 0, -1):
            tree[place] = max(tree[2 * place], tree[2 * place + 1])
        self._tree = tree

    def set(self, index: int, value: int) -> None:
        """Change one number."""
        tree, place = self._tree, index + self._size
        tree[place] = value
        while place > 1:
            place >>= 1
            tree[place] = max(tree[2 * place], tree[2 * place + 1])

    def first_at_least(self, begin: int, value: int) -> int | None:
        """The index of the first number, from `begin` on, that is not below `value`."""
        if begin >= self._count:
            return None
        tree, place = self._tree, begin + self._size
        while tree[place] < value:
            # Nothing here: on to what stands right of it, as large a part as there is.
            while place & 1:
                place >>= 1
            if place == 0:
                return None
            place += 1
        while place < self._size:
            place *= 2
            if tree[place] < value:
                place += 1
        index = place - self._size
        return index if index < self._count else None
