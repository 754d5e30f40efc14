"""The pump: takes what the log delivers to the partitions that are followed.

A subscription that fails is made again, and each partition goes on from what it has applied; so
does a partition that the log alone gave up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.core.limits import METADATA_TURN_EVENTS
from headwater.tier.eventlog import LogItem, MetadataEventLog, PartitionFailed, Subscription
from headwater.tier.manager.config import ManagerConfig
from headwater.tier.manager.followed import FollowedPartition
from headwater.tier.manager.metrics import ManagerMetrics

_log: Final = logging.getLogger("headwater")


class Pump:
    """One subscription at a time."""

    def __init__(
        self,
        log: MetadataEventLog,
        followed: Mapping[int, FollowedPartition],
        config: ManagerConfig,
        metrics: ManagerMetrics,
    ) -> None:
        self.problem: str | None = None
        """Why there is no subscription at this moment."""
        self._log = log
        self._followed = followed
        self._config = config
        self._metrics = metrics
        self._subscription: Subscription | None = None
        self._failures = 0

    async def run(self) -> None:
        """Pump for ever; raises only what is a bug."""
        while True:
            try:
                await self._pump()
            except HeadwaterError as error:
                self.problem = str(error)
                self._metrics.subscription_failures[type(error).__name__] += 1
                if self._failures == 0:
                    _log.warning("metadata events are subscribed to again: %s", error)
            await runtime.sleep(self._config.pause_s(self._failures))
            self._failures += 1

    def follow(self, followed: FollowedPartition) -> None:
        """Have a partition delivered from what it has applied on; later, if nothing is now."""
        followed.retry_at_s = None
        if self._subscription is None:
            return
        if followed.high_water_mark is not None:
            followed.problem = (
                None  # a log that has nothing to deliver does not say that it is well
            )
        assignment = self._subscription.assignment
        try:
            # Removed first: where it is still assigned, adding it would leave it where it is.
            assignment.remove(followed.partition)
            assignment.add(followed.partition, followed.next_offset)
        except HeadwaterError as error:
            self._retry_later(followed, error)

    def leave(self, partition: int) -> None:
        """Have a partition delivered no longer."""
        if self._subscription is not None:
            self._subscription.assignment.remove(partition)

    async def _pump(self) -> None:
        subscription = await self._subscribe()
        self._subscription = subscription
        self._metrics.subscriptions += 1
        try:
            # Nothing was awaited since: whoever is assigned later is added by `follow`.
            for followed in self._followed.values():
                if followed.is_assigned and not followed.is_stopped:
                    self.follow(followed)
            self.problem = None
            turn = 0
            async for item in subscription.items:
                self._deliver(item)
                self._failures = 0
                turn += 1
                if turn % METADATA_TURN_EVENTS == 0:
                    await runtime.sleep(0)
        finally:
            self._subscription = None
            await subscription.assignment.close()
        raise Unavailable("the log ended the subscription")

    async def _subscribe(self) -> Subscription:
        timeout_s = self._config.call_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._log.subscribe({})
        except TimeoutError:
            raise Unavailable(f"the log made no subscription within {timeout_s:.1f} s") from None

    def _deliver(self, item: LogItem) -> None:
        followed = self._followed[item.partition]
        if not followed.is_assigned or followed.is_stopped:
            return
        if not followed.take(item):
            self.leave(followed.partition)
        elif isinstance(item, PartitionFailed):
            self._retry_later(followed, item.error)

    def _retry_later(self, followed: FollowedPartition, error: HeadwaterError) -> None:
        followed.problem = str(error)
        followed.retry_at_s = runtime.monotonic_s() + self._config.pause_s(followed.failures)
        followed.failures += 1
