"""The demo's arithmetic: what producers were told, against what the consumer wrote down.

Only two things are believed: a report line, written after its acceptance, and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class Count(NamedTuple):
    """One producer's row of the demo's table."""

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


def accepted_numbers(report: str) -> set[int]:
    """The records that a producer was told are accepted, in all of its lives.

    A line without its end was never finished.
    """
    accepted: set[int] = set()
    for line in report.split("\n")[:-1]:
        word, *numbers = line.split(" ")
        if word == "resumed":
            # A successor was told that everything up to here is accepted.
            accepted.update(range(1, int(numbers[0]) + 1))
        else:
            first, last = map(int, numbers)
            accepted.update(range(first, last + 1))
    return accepted


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
