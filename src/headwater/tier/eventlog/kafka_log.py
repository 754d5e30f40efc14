"""A log of metadata events in a Kafka topic."""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headwater.core import Secret, runtime
from headwater.core.errors import NotSupported, Refused
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.contract import MetadataEventLog, Subscription

if TYPE_CHECKING:
    from headwater.tier.eventlog.kafka_subscription import TopicReader
    from headwater.tier.eventlog.kafka_topic import KafkaSender, KafkaTopic


TOPIC: Final = "__remote_log_metadata"
REPLICATION_FACTOR: Final = 3


class KafkaEventLog(MetadataEventLog):
    """Events in a topic; the topic's id is the log's. For one event loop."""

    def __init__(
        self,
        topic: KafkaTopic,
        log_id: uuid.UUID,
        partition_count: int,
        sender: KafkaSender,
        new_reader: Callable[[], TopicReader],
    ) -> None:
        super().__init__(log_id, partition_count)
        self._topic = topic
        self._sender = sender
        self._new_reader = new_reader

    @classmethod
    async def open(
        cls,
        servers: str,
        *,
        topic: str = TOPIC,
        partition_count: int | None = None,
        create: bool = False,
        replication_factor: int = REPLICATION_FACTOR,
        log_id: uuid.UUID | None = None,
        settings: Settings | None = None,
    ) -> KafkaEventLog:
        """Find the topic, or create it.

        `servers` are some of the brokers, `host:port,…`. `partition_count` decides which partition
        an event is in; for brokers it is `remote.log.metadata.topic.num.partitions`. The default is
        50, and then the topic must have as many; further partitions of a topic are not used.
        `log_id` is for brokers that give topics no id. `settings` are passed to Kafka's clients
        (`security.protocol`, …); pass passwords as `Secret`.
        """
        _check_can_open()
        settings = dict(settings or {})
        check_settings(settings)
        if partition_count is not None and partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        from confluent_kafka import KafkaException

        from headwater.tier.eventlog.kafka_subscription import TopicReader
        from headwater.tier.eventlog.kafka_topic import (
            KafkaSender,
            KafkaTopic,
            NewTopicSettings,
            error_of,
            find_topic,
        )

        runtime.await_native_threads_at_exit()
        try:
            # All clients know all settings: if one accepts them, the others do as well.
            opened = KafkaTopic(topic, admin_settings(servers, settings))
        except KafkaException as error:
            why = hide_values(error_of(error).str(), settings)
            raise Refused(f"Kafka's client refuses its settings: {why}") from None
        new = NewTopicSettings(partition_count or METADATA_PARTITIONS, replication_factor)
        used_count = await find_topic(opened, partition_count, new if create else None)
        return cls(
            opened,
            log_id or await opened.fetch_id(),
            used_count,
            KafkaSender(topic, partial(producer_settings, servers, settings)),
            lambda: TopicReader(topic, consumer_settings(servers, settings)),
        )

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        self.check_open()
        self.check_partition(partition)
        return await self._sender.publish(partition, payload, publisher_epoch)

    async def _new_subscription(self) -> Subscription:
        from headwater.tier.eventlog.kafka_subscription import KafkaSubscription

        creating = runtime.spawn(runtime.run_blocking(self._new_reader), name="kafka reader")
        try:
            reader = await asyncio.shield(creating)
        except asyncio.CancelledError:
            # The thread goes on and creates a reader, whose connections only `close` ends.
            runtime.spawn(_close_created(creating), name="kafka reader closing")
            raise
        if self._closed:
            await runtime.run_blocking(reader.close)
            self.check_open()
        return KafkaSubscription(self, reader)

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> Mapping[int, int]:
        return await self._topic.end_offsets(self._requested(partitions))

    async def close(self) -> None:
        await super().close()
        await self._sender.close()
        await runtime.run_blocking(self._topic.close)


async def _close_created(creating: asyncio.Task[TopicReader]) -> None:
    await asyncio.wait([creating])
    if not creating.cancelled() and creating.exception() is None:
        await runtime.run_blocking(creating.result().close)


def _check_can_open() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise NotSupported(
            "an event log in Kafka needs its client: pip install 'confluent-kafka>=2.16'"
        )
    if not runtime.current().outside_allowed:
        raise Refused("a simulation has no sockets: use InProcessEventLog")


# Settings of Kafka's clients. Those that the log's promises depend on cannot be changed.

Settings: TypeAlias = Mapping[str, str | int | bool | Secret]

GROUP: Final = "headwater-metadata"
ONLY_CRITICAL: Final = 2
DELIVERY_TIMEOUT_MS: Final = 30_000
RECONNECT_MAX_MS: Final = 1_000
READ_AHEAD_KIB: Final = 16_384

# Every call returns a result or an error, so only critical problems are logged.
_COMMON: Final[dict[str, str | int | bool]] = {
    "client.id": "headwater",
    "log_level": ONLY_CRITICAL,
    "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    "socket.keepalive.enable": True,
}
_PRODUCER: Final[dict[str, str | int | bool]] = {
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    # Each publisher waits for its answer: there is nothing to batch.
    "linger.ms": 0,
}
_PRODUCER_FIXED: Final[dict[str, str | int | bool]] = {
    "acks": "all",
    "enable.idempotence": True,
}
_CONSUMER: Final[dict[str, str | int | bool]] = {
    # A consumer must name a group. It never joins the group and commits nothing.
    "group.id": GROUP,
    "queued.max.messages.kbytes": READ_AHEAD_KIB,
    "fetch.queue.backoff.ms": 10,
}
_CONSUMER_FIXED: Final[dict[str, str | int | bool]] = {
    "allow.auto.create.topics": False,
    # Any other value continues at another offset without an error.
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
_FIXED: Final = {**_PRODUCER_FIXED, **_CONSUMER_FIXED, "bootstrap.servers": ""}


def hide_values(message: str, settings: Settings) -> str:
    """A client's message about its settings without their values, which may be secret."""
    for value in settings.values():
        text = value.reveal() if isinstance(value, Secret) else str(value)
        message = message.replace(text, "…") if text else message
    return message


def check_settings(settings: Settings) -> None:
    fixed = sorted(settings.keys() & _FIXED.keys())
    if fixed:
        raise Refused(f"{', '.join(fixed)} cannot be set: the guarantees of the log depend on it")


def admin_settings(servers: str, settings: Settings) -> dict[str, Any]:
    plain = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in settings.items()
    }
    return {**_COMMON, **plain, "bootstrap.servers": servers}


def producer_settings(
    servers: str, settings: Settings, on_error: Callable[[Any], None]
) -> dict[str, Any]:
    """For the client that sends events; `on_error` gets the errors of its connections."""
    admin = admin_settings(servers, settings)
    return {**_PRODUCER, **admin, **_PRODUCER_FIXED, "error_cb": on_error}


def consumer_settings(servers: str, settings: Settings) -> dict[str, Any]:
    return {**_CONSUMER, **admin_settings(servers, settings), **_CONSUMER_FIXED}
