"""Delivers the events of a log to the metadata partitions that a manager follows.

`EventPump` has one subscription at a time. It subscribes again after a failure, and each partition
continues after the last event that it applied. It also asks the log how far it goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import LogItem, MetadataEventLog, PartitionFailed, Subscription
from headwater.tier.manager.following import FollowedPartition, ManagerConfig, ManagerMetrics

_log: Final = logging.getLogger("headwater")


class EventPump:
    """Delivers items to partitions, by one subscription at a time."""

    def __init__(
        self,
        log: MetadataEventLog,
        followed: Mapping[int, FollowedPartition],
        config: ManagerConfig,
        metrics: ManagerMetrics,
    ) -> None:
        self.problem: str | None = None
        """Why there is no subscription now."""
        self._log = log
        self._followed = followed
        self._config = config
        self._metrics = metrics
        self._subscription: Subscription | None = None
        self._failures = 0

    async def run(self) -> None:
        """Run until cancelled; raises only bugs."""
        while True:
            try:
                await self._pump()
            except HeadwaterError as error:
                self.problem = str(error)
                self._metrics.subscription_failures[type(error).__name__] += 1
                if self._failures == 0:
                    _log.warning("subscribing to metadata events again: %s", error)
            await runtime.sleep(self._config.pause_s(self._failures))
            self._failures += 1

    def follow(self, followed: FollowedPartition) -> None:
        """Deliver a partition after its last applied event, now or by the next subscription."""
        followed.retry_at_s = None
        if self._subscription is None:
            return
        if followed.high_water_mark is not None:
            # If the log has nothing to deliver, no item will clear the problem.
            followed.problem = None
        try:
            # Removed first: adding an assigned partition would not change its position.
            self._subscription.remove(followed.partition)
            self._subscription.add(followed.partition, followed.next_offset)
        except HeadwaterError as error:
            self._retry_later(followed, error)

    def leave(self, partition: int) -> None:
        if self._subscription is not None:
            self._subscription.remove(partition)

    async def query_missing_marks(self) -> bool:
        """Query the high-water marks that are not known yet; returns whether all are known now."""
        queried = {
            one: (one.assignments, one.next_offset)
            for one in self._followed.values()
            if one.is_assigned and one.high_water_mark is None and one.stopped is None
        }
        if not queried:
            return True
        try:
            partitions = [followed.partition for followed in queried]
            marks = await self._high_water_marks(partitions, self._config.call_timeout_s)
        except HeadwaterError as error:
            self._metrics.high_water_mark_failures += 1
            for followed in queried:
                followed.problem = str(error)
            return False
        for followed, (assignments, since_offset) in queried.items():
            mark = marks.get(followed.partition)
            if mark is None:
                self._metrics.high_water_mark_failures += 1
                followed.problem = "the log does not say how far it goes"
            elif followed.is_assigned and followed.assignments == assignments:
                self._set_high_water_mark(followed, mark, since_offset)
        return all(followed.partition in marks for followed in queried)

    async def query_mark(self, followed: FollowedPartition, timeout_s: float) -> int:
        """How far the log goes in a partition now; `NotReady` if it does not say."""
        assignments, since_offset = followed.assignments, followed.next_offset
        try:
            # Only this partition: another one that does not answer must not delay it.
            partitions, call_timeout_s = [followed.partition], self._config.call_timeout_s
            marks = await self._high_water_marks(partitions, min(timeout_s, call_timeout_s))
            mark = marks[followed.partition]
        except (HeadwaterError, KeyError) as error:
            self._metrics.high_water_mark_failures += 1
            raise NotReady(
                f"the log does not say how far metadata partition {followed.partition} goes: "
                f"{error}. Try again",
                partition=followed.partition,
            ) from error
        if followed.is_assigned and followed.assignments == assignments:
            self._set_high_water_mark(followed, mark, since_offset)
        return mark

    def _set_high_water_mark(
        self, followed: FollowedPartition, mark: int, since_offset: int
    ) -> None:
        followed.set_high_water_mark(mark, since_offset)
        if followed.stopped is not None:
            self.leave(followed.partition)

    async def _high_water_marks(self, partitions: list[int], timeout_s: float) -> dict[int, int]:
        try:
            async with asyncio.timeout(timeout_s):
                return dict(await self._log.high_water_marks(partitions))
        except TimeoutError:
            raise Unavailable(f"no answer within {timeout_s:.1f} s") from None

    async def _pump(self) -> None:
        subscription = await self._subscribe()
        self._subscription = subscription
        self._metrics.subscriptions += 1
        try:
            # There was no await since: partitions that are assigned later are added by `follow`.
            for followed in self._followed.values():
                if followed.is_assigned and followed.stopped is None:
                    self.follow(followed)
            self.problem = None
            turn = 0
            async for item in subscription:
                self._deliver(item)
                self._failures = 0
                turn += 1
                if turn % limits.METADATA_TURN_EVENTS == 0:
                    await runtime.sleep(0)
        finally:
            self._subscription = None
            await subscription.close()
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
        if not followed.is_assigned or followed.stopped is not None:
            return
        if not followed.apply_item(item):
            self.leave(followed.partition)
        elif isinstance(item, PartitionFailed):
            self._retry_later(followed, item.error)

    def _retry_later(self, followed: FollowedPartition, error: HeadwaterError) -> None:
        followed.problem = str(error)
        followed.retry_at_s = runtime.monotonic_s() + self._config.pause_s(followed.failures)
        followed.failures += 1
