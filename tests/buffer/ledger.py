"""What a killed consumer left in its ledger, and what was accepted, delivered, lost and doubled."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec


class Line(msgspec.Struct, frozen=True):
    """One batch, as the ledger has it."""

    sequence: int
    through: int
    """Records up to the end of this batch."""
    values: list[str]


def last_line(ledger: Path) -> Line | None:
    """The last whole line; a torn one after it is cut off."""
    if not ledger.exists():
        return None
    data = ledger.read_bytes()
    whole = data.rfind(b"\n") + 1
    os.truncate(ledger, whole)
    lines = data[:whole].splitlines()
    return msgspec.json.decode(lines[-1], type=Line) if lines else None


class Count(NamedTuple):
    """One producer's records."""

    accepted: int
    delivered: int
    lost: int
    """Accepted, and never delivered."""
    doubled: int
    """Delivered a second time, or more often."""
    out_of_order: int
    """Delivered after a record that follows them."""

    @property
    def is_exact(self) -> bool:
        """Whether everything accepted was delivered once, in order."""
        return self.lost == self.doubled == self.out_of_order == 0


def delivered_numbers(values: Iterable[str]) -> dict[str, list[int]]:
    """The records of each producer in the order in which they were delivered."""
    delivered: dict[str, list[int]] = {}
    for value in values:
        producer, _, number = value.rpartition(":")
        delivered.setdefault(producer, []).append(int(number))
    return delivered


def count(accepted: set[int], delivered: list[int]) -> Count:
    """Compare them record by record."""
    return Count(
        accepted=len(accepted),
        delivered=len(delivered),
        lost=len(accepted - set(delivered)),
        doubled=len(delivered) - len(set(delivered)),
        out_of_order=sum(after < before for before, after in pairwise(delivered)),
    )
