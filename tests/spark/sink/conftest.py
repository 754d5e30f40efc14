"""A world for each test."""

from __future__ import annotations

import pytest

from tests.spark.sink.sink_world import World


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> World:
    """An empty store, and writers to it."""
    return World(monkeypatch)
