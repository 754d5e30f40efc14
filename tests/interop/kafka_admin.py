"""What the tests do to a real broker that Headwater itself never does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headwater.tier.eventlog.kafka_topic import read_id
from tests.interop.kafka_broker import FORMATTER, KafkaBroker

CALL_TIMEOUT_S: Final = 30.0
LOOK_S: Final = 0.05
SILENT: Final = {"log_level": 0}


def admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.servers, **SILENT})


def answers(broker: KafkaBroker) -> bool:
    """Whether clients can work with it."""
    try:
        return bool(admin(broker).list_topics(timeout=1.0).brokers)
    except KafkaException:
        return False


def create_topic(
    broker: KafkaBroker, name: str, partitions: int, config: Mapping[str, str]
) -> None:
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config))
    client = admin(broker)
    _wait(client, client.create_topics([new]))


def topic_id(broker: KafkaBroker, name: str) -> uuid.UUID:
    client = admin(broker)
    return read_id(_wait(client, client.describe_topics(TopicCollection([name])))[0].topic_id)


def delete_topic(broker: KafkaBroker, name: str) -> None:
    client = admin(broker)
    _wait(client, client.delete_topics([name]))
    while name in client.list_topics(timeout=CALL_TIMEOUT_S).topics:
        time.sleep(LOOK_S)


def configure_topic(broker: KafkaBroker, name: str, **config: str) -> None:
    entries = [
        ConfigEntry(setting.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    client = admin(broker)
    _wait(client, client.incremental_alter_configs([resource]))


def topic_config(broker: KafkaBroker, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    client = admin(broker)
    described = _wait(client, client.describe_configs([resource]))[0]
    return {setting: entry.value for setting, entry in described.items()}


def delete_records(broker: KafkaBroker, name: str, partition: int, below: int) -> None:
    client = admin(broker)
    _wait(client, client.delete_records([TopicPartition(name, partition, below)]))


def produce(
    broker: KafkaBroker, name: str, records: Mapping[int, list[bytes]], **settings: Any
) -> None:
    """Records into partitions, all of them or an error."""
    producer = Producer({"bootstrap.servers": broker.servers, **SILENT, **settings})
    for partition, values in records.items():
        for value in values:
            producer.produce(name, value, partition=partition)
    assert producer.flush(CALL_TIMEOUT_S) == 0


def formatted(broker: KafkaBroker, name: str, count: int) -> list[str]:
    """So many events of a topic as Kafka's own formatter prints them."""
    printed = broker.tools.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.servers, "--topic", name, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "30000", "--formatter", FORMATTER),
        *("--formatter-property", "print.partition=true"),
    )
    return printed.splitlines()


def _wait(client: AdminClient, asked: Mapping[Any, Any]) -> list[Any]:
    """The answers. Nobody answers once the client is gone, which is why it is named here."""
    assert client is not None
    return [future.result(CALL_TIMEOUT_S) for future in asked.values()]
