"""The implementations of a log of metadata events, for the contract suite.

One more implementation is one more class here and one more name in `conftest.py`.
"""

from __future__ import annotations

import functools
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import cast

from headwater.store import Backend, MemoryBackend, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from headwater.tier.eventlog import InProcessEventLog, MetadataEventLog, StoredEventLog


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


class StoredLogs(EventLogs):
    """On a store that answers after a while, so that others get between request and answer."""

    def __init__(self) -> None:
        self._backends: dict[uuid.UUID, Backend] = {}

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main(_: Simulation) -> None:
            await scenario()

        simulate(main)

    async def fresh(self, partition_count: int) -> MetadataEventLog:
        backend = FaultyStore(MemoryBackend(), Faults(), random.Random(7), latency_s=0.01)
        log = await StoredEventLog.open(Store(backend), partition_count=partition_count)
        self._backends[log.log_id] = backend
        return log

    async def another(self, log: MetadataEventLog) -> MetadataEventLog:
        store = Store(self._backends[log.log_id])
        return await StoredEventLog.open(store, partition_count=log.partition_count)


def contract(test: Callable[[EventLogs], Awaitable[None]]) -> Callable[[EventLogs], None]:
    """A test of the contract, run as each kind of log wants it."""

    @functools.wraps(test)
    def run(logs: EventLogs) -> None:
        logs.run(lambda: test(logs))

    # pytest would take the coroutine function for the test.
    del cast("functools._Wrapped[..., None, ..., None]", run).__wrapped__
    return run
