"""A value that never prints, never pickles and never reaches a traceback by its repr."""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """Holds a credential. Only `reveal()` gives it away, and a reader can search for that."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself: call it only where it is handed to the library that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret does not travel: ship its name and resolve it where it is used")


def _bytes(value: str) -> bytes:
    # The environment may hold bytes that are not text, and an error of encoding would show them.
    return value.encode("utf-8", "surrogatepass")
