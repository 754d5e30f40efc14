"""The demo's proof: accepted, read and stored orders, compared by count and fingerprint.

Only three things are believed: a producer's report line, written after its acceptance; the stream,
read without Spark; and the table's own files, read without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headwater.cli.demo.orders import STREAM, TABLE, Fingerprint, Order, fingerprint, order_of


class Verdict(NamedTuple):
    """What was found where, and what is wrong."""

    found: dict[str, Fingerprint]
    """accepted, read, stored."""
    problems: list[str]

    @property
    def is_exact(self) -> bool:
        """Whether every order that was accepted is in the stream and in the table, once."""
        return not self.problems


def accepted_numbers(report: str) -> set[int]:
    """The orders that a producer was told are accepted, in all of its lives.

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


def accepted_orders(reports: dict[str, Path]) -> list[Order]:
    """What all producers were told is accepted."""
    return [
        order_of(name, number)
        for name, report in reports.items()
        for number in sorted(accepted_numbers(report.read_text()))
    ]


def read_orders(url: str) -> list[Order]:
    """What the stream holds."""
    import headwater

    values = headwater.read(url, STREAM, columns=["_value"]).to_table().column(0).to_pylist()
    return [msgspec.json.decode(value, type=Order) for value in values]


def stored_table(url: str) -> Any:
    """What the table holds, as Arrow."""
    from headwater.table.catalog import RegisterCatalog

    return RegisterCatalog("demo", warehouse=url).load_table(TABLE).scan().to_arrow()


def orders_of(table: Any) -> list[Order]:
    """The rows of the table as orders."""
    return [msgspec.convert(row, Order) for row in table.to_pylist()]


def compare(accepted: list[Order], read: list[Order], stored: list[Order]) -> Verdict:
    """The verdict, which says what is missing and what is there too often."""
    found = {
        name: fingerprint(orders)
        for name, orders in (("accepted", accepted), ("read", read), ("stored", stored))
    }
    problems = [
        *_differences("the stream", accepted, read),
        *_differences("the table", accepted, stored),
    ]
    if not problems and len(set(found.values())) > 1:
        problems.append("counts agree, and the contents of some orders do not")
    return Verdict(found, problems)


def _differences(place: str, accepted: Iterable[Order], there: Iterable[Order]) -> list[str]:
    wanted = Counter(one.order for one in accepted)
    counted = Counter(one.order for one in there)
    missing, extra = wanted - counted, counted - wanted
    found = []
    if missing:
        found.append(f"{place} lacks {missing.total():,}, for one {min(missing)}")
    if extra:
        found.append(f"{place} has {extra.total():,} too many, for one {min(extra)}")
    return found
