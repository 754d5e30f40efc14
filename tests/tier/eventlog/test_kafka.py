"""The log in a topic of Kafka, beyond the contract: brokers that fail, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import uuid
from collections.abc import Awaitable, Callable

import pytest
from confluent_kafka import KafkaError, Producer

from headwater.core import Secret, runtime
from headwater.core.errors import (
    Denied,
    EntriesTrimmed,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import (
    EventDelivered,
    EventUnreadable,
    KafkaEventLog,
    PartitionFailed,
    Subscription,
)
from headwater.tier.eventlog import kafka_topic as sender_module
from headwater.tier.eventlog import kafka_topic as topic_module
from headwater.tier.eventlog.kafka_log import (
    Settings,
    admin_settings,
    consumer_settings,
    hide_values,
    producer_settings,
)
from headwater.tier.eventlog.kafka_subscription import TopicReader
from tests.interop.process import free_port
from tests.tier.eventlog.kafka_logs import REAL_LIMIT_S, MockKafkaLogs
from tests.tier.eventlog.mock_kafka import (
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PARTITIONS,
    PRODUCE,
    MockKafka,
)
from tests.tier.eventlog.test_contract import payloads, take, take_events

SETTINGS = MockKafkaLogs.SETTINGS
LOG_ID = uuid.UUID(int=1)


async def opened(cluster: MockKafka, topic: str | None = None, **settings: int) -> KafkaEventLog:
    return await KafkaEventLog.open(
        cluster.servers,
        topic=topic or cluster.new_topic(),
        partition_count=PARTITIONS,
        log_id=LOG_ID,
        settings={**SETTINGS, **{name.replace("_", "."): n for name, n in settings.items()}},
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(REAL_LIMIT_S):
            await scenario()

    asyncio.run(main())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for brokers that do not answer."""
    monkeypatch.setattr(topic_module, "REQUEST_TIMEOUT_S", 0.3)
    monkeypatch.setattr(topic_module, "MARKS_TIMEOUT_S", 0.3)


# Opening


def test_without_the_client_it_is_said_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    async def scenario() -> None:
        with pytest.raises(NotSupported, match=r"pip install 'confluent-kafka>=2.16'"):
            await KafkaEventLog.open("127.0.0.1:1")

    run(scenario)


def test_a_simulation_has_no_brokers() -> None:
    async def main(_: Simulation) -> None:
        with pytest.raises(Refused, match="simulation"):
            await KafkaEventLog.open("127.0.0.1:1")

    simulate(main)


def test_all_partitions_of_the_topic_are_used_unless_fewer_are_asked_for(
    cluster: MockKafka,
) -> None:
    async def scenario() -> None:
        topic = cluster.new_topic()
        log = await opened(cluster, topic)
        assert log.partition_count == PARTITIONS
        await log.close()
        for count, message in ((PARTITIONS + 1, "has 4 partitions, and 5"), (0, "at least one")):
            with pytest.raises(Refused, match=message):
                await KafkaEventLog.open(
                    cluster.servers, topic=topic, partition_count=count, log_id=LOG_ID
                )

    run(scenario)


def test_a_topic_that_is_not_there_is_not_made_by_asking_for_it(cluster: MockKafka) -> None:
    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(NotFound, match="create=True"):
                await opened(cluster, "never-made")

    run(scenario)


@pytest.mark.usefixtures("hasty")
def test_brokers_that_do_not_answer_are_unavailable() -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable, match="which topics there are"):
            await KafkaEventLog.open(f"127.0.0.1:{free_port()}", log_id=LOG_ID)

    run(scenario)


def test_what_the_promises_rest_on_cannot_be_set_otherwise(cluster: MockKafka) -> None:
    async def scenario() -> None:
        for name in ("acks", "auto.offset.reset", "enable.idempotence", "isolation.level"):
            with pytest.raises(Refused, match=name):
                await KafkaEventLog.open(cluster.servers, settings={name: "1"})

    run(scenario)
    producer = producer_settings("", {}, lambda error: None)
    assert (producer["acks"], producer["enable.idempotence"]) == ("all", True)


def test_settings_that_the_client_does_not_know_are_refused(cluster: MockKafka) -> None:
    async def scenario() -> None:
        for settings in ({"no.such.setting": "1"}, {"fetch.wait.max.ms": "soon"}):
            with pytest.raises(Refused, match="refuses its settings") as refused:
                await KafkaEventLog.open(cluster.servers, settings=settings)
            assert "soon" not in str(refused.value), "it may be a password"

    run(scenario)


