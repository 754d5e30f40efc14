"""Every test of the contract runs on every kind of log."""

from __future__ import annotations

import pytest

from tests.tier.eventlog.makers import EventLogs, InProcessLogs, StoredLogs


@pytest.fixture(params=["in process", "stored"])
def logs(request: pytest.FixtureRequest) -> EventLogs:
    """Makes logs of each kind in turn. One that needs a server asks `request` for its fixture."""
    kinds: dict[str, type[EventLogs]] = {"in process": InProcessLogs, "stored": StoredLogs}
    return kinds[request.param]()
