"""How a bench reports: sections of tables and goals, and the command line of all benches.

A bench is a module with `sections(root, quick)`, which names what it can measure, and ends with
`measure(__doc__, sections)`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple


def seconds(value: float) -> str:
    """A time in a unit that fits."""
    return f"{value * 1e6:,.0f} µs" if value < 1e-3 else f"{value * 1e3:,.2f} ms"


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}")
    for row in (head, ["-" * width for width in widths], *rows):
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first, *(cell.strip().rjust(w) for cell, w in zip(rest, widths[1:]))]))  # noqa: B905  the first column is not among the rest


def machine() -> str:
    """What this runs on, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = named[0] if named else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, {pages / 2**30:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {sys.version.split()[0]}, load {load}"
    )


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
    """How many other processes wanted to run, on average."""

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


class Seconds(NamedTuple):
    """What each round of a candidate took: by the clock, and of this process's processor time."""

    wall: list[float]
    cpu: list[float]


def in_turns(
    candidates: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = False
) -> dict[str, Seconds]:
    """Run the candidates in turns, each after a garbage collection; a warm-up does not count."""
    spent = {name: Seconds([], []) for name in candidates}
    for number in range(rounds + warm_up):
        for name, run in candidates.items():
            gc.collect()
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            run()
            if number >= warm_up:
                spent[name].wall.append(time.perf_counter() - wall_s)
                spent[name].cpu.append(time.process_time() - cpu_s)
    return spent


Sections = dict[str, Callable[[], list[Section]]]
"""Name → what measures it."""


def measure(doc: str | None, sections: Callable[[Path, bool], Sections]) -> None:
    """Run the requested sections and print each as soon as it is measured, as text or as JSON.

    `sections` gets a folder to measure in, which is removed in the end, and whether to do less.
    """
    names = list(sections(Path(), True))
    parser = argparse.ArgumentParser(description=(doc or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="less of everything: does it run?")
    parser.add_argument("--json", action="store_true", help="figures for machines, on one line")
    parser.add_argument("--only", nargs="*", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--dir", type=Path, help="where to measure (a local disk)")
    options = parser.parse_args()
    if not options.json:
        print(f"{doc}\n{machine()}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="headwater-bench-", dir=options.dir))
    measured: list[Section] = []
    try:
        for name, run in sections(root, options.quick).items():
            if options.only and name not in options.only:
                continue
            for section in run():
                measured.append(section)
                if not options.json:
                    section.show()
                    sys.stdout.flush()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        figures = [section.as_json() for section in measured]
        print(json.dumps({"machine": machine(), "sections": figures}, ensure_ascii=False))
        return
    goals = [goal for section in measured for goal in section.goals]
    missed = [goal for goal in goals if not goal.is_met]
    print(f"\n{len(goals) - len(missed)} of {len(goals)} goals met")
    for goal in missed:
        print(f"  {goal}")
