"""Finding and creating the topic, on brokers whose answers the mock cluster does not know."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from headwater.core import RetryPolicy
from headwater.core.errors import Denied, NotSupported, Refused, Unavailable
from headwater.tier.eventlog import kafka_topic as topic_module
from headwater.tier.eventlog.kafka_topic import KafkaTopic, NewTopicSettings, find_topic

WISH = NewTopicSettings(partition_count=3, replication_factor=3)


def answered(value: object = None, *, error: int | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(KafkaException(KafkaError(error, "what the broker says")))
    return future


@dataclass
class Listed:
    partitions: dict[int, None]


@dataclass
class Listing:
    topics: dict[str, Listed]


@dataclass
class Described:
    topic_id: Uuid


@dataclass
class FakeAdmin:
    """Brokers that know of a topic only a while after it was created."""

    created: list[Any] = field(default_factory=list)
    create_error: int | None = None
    partition_count: int = 0
    hidden_for: int = 0
    topic_id: Uuid = field(default_factory=lambda: Uuid(-1, 2))
    describe_error: int | None = None
    offset: int = 5

    def list_topics(self, *, timeout: float) -> Listing:
        if not self.partition_count:
            return Listing({})
        if self.hidden_for:
            self.hidden_for -= 1
            return Listing({})
        return Listing({"t": Listed(dict.fromkeys(range(self.partition_count)))})

    def create_topics(self, topics: list[Any], *, request_timeout: float) -> dict[str, Future[Any]]:
        self.created += topics
        self.partition_count = self.partition_count or topics[0].num_partitions
        return {"t": answered(error=self.create_error)}

    def describe_topics(
        self, topics: TopicCollection, *, request_timeout: float
    ) -> dict[str, Future[Any]]:
        return {"t": answered(Described(self.topic_id), error=self.describe_error)}

    def list_offsets(
        self, asked: dict[Any, Any], *, request_timeout: float
    ) -> dict[Any, Future[Any]]:
        return {where: answered(type("Told", (), {"offset": self.offset})) for where in asked}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(topic_module, "AdminClient", lambda settings: fake)
    at_once = RetryPolicy(attempts=10, base_s=0.0, cap_s=0.0)
    monkeypatch.setattr(topic_module, "APPEARING", at_once)
    monkeypatch.setattr(topic_module, "MOVING", at_once)
    return fake


def run(scenario: Callable[[KafkaTopic], Any]) -> None:
    async def main() -> None:
        await scenario(KafkaTopic("t", {}))

    asyncio.run(main())


def test_a_topic_is_created_as_it_is_wished_and_awaited_until_it_is_known(
    brokers: FakeAdmin,
) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        brokers.hidden_for = 5
        assert await find_topic(topic, 3, WISH) == 3

    run(scenario)
    new = brokers.created[0]
    assert (new.topic, new.num_partitions, new.replication_factor) == ("t", 3, 3)
    assert new.config["retention.ms"] == "-1"
    assert new.config["min.insync.replicas"] == "2"


def test_somebody_who_creates_it_at_the_same_time_decides_how_it_is(brokers: FakeAdmin) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        brokers.partition_count = 2
        brokers.hidden_for = 1
        brokers.create_error = KafkaError.TOPIC_ALREADY_EXISTS
        with pytest.raises(Refused, match="has 2 partitions, not 3"):
            await find_topic(topic, 3, WISH)

    run(scenario)


def test_a_topic_that_is_there_is_not_created(brokers: FakeAdmin) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        brokers.partition_count = 7
        assert await find_topic(topic, 7, WISH) == 7
        assert await find_topic(topic, 3, WISH) == 3

    run(scenario)
    assert brokers.created == []


def test_without_a_number_a_topic_has_the_default_and_one_that_grew_is_told_of(
    brokers: FakeAdmin,
) -> None:
    """Its streams are where its writers put them by the number that it had."""

    async def scenario(topic: KafkaTopic) -> None:
        brokers.partition_count = 50
        assert await find_topic(topic, None, None) == 50
        brokers.partition_count = 60
        with pytest.raises(Refused, match="has 60 partitions, and 50 are the default"):
            await find_topic(topic, None, None)
        assert await find_topic(topic, 50, None) == 50

    run(scenario)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.INVALID_REPLICATION_FACTOR, Refused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied),
        (KafkaError._TIMED_OUT, Unavailable),
    ],
)
def test_a_topic_that_cannot_be_created_is_told_with_why(
    brokers: FakeAdmin, code: int, kind: type[Exception]
) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        brokers.create_error = code
        with pytest.raises(kind, match="cannot be created"):
            await find_topic(topic, 3, WISH)

    run(scenario)


def test_a_topic_that_never_appears_is_not_waited_for_for_ever(brokers: FakeAdmin) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        brokers.hidden_for = 100
        with pytest.raises(Unavailable, match="does not appear"):
            await find_topic(topic, 3, WISH)

    run(scenario)


def test_the_log_has_the_id_of_its_topic_and_brokers_that_give_none_are_told_of(
    brokers: FakeAdmin,
) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        assert await topic.fetch_id() == uuid.UUID(int=((1 << 64) - 1) << 64 | 2)
        brokers.topic_id = Uuid(0, 0)
        with pytest.raises(NotSupported, match="pass a log_id"):
            await topic.fetch_id()
        brokers.describe_error = KafkaError.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(Denied):
            await topic.fetch_id()

    run(scenario)


def test_a_leader_that_does_not_say_where_it_ends_leaves_it_unknown(brokers: FakeAdmin) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        assert await topic.end_offsets([0, 1]) == {0: 5, 1: 5}
        brokers.offset = -1
        with pytest.raises(Unavailable, match="does not say"):
            await topic.end_offsets([0, 1])

    run(scenario)


def test_a_topic_that_was_let_go_of_answers_nothing(brokers: FakeAdmin) -> None:
    async def scenario(topic: KafkaTopic) -> None:
        topic.close()
        with pytest.raises(Refused, match="closed"):
            await topic.fetch_id()

    run(scenario)
