"""The demo's arithmetic: what the processes were told, against what a reader finds.

Only two things are believed: a report line, written after its acceptance, and the store. An
entry that is there without a line was under way when its process was killed; it may be there
once, and is counted apart, because nobody was told that it was accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.store import Entry


@dataclass(frozen=True, slots=True)
class Reported:
    """What all processes together reported."""

    entries: dict[str, int]
    """Entry → the number it was accepted under."""
    updates: Counter[str]
    """Run → how many of its updates were accepted."""


@dataclass(frozen=True, slots=True)
class Count:
    """One row of the demo's table."""

    accepted: int
    found: int
    unreported: int
    lost: int
    doubled: int

    @property
    def is_exact(self) -> bool:
        """Whether everything accepted is there, once."""
        return self.lost == 0 and self.doubled == 0


def read_reports(texts: Iterable[str]) -> Reported:
    """Put the processes' reports together. A line without its end was never finished."""
    entries: dict[str, int] = {}
    updates: Counter[str] = Counter()
    for text in texts:
        for line in text.split("\n")[:-1]:
            kind, name, number = line.split(" ")
            if kind == "entry":
                entries[name] = int(number)
            else:
                updates[name] += 1
    return Reported(entries, updates)


def count_entries(accepted: Mapping[str, int], found: list[Entry], killed: set[str]) -> Count:
    """Compare entries one by one; `killed` names the runs that had no chance to report all."""
    times = Counter(entry.payload.decode() for entry in found)
    places = {entry.payload.decode(): entry.number for entry in found}
    unreported = _unreported(Counter(_run(name) for name in times if name not in accepted), killed)
    return Count(
        accepted=len(accepted),
        found=len(found),
        unreported=unreported,
        lost=sum(places.get(name) != number for name, number in accepted.items()),
        doubled=len(found) - sum(name in times for name in accepted) - unreported,
    )


def count_updates(accepted: Mapping[str, int], found: Mapping[str, int], killed: set[str]) -> Count:
    """Compare each run's count in the register with what it was told."""
    runs = accepted.keys() | found.keys()
    over = Counter({run: max(0, found.get(run, 0) - accepted.get(run, 0)) for run in runs})
    unreported = _unreported(over, killed)
    return Count(
        accepted=sum(accepted.values()),
        found=sum(found.values()),
        unreported=unreported,
        lost=sum(max(0, accepted.get(run, 0) - found.get(run, 0)) for run in runs),
        doubled=over.total() - unreported,
    )


def _unreported(over: Counter[str], killed: set[str]) -> int:
    """At most one per killed run: it does one thing at a time. Any more were written twice."""
    return sum(min(1, over[run]) for run in killed)


def _run(entry: str) -> str:
    return entry.partition(":")[0]