def test_a_password_goes_to_the_client_and_nowhere_else() -> None:
    asked: Settings = {"sasl.password": Secret("pass-word"), "fetch.wait.max.ms": 20}
    for settings in (
        admin_settings("", asked),
        producer_settings("", asked, lambda error: None),
        consumer_settings("", asked),
    ):
        assert (settings["sasl.password"], settings["fetch.wait.max.ms"]) == ("pass-word", 20)
    assert hide_values('no value "pass-word" for it', asked) == 'no value "…" for it'


# High-water marks


def test_a_partition_of_which_nothing_is_heard_is_unknown_and_not_empty(
    cluster: MockKafka,
) -> None:
    async def scenario() -> None:
        topic = cluster.new_topic()
        log = await opened(cluster, topic)
        await log.publish(1, b"a")
        cluster.set_leader(topic, 2, -1)
        assert await log.high_water_marks() == {0: 0, 1: 1, 3: 0}
        cluster.set_leader(topic, 2, 1)
        assert await log.high_water_marks() == {0: 0, 1: 1, 2: 0, 3: 0}
        await log.close()

    run(scenario)


def test_a_leader_that_answers_with_an_error_is_asked_again_and_then_it_is_told(
    cluster: MockKafka,
) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        cluster.fail_next(LIST_OFFSETS, KafkaError.NOT_LEADER_FOR_PARTITION)
        assert await log.high_water_marks() == dict.fromkeys(range(PARTITIONS), 0)
        cluster.fail_next(LIST_OFFSETS, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 100)
        with pytest.raises(Denied):
            await log.high_water_marks()
        cluster.fail_no_more(LIST_OFFSETS)
        await log.close()

    run(scenario)


