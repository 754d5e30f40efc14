"""Whether a bench became slower: `python -m bench.compare OLD_TREE --pairs 10 buffer --only local`.

Runs a bench in another tree and in this one in turn, with the same interpreter and arguments; which
of them goes first changes with every pair, so that a machine that gets slower slows both. Each
tree runs its own bench against its own `src`.

The figures are read from the tables and goals that every bench prints. Per figure it prints the
median of the pairs' ratios new ÷ old, an interval that contains the true median with at least 95 %
(by the binomial distribution; fewer than six pairs have none), and whether it is worse:

- `WORSE`: the whole interval is more than 5 % on the bad side;
- `perhaps`: the median is, the interval is not: run more pairs;
- `no`: neither;
- nothing for ratios and shares, of which no direction is better by itself.

Figures that never differ are left out: parameters, requests, virtual time. The opponents' rows (raw
files, pyarrow, Spark's own sources) are the same code in both trees: they show the noise.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench._report import machine, table

WORSE_BY = 1.05
ONE_SIDE = 0.025
"""The highest probability that the median lies beyond one end of the interval."""
FEWEST_PAIRS = 6
"""With fewer, even the extremes are not an interval of 95 %."""
_RULE = re.compile(r"-+(  -+)+")
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
_UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_GOAL = re.compile(r"  goal: (?P<what>.+) (?P<sign>[≥≤]) .+; measured (?P<measured>\S+).*, .+")
MORE_IS_BETTER = "measured, more is better"
LESS_IS_BETTER = "measured"
_RATIO = re.compile(r"÷|×|\bratio\b|\bshare\b|overhead|ours/|of the best|of reading alone")
_RATE = re.compile(r"/s\b|a second|speed|more is better")


@dataclass(frozen=True)
class Printed:
    """A table of one run, its cells as text."""

    title: str
    head: list[str]
    rows: list[list[str]]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.rows), len(self.head)


@dataclass(frozen=True)
class Verdict:
    """A figure of all pairs."""

    ratio: float
    low: float
    high: float
    """The ends of the interval; the extremes if there are too few pairs for one."""
    worse: str


def tables(text: str) -> list[Printed]:
    """The tables that a bench printed, and two of its goals."""
    lines = text.splitlines()
    every: list[Printed] = []
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        if number > 1 and _RULE.fullmatch(line):
            spans = [match.span() for match in re.finditer("-+", line)]
            every.append(Printed(lines[number - 2], _cells(lines[number - 1], spans), []))
        elif spans and len(line) == spans[-1][1]:
            every[-1].rows.append(_cells(line, spans))
        else:
            spans = []
    for sign, column in (("≥", MORE_IS_BETTER), ("≤", LESS_IS_BETTER)):
        goals = [goal for goal in map(_GOAL.fullmatch, lines) if goal and goal["sign"] == sign]
        rows = [[goal["what"], goal["measured"]] for goal in goals]
        every.append(Printed("Goals", ["goal", column], rows))
    return every


def _cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    return [line[start:end].strip() for start, end in spans]


def _number(cell: str) -> float | None:
    match = _NUMBER.match(cell)
    if match is None:
        return None
    unit = cell[match.end() :].strip()
    return float(match[0].replace(",", "")) * _UNITS.get(unit, 1.0)


def is_rate(column: str) -> bool | None:
    """Whether more is better in a column of this name; None if neither direction is."""
    return None if _RATIO.search(column) else bool(_RATE.search(column))


def interval(ratios: list[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that has the median with 95 %; else the extremes."""
    ranked = sorted(ratios)
    below, skip = 0.5 ** len(ranked), 0
    while below + math.comb(len(ranked), skip + 1) * 0.5 ** len(ranked) <= ONE_SIDE:
        skip += 1
        below += math.comb(len(ranked), skip) * 0.5 ** len(ranked)
    return ranked[skip], ranked[-1 - skip]


