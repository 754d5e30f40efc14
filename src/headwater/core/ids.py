"""ULIDs: 48 bits of milliseconds, 80 bits of chance, 26 characters that sort by time.

Always holds: one factory never gives the same id twice nor one below an earlier one, also
when its clock stands still or goes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from headwater.core.errors import LimitExceeded, Refused

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE: Final = {character: value for value, character in enumerate(_ALPHABET)}
_CHANCE_BITS: Final = 80
ULID_LENGTH: Final = 26
ULID_MAX: Final = "7" + "Z" * 25


def encode_ulid(number: int) -> str:
    """The 26 characters of a 128-bit number."""
    if not 0 <= number < 1 << 128:
        raise LimitExceeded(f"a ULID has 128 bits; {number} does not fit")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def decode_ulid(text: str) -> int:
    """The number behind a ULID; refuses anything that `encode_ulid` would not write."""
    if len(text) != ULID_LENGTH or text > ULID_MAX or any(c not in _VALUE for c in text):
        raise Refused(f"{text!r} is not a ULID (26 characters of {_ALPHABET}, at most {ULID_MAX})")
    number = 0
    for character in text:
        number = number << 5 | _VALUE[character]
    return number


def ulid_time_ms(text: str) -> int:
    """The milliseconds since 1970 that a ULID carries."""
    return decode_ulid(text) >> _CHANCE_BITS


class UlidFactory:
    """Gives ULIDs in rising order from a clock and a source of random bits."""

    def __init__(self, wall_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._wall_ms = wall_ms
        self._random_bits = random_bits
        self._last = -1
        self._lock = threading.Lock()

    def new(self, *, above: str | None = None) -> str:
        """The next ULID, above every one given before and above `above`."""
        with self._lock:
            floor = self._last if above is None else max(self._last, decode_ulid(above))
            number = self._wall_ms() << _CHANCE_BITS | self._random_bits(_CHANCE_BITS)
            if number <= floor:
                # Same millisecond, or a clock behind: go on from the floor, with a random step so
                # that two processes above the same floor do not give the same id.
                number = floor + 1 + self._random_bits(_CHANCE_BITS - 16)
            # Before it counts as given: an `above` without room above it must not spoil the rest.
            text = encode_ulid(number)
            self._last = number
        return text
