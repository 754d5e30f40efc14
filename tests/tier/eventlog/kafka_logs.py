"""Logs in topics of librdkafka's mock cluster, for the contract suite."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.tier.eventlog import KafkaEventLog, MetadataEventLog
from tests.tier.eventlog.makers import EventLogs
from tests.tier.eventlog.mock_kafka import MockKafka

REAL_LIMIT_S: Final = 180.0
"""Far more than anything takes: it ends what would never end."""


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
