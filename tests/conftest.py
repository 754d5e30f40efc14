"""Hypothesis profiles, stores to test on, and a closing table of the time each package took.

The stores are memory, a directory, and a real S3-protocol server, started once.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from headwater.store import Store, open_store
from tests.interop.servers import GOOD, Server

# No deadline: how long an example takes says more about the machine than about the code. In CI the
# examples are the same on every run, so that a red build is red again when it is looked at.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

BUDGETS_MINUTES = {
    "ground": 3,
    "buffer": 3,
    "spark": 5,
    "coordinator": 1,
    "log": 2,
    "tier": 2,
    "node": 2,
}
"""What `make test` may spend on each package: nine minutes in each of two processes."""
TOTAL_MINUTES = 18

PACKAGES = {
    "core": "ground",
    "store": "ground",
    "testing": "ground",
    "cli": "ground",
    "golden": "ground",
    "project": "ground",
    "table": "spark",
}
"""Folders whose time is booked under another name than their own."""

PLANTED_EVERY = 3
"""Of the bugs that a file plants, `make test` takes every third; `make torture` takes all."""

REPOSITORY = Path(__file__).parents[1]

_spent_s: defaultdict[str, float] = defaultdict(float)
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Not skipped where it cannot be had: it is among the requirements of every test run."""
    recipe = next(recipe for recipe in GOOD if recipe.name == "ministack")
    with recipe.start(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture
def fresh_s3_url(ministack: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Makes addresses nobody has used, with the environment that reaches them."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ministack.env.items():
        monkeypatch.setenv(name, value)
    return lambda: f"{ministack.url}fresh-{next(_numbers)}"


@pytest.fixture(params=["memory", "local", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind in turn."""
    if request.param == "memory":
        return open_store("memory://")
    if request.param == "local":
        return open_store(f"file://{tmp_path}/store")
    make_url: Callable[[], str] = request.getfixturevalue("fresh_s3_url")
    return open_store(make_url())


class Sharing(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out single tests, so that the processes end together, and those of Spark as one.

    The process that has them has the only session. They are handed out first, as the largest part.
    xdist's own groups of tests do nothing with pytest 9.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if _takes_the_session(nodeid.split("::")[0]) else nodeid


@functools.cache
def _takes_the_session(path: str) -> bool:
    return "spark: SparkSession" in (REPOSITORY / path).read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    return Sharing(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    planted: defaultdict[Path, Iterator[int]] = defaultdict(itertools.count)
    for item in items:
        if item.get_closest_marker("planted"):
            item.add_marker("no_cover")
            if next(planted[item.path]) % PLANTED_EVERY:
                item.add_marker("torture")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts = report.nodeid.split("::")[0].split("/")
    folder = parts[1] if parts[0] == "tests" and len(parts) > 2 else "project"
    _spent_s[PACKAGES.get(folder, folder)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # The table informs and never fails: a slow machine is not a broken change.
    if not _spent_s:
        return
    terminalreporter.section("time by package")
    for line in _table(dict(_spent_s)):
        terminalreporter.write_line(line)


def _table(spent_s: dict[str, float]) -> Iterator[str]:
    order = [*BUDGETS_MINUTES, *sorted(spent_s.keys() - BUDGETS_MINUTES.keys())]
    for package in order:
        if package in spent_s:
            yield _row(package, spent_s[package], BUDGETS_MINUTES.get(package))
    yield _row("total", sum(spent_s.values()), TOTAL_MINUTES)


def _row(package: str, spent_s: float, budget_minutes: int | None) -> str:
    row = f"{package:<12} {spent_s / 60:6.2f} min"
    if budget_minutes is None:
        return f"{row}  (no budget)"
    return f"{row} of {budget_minutes:2d}{'  over budget' if spent_s > budget_minutes * 60 else ''}"
