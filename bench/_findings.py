"""What a section of a benchmark found: a table, and each goal beside what was measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

from bench._report import table

CORES: Final = os.cpu_count() or 1
LOAD_BEFORE: Final = os.getloadavg()[0]
"""How many processes wanted to run before the program began: later its own work counts, too."""


@dataclass(frozen=True)
class Goal:
    """A number to reach, and what was reached. Nothing fails for missing one."""

    what: str
    goal: float
    measured: float
    at_least: bool = True
    unit: str = ""
    timed: bool = False
    """Whether it is of real time, which a machine with other work shares out as it likes."""
    load: float = LOAD_BEFORE
    """How many others wanted to run, on average."""

    @property
    def is_met(self) -> bool:
        """Whether it was reached."""
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal

    @property
    def is_doubtful(self) -> bool:
        """Whether there was more to run than cores to run it on."""
        return self.timed and self.load > CORES

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.is_met else "MISSED"
        if self.is_doubtful:
            verdict += f", but doubtful: the machine was busy (load {self.load:.1f}, {CORES} cores)"
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"goal: {self.what} {sign} {self.goal:g}{unit}; measured {self.measured:.3g}{unit}, "
            f"{verdict}"
        )


@dataclass
class Section:
    """One question, and the answer."""

    title: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self) -> None:
        """Print it."""
        if self.rows:
            table(self.title, self.head, self.rows)
        else:
            print(f"\n{self.title}")
        for line in (*self.notes, *self.goals):
            print(f"  {line}")

    def as_json(self) -> dict[str, Any]:
        """The same for machines; cells are as printed."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.head, row, strict=True)) for row in self.rows],
            "goals": [
                {
                    "what": goal.what,
                    "goal": goal.goal,
                    "measured": goal.measured,
                    "met": goal.is_met,
                    "doubtful": goal.is_doubtful,
                }
                for goal in self.goals
            ],
            "notes": self.notes,
        }
