"""A world for each test, and a clock that stands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.core import runtime
from tests.spark.source.source_world import Standing, World


@pytest.fixture
def world() -> World:
    """An empty store."""
    return World()


@pytest.fixture
def clock() -> Iterator[Standing]:
    """Time passes only when the test says so."""
    standing = Standing()
    with runtime.installed(standing):
        yield standing
