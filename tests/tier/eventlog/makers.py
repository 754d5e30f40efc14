"""The implementations of a log of metadata events, for the contract suite.

One more implementation is one more class here and one more name in `conftest.py`.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, cast

from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import InProcessEventLog, KafkaEventLog, MetadataEventLog
from tests.tier.eventlog.mock_kafka import MockKafka

REAL_LIMIT_S: Final = 180.0
"""Far more than anything takes: it ends what would never end."""


class EventLogs(ABC):
    """Makes logs of one kind, and runs what is tried on them."""

    @abstractmethod
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario to its end: in virtual time, or, where real servers are, with a limit."""

    @abstractmethod
    async def fresh(self, partition_count: int) -> MetadataEventLog:
        """A log in which nothing was ever published. At most four partitions are asked for."""

    @abstractmethod
    async def another(self, log: MetadataEventLog) -> MetadataEventLog:
        """The same log as another process has it, where there can be one."""


class InProcessLogs(EventLogs):
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main(_: Simulation) -> None:
            await scenario()

        simulate(main)

    async def fresh(self, partition_count: int) -> MetadataEventLog:
        return InProcessEventLog(partition_count)

    async def another(self, log: MetadataEventLog) -> MetadataEventLog:
        return log


class MockKafkaLogs(EventLogs):
    """Topics of librdkafka's mock cluster, each with more partitions than are asked for."""

    # The brokers answer only when their wait is over, also if something came.
    SETTINGS: Final = {"fetch.wait.max.ms": 20}

    def __init__(self, cluster: MockKafka) -> None:
        self._cluster = cluster
        self._topics: dict[uuid.UUID, str] = {}
        self._opened: list[KafkaEventLog] = []

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(REAL_LIMIT_S):
                await scenario()
            for log in self._opened:
                await log.close()

        asyncio.run(main())

    async def fresh(self, partition_count: int) -> KafkaEventLog:
        log_id = uuid.uuid4()
        self._topics[log_id] = self._cluster.new_topic()
        return await self._open(log_id, partition_count)

    async def another(self, log: MetadataEventLog) -> KafkaEventLog:
        return await self._open(log.log_id, log.partition_count)

    async def _open(self, log_id: uuid.UUID, partition_count: int) -> KafkaEventLog:
        log = await KafkaEventLog.open(
            self._cluster.servers,
            topic=self._topics[log_id],
            partition_count=partition_count,
            log_id=log_id,
            settings=self.SETTINGS,
        )
        self._opened.append(log)
        return log


def contract(test: Callable[[EventLogs], Awaitable[None]]) -> Callable[[EventLogs], None]:
    """A test of the contract, run as each kind of log wants it."""

    @functools.wraps(test)
    def run(logs: EventLogs) -> None:
        logs.run(lambda: test(logs))

    # pytest would take the coroutine function for the test.
    del cast("functools._Wrapped[..., None, ..., None]", run).__wrapped__
    return run
