"""Every test of the contract runs on every kind of log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tier.eventlog.kafka_logs import MockKafkaLogs
from tests.tier.eventlog.makers import EventLogs, InProcessLogs, StoredLogs
from tests.tier.eventlog.mock_kafka import MockKafka, mock_kafka


@pytest.fixture(scope="session")
def cluster() -> Iterator[MockKafka]:
    with mock_kafka() as running:
        yield running


@pytest.fixture(params=["in process", "stored", "kafka"])
def logs(request: pytest.FixtureRequest) -> EventLogs:
    """Makes logs of each kind in turn. One that needs a server asks `request` for its fixture."""
    if request.param == "kafka":
        return MockKafkaLogs(request.getfixturevalue("cluster"))
    kinds: dict[str, type[EventLogs]] = {"in process": InProcessLogs, "stored": StoredLogs}
    return kinds[request.param]()
