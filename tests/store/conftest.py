"""Stores to test on: memory, a directory, and a real S3-protocol server, started once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.store import Store, open_store
from tests.interop.servers import GOOD, Server

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
