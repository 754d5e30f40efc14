"""An order of the demo: the same whoever makes it, so that anybody can tell what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import xxhash

STREAM: Final = "orders"
TABLE: Final = "shop.orders"
SCHEMA: Final = "order string, customer string, product string, cents long, ordered_at timestamp"
PRODUCTS: Final = ("coffee", "tea", "cocoa", "juice", "water")
_OPENED: Final = datetime(2026, 1, 31, 8, tzinfo=UTC)
_APART: Final = timedelta(milliseconds=150)
_MIXED: Final = 2654435761  # a large odd number: neighbours get different customers and prices


STORED: Final = "stored"
"""The job's report: a line for each micro-batch that is in the table."""
SALES: Final = "sales.json"
"""Where the job writes its aggregate."""


class Order(msgspec.Struct, frozen=True):
    """One event."""

    order: str
    customer: str
    product: str
    cents: int
    ordered_at: datetime


class Sale(msgspec.Struct, frozen=True):
    """A row of the job's aggregate."""

    window: str
    product: str
    orders: int
    euros: float


def order_of(producer: str, number: int) -> Order:
    """The n-th order of a producer."""
    mixed = number * _MIXED % 2**32
    return Order(
        order=f"{producer}-{number:06}",
        customer=f"c{mixed % 997}",
        product=PRODUCTS[mixed % 7 % len(PRODUCTS)],
        cents=100 + mixed % 4900,
        ordered_at=_OPENED + number * _APART,
    )


class Fingerprint(NamedTuple):
    """Of a set of orders, in whatever order they come: how many, and the sum of their hashes."""

    rows: int
    total: int

    def __str__(self) -> str:
        return f"{self.total:016x}"


def fingerprint(orders: Iterable[Order]) -> Fingerprint:
    """Counts every order as often as it comes."""
    rows = total = 0
    for one in orders:
        rows += 1
        total += xxhash.xxh3_64_intdigest(msgspec.json.encode(one))
    return Fingerprint(rows, total % 2**64)
