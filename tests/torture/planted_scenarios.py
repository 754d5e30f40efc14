"""Every planted bug: a round plants one, and the histories of its test have to notice it.

The bugs are the cases of the tests that are marked `planted`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _pytest.mark import ParameterSet

from headwater.testing.torture import Scenario

TESTS = Path(__file__).parents[1]
FOLDERS = {"spark": ("spark", "table")}
"""Folders of tests that are not named as their package."""


@dataclass(frozen=True)
class PlantedBugs:
    """Every seed is the number of a bug; after the last one follows the first."""

    package: str

    @property
    def count(self) -> int:
        return len(_planted(self.package))

    def __call__(self, seed: int) -> None:
        bugs = _planted(self.package)
        bug = bugs[seed % len(bugs)]
        try:
            bug()
        except BaseException as error:
            error.add_note(f"planted by {bug.func.__module__}.{bug.func.__name__}{bug.args}")
            raise


@functools.cache
def _planted(package: str) -> list[functools.partial[None]]:
    """The cases of all planted tests, in the order of their names."""
    return [
        case
        for folder in FOLDERS.get(package, (package,))
        for path in sorted((TESTS / folder).rglob("test_*.py"))
        if "@pytest.mark.planted" in path.read_text(encoding="utf-8")
        for case in _cases(path)
    ]


def _cases(path: Path) -> Iterator[functools.partial[None]]:
    module = importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    for name, test in list(vars(module).items()):
        marks = {mark.name: mark for mark in getattr(test, "pytestmark", ())}
        if not name.startswith("test_") or "planted" not in marks:
            continue
        if "parametrize" not in marks:
            yield functools.partial(test)
            continue
        for value in marks["parametrize"].args[1]:
            arguments = value.values if isinstance(value, ParameterSet) else [value]
            yield functools.partial(test, *arguments)


STORE, BUFFER, COORDINATOR, LOG, TIER, SPARK = map(
    PlantedBugs, ("store", "buffer", "coordinator", "log", "tier", "spark")
)
SCENARIOS = [
    Scenario("store", "planted", STORE, rounds=STORE.count),
    Scenario("buffer", "planted", BUFFER, rounds=BUFFER.count),
    Scenario("coordinator", "planted", COORDINATOR, rounds=COORDINATOR.count),
    Scenario("log", "planted", LOG, rounds=LOG.count),
    Scenario("tier", "planted", TIER, rounds=TIER.count),
    Scenario("spark", "planted", SPARK, rounds=SPARK.count),
]