@pytest.mark.usefixtures("hasty")
def test_if_nothing_is_heard_of_any_partition_it_is_said_why(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        with cluster.down(1, 2, 3), pytest.raises(Unavailable):
            await log.high_water_marks()
        await log.close()

    run(scenario)


# Brokers come and go


def test_a_leader_that_moves_is_found_again(cluster: MockKafka) -> None:
    async def scenario() -> None:
        topic = cluster.new_topic()
        log = await opened(cluster, topic)
        subscription = await log.subscribe({0: 0})
        for number in range(6):
            cluster.set_leader(topic, 0, number % 3 + 1)
            assert await log.publish(0, bytes([number])) == number
            assert await take_events(subscription, 1) == [(0, number, bytes([number]))]
            assert (await log.high_water_marks())[0] == number + 1
        await log.close()

    run(scenario)


def test_lost_connections_are_made_again_and_nothing_is_lost_or_repeated(
    cluster: MockKafka,
) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        subscription = await log.subscribe({0: 0, 1: 0})
        assert await log.publish(0, b"before") == 0
        assert await payloads(subscription, 1) == [b"before"]
        with cluster.down(1, 2, 3):
            publishing = runtime.spawn(log.publish(0, b"during"), name="publishing")
            await runtime.sleep(0)
        assert await publishing == 1
        assert await log.publish(1, b"after") == 0
        delivered = await take_events(subscription, 2)
        assert sorted(delivered) == [(0, 1, b"during"), (1, 0, b"after")]
        await log.close()

    run(scenario)


# What a publisher is told


async def connect(log: KafkaEventLog) -> None:
    """Publish something, however slow the machine is."""
    while True:
        with contextlib.suppress(OutcomeUnknown):
            await log.publish(0, b"first")
            return


def test_an_event_that_was_not_acknowledged_in_time_may_have_landed(cluster: MockKafka) -> None:
    async def scenario() -> None:
        topic = cluster.new_topic()
        reader, log = (
            await opened(cluster, topic),
            await opened(cluster, topic, delivery_timeout_ms=1_500),
        )
        await connect(log)
        cluster.delay(3_000)
        with pytest.raises(OutcomeUnknown, match="may have landed"):
            await log.publish(0, b"late")
        cluster.delay(0)
        subscription = await reader.subscribe({0: 0})
        while await payloads(subscription, 1) != [b"late"]:
            pass
        await log.close()
        await reader.close()

    run(scenario)


def test_an_event_that_was_refused_has_not_landed(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        await log.publish(0, b"a")
        with pytest.raises(LimitExceeded):
            await log.publish(0, bytes(2_000_000))
        for epoch in (-1, 1 << 64):
            with pytest.raises(Refused, match="64 bits"):
                await log.publish(0, b"x", publisher_epoch=epoch)
        assert await log.publish(0, b"b") == 1
        cluster.fail_next(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(Denied):
            await log.publish(0, b"x")
        assert (await log.high_water_marks())[0] == 2
        await log.close()

    run(scenario)


def test_more_events_than_can_be_under_way_are_unavailable(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster, queue_buffering_max_messages=1)
        with cluster.down(1, 2, 3):
            first = runtime.spawn(log.publish(0, b"a"), name="publishing")
            await runtime.sleep(0)
            with pytest.raises(Unavailable, match="too many"):
                await log.publish(0, b"b")
        assert await first == 0
        await log.close()

    run(scenario)


def test_a_producer_that_can_send_nothing_any_more_is_closed_and_replaced(
    cluster: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[sender_module._Client] = []
    close = sender_module._Client.close

    async def noted(self: sender_module._Client) -> None:
        await close(self)
        closed.append(self)

    monkeypatch.setattr(sender_module._Client, "close", noted)

    async def scenario() -> None:
        log = await opened(cluster)
        cluster.fail_next(INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(OutcomeUnknown):
            await log.publish(0, b"never sent")
        assert await log.publish(0, b"a") == 0
        await log.close()
        assert len(closed) == 2

    run(scenario)


def test_closing_waits_for_no_answer(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        with cluster.down(1, 2, 3):
            publishing = runtime.spawn(log.publish(0, b"a"), name="publishing")
            await runtime.sleep(0)
            await log.close()
            with pytest.raises(OutcomeUnknown):
                await publishing

    run(scenario)


# What a subscriber is told


async def failed(subscription: Subscription) -> PartitionFailed:
    item = (await take(subscription, 1))[0]
    assert isinstance(item, PartitionFailed), item
    return item


def test_what_was_deleted_is_told_with_where_the_partition_begins(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        large = bytes(900_000)
        for _ in range(8):
            await log.publish(0, large)
        subscription = await log.subscribe({0: 0})
        gone = await failed(subscription)
        assert isinstance(gone.error, EntriesTrimmed)
        floor = gone.error.first_offset
        assert 0 < floor < 8
        assert subscription.assignment.assigned() == []
        subscription.assignment.add(0, floor)
        assert await take_events(subscription, 1) == [(0, floor, large)]
        await log.close()

    run(scenario)


def test_a_record_that_is_no_event_is_told_and_those_after_it_follow(cluster: MockKafka) -> None:
    async def scenario() -> None:
        topic = cluster.new_topic()
        log = await opened(cluster, topic)
        other = Producer({"bootstrap.servers": cluster.servers, "log_level": 0})
        header = "headwater-publisher-epoch"
        other.produce(topic, None, partition=0)
        other.produce(topic, b"short", partition=0, headers=[(header, b"\x01")])
        other.produce(topic, b"twice", partition=0, headers=[(header, bytes(8))] * 2)
        other.produce(topic, b"others", partition=0, headers=[("another", b"1")])
        await runtime.run_blocking(other.flush)
        unreadable = await take(subscription := await log.subscribe({0: 0}), 3)
        for offset, item in enumerate(unreadable):
            assert isinstance(item, EventUnreadable), item
            assert item.offset == offset
        assert await take(subscription, 1) == [EventDelivered(0, 3, b"others")]
        await log.close()

    run(scenario)


def test_a_log_that_is_closed_while_somebody_subscribes_keeps_nothing(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        subscribing = runtime.spawn(log.subscribe({0: 0}), name="subscribing")
        await asyncio.gather(log.close())
        with pytest.raises(Refused, match="closed"):
            await subscribing
        assert len(log._subscriptions) == 0

    run(scenario)


def test_a_subscribe_that_is_cancelled_keeps_no_consumer(cluster: MockKafka) -> None:
    async def scenario() -> None:
        log = await opened(cluster)
        make, closed = log._new_reader, asyncio.Event()
        loop = asyncio.get_running_loop()

        def noted() -> TopicReader:
            reader = make()
            close = reader.close

            def closing() -> None:
                close()
                loop.call_soon_threadsafe(closed.set)

            reader.close = closing  # type: ignore[method-assign]
            return reader

        log._new_reader = noted
        subscribing = runtime.spawn(log.subscribe({0: 0}), name="subscribing")
        await runtime.sleep(0)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        await closed.wait()
        assert len(log._subscriptions) == 0
        await log.close()

    run(scenario)
