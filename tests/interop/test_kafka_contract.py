"""The contract of logs of metadata events, and managers over them, on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable

import pytest

from headwater.tier.eventlog import KafkaEventLog, MetadataEventLog
from tests.interop.kafka_broker import KafkaBroker
from tests.tier.eventlog.kafka_logs import REAL_LIMIT_S
from tests.tier.eventlog.makers import EventLogs
from tests.tier.eventlog.test_contract import *  # noqa: F403
from tests.tier.eventlog.test_manager_seed import *  # noqa: F403

pytestmark = pytest.mark.interop

_numbers = itertools.count()


class KafkaLogs(EventLogs):
    """Topics that the log itself creates, with as many partitions as are asked for."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
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
        return await self._open(f"contract-{next(_numbers)}", partition_count)

    async def another(self, log: MetadataEventLog) -> KafkaEventLog:
        return await self._open(self._topics[log.log_id], log.partition_count)

    async def _open(self, topic: str, partition_count: int) -> KafkaEventLog:
        log = await KafkaEventLog.open(
            self._broker.servers,
            topic=topic,
            partition_count=partition_count,
            create=True,
            replication_factor=1,
        )
        self._topics[log.log_id] = topic
        self._opened.append(log)
        return log


@pytest.fixture
def logs(kafka: KafkaBroker) -> KafkaLogs:
    return KafkaLogs(kafka)
