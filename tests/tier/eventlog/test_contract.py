"""What every log of metadata events promises, whichever it is."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack
from headwater.tier.eventlog import (
    EventDelivered,
    LogItem,
    MetadataEventLog,
    PartitionFailed,
    PositionReached,
    Subscription,
)
from tests.tier.eventlog.makers import EventLogs, contract

LAG = 5_000
"""More events than any implementation keeps ready for a subscriber."""


async def publish_all(log: MetadataEventLog, partition: int, *payloads: bytes) -> list[int]:
    return [await log.publish(partition, payload) for payload in payloads]


async def take(subscription: Subscription, count: int) -> list[LogItem]:
    """The next items; positions are left out, since a log without holes need not tell them."""
    taken: list[LogItem] = []
    while len(taken) < count:
        item = await anext(subscription)
        if not isinstance(item, PositionReached):
            taken.append(item)
    return taken


async def take_events(subscription: Subscription, count: int) -> list[tuple[int, int, bytes]]:
    events = []
    for item in await take(subscription, count):
        assert isinstance(item, EventDelivered), item
        events.append((item.partition, item.offset, item.payload))
    return events


def held_by(log: MetadataEventLog) -> int:
    """How many subscriptions a log still holds."""
    return len(log._subscriptions)


def following_tasks() -> int:
    """How many tasks fetch for subscriptions."""
    return sum("follow metadata" in task.get_name() for task in asyncio.all_tasks())


async def payloads(subscription: Subscription, count: int) -> list[bytes]:
    return [payload for _, _, payload in await take_events(subscription, count)]


# The seed's tests, by their names


@contract
async def test_publish_assigns_monotonic_offsets(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    assert await log.publish(0, b"a") == 0
    assert await log.publish(0, b"b") == 1
    assert await log.publish(1, b"c") == 0
    assert await log.high_water_marks() == {0: 2, 1: 1}
    await log.close()


@contract
async def test_subscribe_replays_history_then_forwards_new_writes(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    await publish_all(log, 0, b"a", b"b")
    subscription = await log.subscribe({0: 0})
    assert await payloads(subscription, 2) == [b"a", b"b"]
    await log.publish(0, b"c")
    assert await take_events(subscription, 1) == [(0, 2, b"c")]
    await log.close()


@contract
async def test_subscribe_attached_after_history_still_sees_history(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    published = [bytes([number]) for number in range(5)]
    await publish_all(log, 0, *published)
    subscription = await log.subscribe({0: 0})
    assert await take_events(subscription, 5) == [(0, n, published[n]) for n in range(5)]
    await log.close()


@contract
async def test_publish_out_of_range_is_rejected(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    for partition in (5, 2, -1):
        with pytest.raises(Refused, match="no metadata partition"):
            await log.publish(partition, b"x")
    assert await log.high_water_marks() == {0: 0, 1: 0}
    await log.close()


@contract
async def test_two_subscribers_see_the_same_history(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    await log.publish(0, b"a")
    first, second = await log.subscribe({0: 0}), await log.subscribe({0: 0})
    await log.publish(0, b"b")
    assert await payloads(first, 2) == [b"a", b"b"]
    assert await payloads(second, 2) == [b"a", b"b"]
    await log.close()


@contract
async def test_subscribe_delivers_only_assigned_partitions_from_start_offset(
    logs: EventLogs,
) -> None:
    log = await logs.fresh(3)
    await publish_all(log, 0, b"a", b"b", b"c")
    await publish_all(log, 1, b"x", b"y")
    await publish_all(log, 2, b"z")
    subscription = await log.subscribe({0: 1, 1: 0})
    delivered = await take_events(subscription, 4)
    assert [event for event in delivered if event[0] == 0] == [(0, 1, b"b"), (0, 2, b"c")]
    assert [event for event in delivered if event[0] == 1] == [(1, 0, b"x"), (1, 1, b"y")]
    await publish_all(log, 2, b"not followed")
    await publish_all(log, 1, b"last")
    assert await take_events(subscription, 1) == [(1, 2, b"last")]
    await log.close()


@contract
async def test_live_appends_only_for_assigned_partitions(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    subscription = await log.subscribe({0: 0})
    await log.publish(1, b"skip")
    await log.publish(0, b"keep")
    assert await take_events(subscription, 1) == [(0, 0, b"keep")]
    await log.close()


@contract
async def test_add_mid_stream_delivers_backlog_then_live(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    await publish_all(log, 1, b"old0", b"old1", b"old2")
    subscription = await log.subscribe({0: 0})
    subscription.add(1, 0)
    await log.publish(1, b"new")
    assert await take_events(subscription, 4) == [
        (1, 0, b"old0"),
        (1, 1, b"old1"),
        (1, 2, b"old2"),
        (1, 3, b"new"),
    ]
    assert subscription.assigned() == [0, 1]
    await log.close()


@contract
async def test_dropping_handle_evicts_subscription_state(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    kept, dropped = await log.subscribe({0: 0}), await log.subscribe({0: 0})
    await log.publish(0, b"a")
    assert await payloads(kept, 1) == await payloads(dropped, 1) == [b"a"]
    assert held_by(log) == 2
    del dropped
    assert held_by(log) == 1, "a subscription that nobody holds is held by its log"
    await runtime.sleep(0.01)
    assert following_tasks() <= 1, "and so is its task"
    await log.publish(0, b"b")
    assert await payloads(kept, 1) == [b"b"]
    await log.close()
    assert held_by(log) == 0


@contract
async def test_closing_a_handle_evicts_subscription_state(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    kept, closed = await log.subscribe({0: 0}), await log.subscribe({0: 0})
    await closed.close()
    assert held_by(log) == 1
    await log.publish(0, b"a")
    assert await payloads(kept, 1) == [b"a"]
    await log.close()
    assert held_by(log) == 0


@contract
async def test_remove_stops_delivery(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    subscription = await log.subscribe({0: 0, 1: 0})
    subscription.remove(1)
    assert subscription.assigned() == [0]
    await log.publish(1, b"gone")
    await log.publish(0, b"here")
    assert await take_events(subscription, 1) == [(0, 0, b"here")]
    await log.close()


# Nothing is lost, repeated or reordered


@contract
async def test_a_subscriber_that_lags_is_given_all_it_has_missed(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    subscription = await log.subscribe({0: 0, 1: 0})
    await log.publish(0, b"first")
    assert await payloads(subscription, 1) == [b"first"]
    published = [str(number).encode() for number in range(LAG)]
    await asyncio.gather(publish_all(log, 0, *published), publish_all(log, 1, b"beside"))
    delivered = await take_events(subscription, LAG + 1)
    of_first = [(offset, payload) for partition, offset, payload in delivered if partition == 0]
    assert of_first == [(number + 1, payload) for number, payload in enumerate(published)]
    assert (1, 0, b"beside") in delivered
    await log.close()


@contract
async def test_backlog_and_live_events_meet_without_gap_or_duplicate(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    writer = await logs.another(log)

    async def publish_slowly() -> None:
        for number in range(60):
            await writer.publish(number % 2, str(number).encode())
            await runtime.sleep(0.001)

    async def follow_from(moment: int) -> list[tuple[int, int, bytes]]:
        await runtime.sleep(0.012 * moment)
        subscription = await log.subscribe({0: 0})
        begun = await take_events(subscription, moment % 2)
        subscription.add(1, 0)
        return begun + await take_events(subscription, 60 - len(begun))

    publishing = runtime.spawn(publish_slowly(), name="publisher")
    for delivered in await asyncio.gather(*map(follow_from, range(6))):
        for partition in (0, 1):
            of_partition = [event for event in delivered if event[0] == partition]
            assert of_partition == [
                (partition, number, str(2 * number + partition).encode()) for number in range(30)
            ]
    await publishing
    await log.close()


@contract
async def test_every_subscriber_sees_the_offset_that_the_publisher_was_told(
    logs: EventLogs,
) -> None:
    log = await logs.fresh(1)
    one, other = log, await logs.another(log)
    subscription = await log.subscribe({0: 0})

    async def publish_some(writer: MetadataEventLog, name: str) -> dict[bytes, int]:
        return {
            (payload := f"{name}{number}".encode()): await writer.publish(0, payload)
            for number in range(20)
        }

    told = await asyncio.gather(publish_some(one, "one"), publish_some(other, "other"))
    delivered = await take_events(subscription, 40)
    assert {payload: offset for _, offset, payload in delivered} == told[0] | told[1]
    offsets = [offset for _, offset, _ in delivered]
    assert offsets == sorted(set(offsets))
    for mine in told:
        assert list(mine.values()) == sorted(mine.values()), "in the order of publishing"
    assert (await other.high_water_marks())[0] == offsets[-1] + 1
    await log.close()


@contract
async def test_a_partition_added_again_begins_where_it_is_told_to(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    await publish_all(log, 0, b"a", b"b", b"c", b"d")
    subscription = await log.subscribe({0: 0})
    assert await payloads(subscription, 1) == [b"a"]
    subscription.remove(0)
    subscription.add(0, 2)
    assert await take_events(subscription, 2) == [(0, 2, b"c"), (0, 3, b"d")]
    subscription.remove(0)
    subscription.add(0, 0)
    assert await payloads(subscription, 4) == [b"a", b"b", b"c", b"d"]
    await log.close()


@contract
async def test_what_was_fetched_of_a_partition_is_not_delivered_once_it_is_removed(
    logs: EventLogs,
) -> None:
    log = await logs.fresh(2)
    await publish_all(log, 0, b"a", b"b", b"c")
    subscription = await log.subscribe({0: 0, 1: 0})
    assert await payloads(subscription, 1) == [b"a"]
    subscription.remove(0)
    await log.publish(1, b"other")
    assert await take_events(subscription, 1) == [(1, 0, b"other")]
    await log.close()


@contract
async def test_adding_what_is_followed_and_removing_what_is_not_change_nothing(
    logs: EventLogs,
) -> None:
    log = await logs.fresh(2)
    await publish_all(log, 0, b"a", b"b")
    subscription = await log.subscribe({0: 0})
    assert await payloads(subscription, 1) == [b"a"]
    subscription.add(0, 0)
    subscription.remove(1)
    assert await take_events(subscription, 1) == [(0, 1, b"b")]
    assert subscription.assigned() == [0]
    await log.close()


@contract
async def test_giving_up_waiting_for_an_item_loses_none(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    subscription = await log.subscribe({0: 0})
    for number in range(20):
        waiting = runtime.spawn(take_events(subscription, 1), name="waiting")
        await runtime.sleep(0.001)
        publishing = runtime.spawn(log.publish(0, bytes([number])), name="publishing")
        waiting.cancel()
        delivered = await asyncio.gather(waiting, return_exceptions=True)
        await publishing
        if isinstance(delivered[0], asyncio.CancelledError):
            assert await take_events(subscription, 1) == [(0, number, bytes([number]))]
    await log.close()


# What travels


@contract
async def test_the_publishers_epoch_travels_beside_the_event(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    reader = await logs.another(log)
    await log.publish(0, b"with", publisher_epoch=7)
    await log.publish(0, b"without")
    await log.publish(0, b"largest", publisher_epoch=(1 << 64) - 1)
    subscription = await reader.subscribe({0: 0})
    assert await take(subscription, 3) == [
        EventDelivered(0, 0, b"with", 7),
        EventDelivered(0, 1, b"without", None),
        EventDelivered(0, 2, b"largest", (1 << 64) - 1),
    ]
    await log.close()


@contract
async def test_bytes_that_are_no_event_are_delivered_as_they_are(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    odd = [b"", b"\x00", bytes(range(256)), b"x" * 100_000]
    await publish_all(log, 0, *odd)
    assert await payloads(await log.subscribe({0: 0}), 4) == odd
    await log.close()


@contract
async def test_a_log_is_known_by_its_id_and_another_one_has_another(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    same, other = await logs.another(log), await logs.fresh(2)
    assert (same.log_id, same.partition_count) == (log.log_id, 2)
    assert other.log_id != log.log_id
    await log.close()
    await other.close()


# The ends of a log and of a subscription


@contract
async def test_following_from_the_end_delivers_what_comes(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    await publish_all(log, 0, b"a", b"b")
    subscription = await log.subscribe({0: 2})
    await log.publish(0, b"c")
    assert await take_events(subscription, 1) == [(0, 2, b"c")]
    await log.close()


@contract
async def test_a_log_that_ends_before_the_start_offset_is_told_to_be_another_one(
    logs: EventLogs,
) -> None:
    log = await logs.fresh(2)
    await publish_all(log, 0, b"a", b"b")
    subscription = await log.subscribe({0: 3, 1: 0})
    failed = (await take(subscription, 1))[0]
    assert isinstance(failed, PartitionFailed), failed
    assert failed.partition == 0
    assert isinstance(failed.error, RolledBack)
    assert subscription.assigned() == [1], "it may be added again"
    subscription.add(0, 1)
    assert await take_events(subscription, 1) == [(0, 1, b"b")]
    await log.close()


@contract
async def test_the_items_end_when_the_subscription_is_closed(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    subscription = await log.subscribe({0: 0})

    await log.publish(0, b"a")
    assert await payloads(subscription, 1) == [b"a"]

    async def follow() -> list[LogItem]:
        return [item async for item in subscription]

    following = runtime.spawn(follow(), name="following")
    await runtime.sleep(0.01)
    await subscription.close()
    assert not any(isinstance(item, EventDelivered) for item in await following)
    assert subscription.assigned() == []
    await subscription.close()
    await log.close()


@contract
async def test_a_partition_that_is_not_there_cannot_be_followed(logs: EventLogs) -> None:
    log = await logs.fresh(2)
    with pytest.raises(Refused, match="no metadata partition 2"):
        await log.subscribe({2: 0})
    assert held_by(log) == 0
    subscription = await log.subscribe({})
    for partition, start_offset in ((2, 0), (-1, 0), (0, -1)):
        with pytest.raises(Refused):
            subscription.add(partition, start_offset)
    assert subscription.assigned() == []
    await log.close()


@contract
async def test_a_closed_log_ends_its_subscriptions_and_refuses_the_rest(logs: EventLogs) -> None:
    log = await logs.fresh(1)
    subscription = await log.subscribe({0: 0})
    await log.close()
    assert [item async for item in subscription] == []
    for asking in (log.publish(0, b"x"), log.subscribe({0: 0}), log.high_water_marks()):
        with pytest.raises(Refused, match="closed"):
            await asking
    with pytest.raises(Refused):
        subscription.add(0, 0)
    await log.close()


@contract
async def test_marks_are_asked_of_the_partitions_that_are_named(logs: EventLogs) -> None:
    log = await logs.fresh(3)
    await publish_all(log, 1, b"a", b"b")
    assert await log.high_water_marks([1]) == {1: 2}
    assert await log.high_water_marks(iter((2, 1))) == {1: 2, 2: 0}
    assert await log.high_water_marks([]) == {}
    with pytest.raises(Refused, match="no metadata partition 3"):
        await log.high_water_marks([3])
    await log.close()
