"""How a subscription joins what its reader brings with what is followed meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from headwater.core import runtime
from headwater.core.errors import Corrupt, HeadwaterError, RolledBack, Unavailable
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    InProcessEventLog,
    PartitionFailed,
    PositionReached,
)
from headwater.tier.eventlog.kafka_subscription import KafkaSubscription, TopicItem, TopicReader

Round = list[TopicItem] | Callable[[], list[TopicItem]] | HeadwaterError


class ScriptedReader:
    """Brings what the test says, round by round, and remembers what it was told."""

    def __init__(self, *rounds: Round) -> None:
        self._rounds = deque(rounds)
        self.told: list[tuple[list[int], dict[int, int]]] = []
        self.interrupted = False
        self.begun = asyncio.Event()
        self.is_closed = False

    def round(self, removed: list[int], added: dict[int, int]) -> list[TopicItem]:
        self.told.append((removed, added))
        brought = self._rounds.popleft()
        if isinstance(brought, HeadwaterError):
            raise brought
        return brought() if callable(brought) else brought

    def interrupt(self, interrupted: bool = True) -> None:
        self.interrupted = interrupted
        if not interrupted:
            self.begun.set()

    def close(self) -> None:
        self.is_closed = True


def following(reader: ScriptedReader, **starts: int) -> KafkaSubscription:
    subscription = KafkaSubscription(InProcessEventLog(2), cast("TopicReader", reader))
    for name, start in starts.items():
        subscription.add(int(name[1:]), start)
    return subscription


def event(partition: int, offset: int) -> EventDelivered:
    return EventDelivered(partition, offset, b"e")


async def take(subscription: KafkaSubscription, count: int) -> list[TopicItem]:
    return [await anext(subscription) for _ in range(count)]


def test_a_position_is_told_where_offsets_hold_no_events() -> None:
    async def main(_: Simulation) -> None:
        after_marker, nothing_below = PositionReached(0, 2), PositionReached(1, 7)
        reader = ScriptedReader(
            [event(0, 0), PositionReached(0, 1)], [after_marker, nothing_below], [event(0, 2)]
        )
        subscription = following(reader, p0=0, p1=0)
        assert await take(subscription, 4) == [
            event(0, 0),
            after_marker,
            nothing_below,
            event(0, 2),
        ]

    simulate(main)


def test_what_a_round_brings_of_a_partition_that_was_removed_meanwhile_is_dropped() -> None:
    async def main(_: Simulation) -> None:
        def remove() -> list[TopicItem]:
            subscription.remove(0)
            return [event(0, 0), event(1, 0)]

        reader = ScriptedReader(remove, [event(1, 1)])
        subscription = following(reader, p0=0, p1=0)
        assert await take(subscription, 2) == [event(1, 0), event(1, 1)]
        assert reader.told == [([], {0: 0, 1: 0}), ([0], {})]

    simulate(main)


def test_what_a_round_brings_of_a_partition_that_was_added_again_meanwhile_is_dropped() -> None:
    async def main(_: Simulation) -> None:
        def add_again() -> list[TopicItem]:
            subscription.remove(0)
            subscription.add(0, 3)
            return [event(0, 5), event(0, 6)]

        reader = ScriptedReader(add_again, [event(0, 3), event(0, 5)])
        subscription = following(reader, p0=5)
        assert await take(subscription, 2) == [event(0, 3), event(0, 5)]
        assert reader.told == [([], {0: 5}), ([0], {0: 3})]

    simulate(main)


def test_a_change_interrupts_the_round_that_is_under_way() -> None:
    async def main(_: Simulation) -> None:
        def change() -> list[TopicItem]:
            before = reader.interrupted
            subscription.add(1, 0)
            assert (before, reader.interrupted) == (False, True)
            return []

        reader = ScriptedReader(change, [event(1, 0)])
        subscription = following(reader, p0=0)
        assert await take(subscription, 1) == [event(1, 0)]

    simulate(main)


def test_an_offset_is_delivered_once_even_if_it_is_brought_twice() -> None:
    async def main(_: Simulation) -> None:
        reader = ScriptedReader([event(0, 0), event(0, 1)], [event(0, 0), event(0, 1), event(0, 2)])
        assert await take(following(reader, p0=0), 3) == [event(0, n) for n in range(3)]

    simulate(main)


def test_nothing_follows_a_partition_that_failed_until_it_is_added_again() -> None:
    async def main(_: Simulation) -> None:
        failed = PartitionFailed(0, RolledBack("gone"))
        reader = ScriptedReader([failed, event(0, 9), event(1, 0)], [event(0, 0)])
        subscription = following(reader, p0=9, p1=0)
        assert await take(subscription, 1) == [failed]
        assert subscription.assigned() == [1]
        subscription.add(0, 0)
        assert await take(subscription, 2) == [event(1, 0), event(0, 0)]
        assert reader.told[1] == ([0], {0: 0})

    simulate(main)


def test_what_cannot_be_read_counts_as_an_offset() -> None:
    async def main(_: Simulation) -> None:
        unreadable = EventUnreadable(0, 4, Corrupt("checksum"))
        reader = ScriptedReader([unreadable, PositionReached(0, 5), event(0, 5)])
        assert await take(following(reader, p0=4), 2) == [unreadable, event(0, 5)]

    simulate(main)


def test_an_error_of_the_reader_is_raised_where_items_are_waited_for() -> None:
    async def main(_: Simulation) -> None:
        subscription = following(ScriptedReader(Unavailable("no client")), p0=0)
        with pytest.raises(Unavailable, match="no client"):
            await anext(subscription)

    simulate(main)


def test_a_subscription_whose_event_loop_ends_keeps_no_thread() -> None:
    async def main(_: Simulation) -> None:
        reader = ScriptedReader()
        subscription = following(reader, p0=0)
        waiting = runtime.spawn(take(subscription, 1), name="waiting")
        await reader.begun.wait()
        assert not reader.interrupted
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert reader.interrupted

    simulate(main)


def test_closing_waits_for_the_round_and_lets_go_of_the_reader_once() -> None:
    async def main(_: Simulation) -> None:
        reader = ScriptedReader([])
        subscription = following(reader, p0=0)
        waiting = runtime.spawn(take(subscription, 1), name="waiting")
        await runtime.sleep(0)
        await asyncio.gather(subscription.close(), subscription.close())
        assert reader.is_closed
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        assert isinstance(
            (await asyncio.gather(waiting, return_exceptions=True))[0], StopAsyncIteration
        )

    simulate(main)


def test_a_subscription_that_is_dropped_gives_its_client_back() -> None:
    async def main(_: Simulation) -> None:
        reader = ScriptedReader([event(0, 0)])
        subscription = following(reader, p0=0)
        assert await take(subscription, 1) == [event(0, 0)]
        del subscription
        await runtime.sleep(0.1)
        assert reader.is_closed

    simulate(main)