def verdict(pairs: list[tuple[float, float]], more_is_better: bool | None) -> Verdict:
    """Of the figure's values, old and new, in each pair."""
    ratios = [new / old if old else math.inf if new else 1.0 for old, new in pairs]
    low, high = interval(ratios)
    ratio = statistics.median(ratios)
    if more_is_better is None:
        return Verdict(ratio, low, high, "")
    median_worse = ratio < 1 / WORSE_BY if more_is_better else ratio > WORSE_BY
    beyond = high < 1 / WORSE_BY if more_is_better else low > WORSE_BY
    surely_worse = beyond and len(pairs) >= FEWEST_PAIRS
    worse = "WORSE" if surely_worse else "perhaps" if median_worse else "no"
    return Verdict(ratio, low, high, worse)


def run(tree: Path, bench: str, arguments: list[str]) -> list[Printed]:
    """Run a tree's bench to its end."""
    path = os.pathsep.join((str(tree / "src"), str(tree)))
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"bench.{bench} ended with {done.returncode} in {tree}")
    return tables(done.stdout)


def compared(pairs: list[tuple[Printed, Printed]]) -> list[list[str]]:
    """A line per figure that differed, of one table of all runs.

    Cells that are the same in all runs name the row; the others are its figures.
    """
    lines: list[list[str]] = []
    newest = pairs[0][1]
    for row in range(len(newest.rows)):
        cells = [
            [(old.rows[row][column], new.rows[row][column]) for old, new in pairs]
            for column in range(len(newest.head))
        ]
        fixed = [len({cell for pair in column for cell in pair}) == 1 for column in cells]
        first, *others = zip(newest.rows[row], fixed, strict=True)
        name = " ".join([first[0], *(cell for cell, is_fixed in others if is_fixed)])
        for column, is_fixed, values in zip(newest.head, fixed, cells, strict=True):
            numbers = [(_number(old), _number(new)) for old, new in values]
            figures = [(old, new) for old, new in numbers if old is not None and new is not None]
            if is_fixed or len(figures) < len(values):
                continue
            of = verdict(figures, is_rate(column))
            medians = (statistics.median(side) for side in zip(*figures, strict=True))
            line = [name, column, *(f"{median:.4g}" for median in medians)]
            lines.append([*line, f"{of.ratio:.3f}", f"{of.low:.3f} … {of.high:.3f}", of.worse])
    return lines


def show(pairs: list[tuple[list[Printed], list[Printed]]]) -> None:
    """A table for each table in which something differed."""
    counts = {len(run) for pair in pairs for run in pair}
    for number, printed in enumerate(pairs[0][1]):
        title = printed.title

        def pick(run: list[Printed], number: int = number, title: str = title) -> Printed:
            same = [run[number]] if len(counts) == 1 else [t for t in run if t.title == title]
            return same[0] if len(same) == 1 else Printed(title, [], [])

        of = [(pick(old), pick(new)) for old, new in pairs]
        if any(one.shape != printed.shape for pair in of for one in pair):
            print(f"\n{title}: not compared, the runs printed different tables")
        elif lines := compared(of):
            head = ["row", "figure", "old", "new", "new ÷ old", "interval", "worse"]
            table(title, head, lines)


def main() -> None:
    """Run the pairs and print what differs."""
    parser = argparse.ArgumentParser(description="Compare a bench of two trees.")
    parser.add_argument("old_tree", type=Path, help="the root of another work tree")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("bench", help="store, buffer, coordinator, log, tier or spark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the bench")
    options = parser.parse_args()
    trees = (options.old_tree.resolve(), Path(__file__).resolve().parents[1])
    print(f"{trees[0]} → {trees[1]}, {options.pairs} pairs\n{machine()}")
    pairs: list[tuple[list[Printed], list[Printed]]] = []
    for number in range(options.pairs):
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
        turns = trees if number % 2 == 0 else trees[::-1]
        of = {tree: run(tree, options.bench, options.arguments) for tree in turns}
        pairs.append((of[trees[0]], of[trees[1]]))
    show(pairs)


if __name__ == "__main__":
    main()
