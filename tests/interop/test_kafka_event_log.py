"""The log of metadata events on a real broker: what the mock cluster cannot do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from headwater.core import runtime
from headwater.core.errors import EntriesTrimmed, NotFound, OutcomeUnknown, Refused, RolledBack
from headwater.tier import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentState,
    encode_event,
)
from headwater.tier.eventlog import (
    EventDelivered,
    KafkaEventLog,
    LogItem,
    PartitionFailed,
    PositionReached,
    Subscription,
)
from headwater.tier.events import stamp
from tests.interop.kafka_admin import (
    answers,
    delete_records,
    delete_topic,
    formatted,
    topic_config,
)
from tests.interop.kafka_broker import KafkaBroker
from tests.tier.eventlog.test_contract import payloads, take, take_events
from tests.tier.given import became, finished, partition_delete, started

pytestmark = pytest.mark.interop

READER: Final = Path(__file__).parent / "kafka" / "ReadEvents.java"
LIMIT_S: Final = 180.0
PUBLISHED: Final = 60
KILLED_AT: Final = 20

EVENTS: Final[list[MetadataEvent]] = [
    started(1, 0, 99, epochs=((0, 0), (3, 50))),
    started(2, 100, 199, publisher=7),
    finished(1),
    became(2, SegmentState.COPY_FINISHED, publisher=(1 << 64) - 1),
    became(2, SegmentState.DELETE_STARTED, custom=stamp(8, b"x" * 116)),
    became(2, SegmentState.DELETE_FINISHED),
    *(partition_delete(state) for state in PartitionDeleteState),
]


def kafkas_name(state: SegmentState | PartitionDeleteState) -> str:
    """What Kafka calls a state."""
    if isinstance(state, PartitionDeleteState):
        return f"DELETE_PARTITION_{state.name}"
    return state.name.replace("_", "_SEGMENT_")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(main())


async def created(kafka: KafkaBroker, topic: str, count: int = 1) -> KafkaEventLog:
    return await KafkaEventLog.open(
        kafka.servers, topic=topic, partition_count=count, create=True, replication_factor=1
    )


async def failed(subscription: Subscription) -> PartitionFailed:
    item = (await take(subscription, 1))[0]
    assert isinstance(item, PartitionFailed), item
    return item


# The topic


def test_the_topic_is_created_with_the_partitions_that_are_asked_for(kafka: KafkaBroker) -> None:
    async def scenario() -> None:
        with pytest.raises(NotFound):
            await KafkaEventLog.open(kafka.servers, topic="asked")
        log = await created(kafka, "asked", 7)
        again, whole = (
            await created(kafka, "asked", 5),
            await KafkaEventLog.open(kafka.servers, topic="asked", partition_count=7),
        )
        assert [each.partition_count for each in (log, again, whole)] == [7, 5, 7]
        assert log.log_id == again.log_id == whole.log_id
        with pytest.raises(Refused, match="has 7 partitions, and 8"):
            await created(kafka, "asked", 8)
        with pytest.raises(Refused, match="has 7 partitions, and 50 are the default"):
            await KafkaEventLog.open(kafka.servers, topic="asked")
        for each in (log, again, whole):
            await each.close()

    run(scenario)
    config = topic_config(kafka, "asked")
    assert (config["cleanup.policy"], config["retention.ms"]) == ("delete", "-1")


def test_what_cannot_be_created_is_refused(kafka: KafkaBroker) -> None:
    async def scenario() -> None:
        with pytest.raises(Refused, match="cannot be created"):
            await KafkaEventLog.open(
                kafka.servers, topic="three", partition_count=1, create=True, replication_factor=3
            )

    run(scenario)


def test_a_topic_that_was_made_anew_is_another_log(kafka: KafkaBroker) -> None:
    async def scenario() -> None:
        log = await created(kafka, "anew")
        for number in range(3):
            await log.publish(0, bytes([number]))
        await runtime.run_blocking(delete_topic, kafka, "anew")
        other = await created(kafka, "anew")
        assert other.log_id != log.log_id
        assert isinstance((await failed(await other.subscribe({0: 3}))).error, RolledBack)
        await log.close()
        await other.close()

    run(scenario)


# Offsets that are gone, and offsets that hold no event


def test_what_was_deleted_is_told_with_where_the_partition_begins(kafka: KafkaBroker) -> None:
    async def scenario() -> None:
        log = await created(kafka, "trimmed")
        for number in range(10):
            await log.publish(0, bytes([number]))
        await runtime.run_blocking(delete_records, kafka, "trimmed", 0, 6)
        subscription = await log.subscribe({0: 0})
        gone = await failed(subscription)
        assert isinstance(gone.error, EntriesTrimmed)
        assert gone.error.first_offset == 6
        subscription.assignment.add(0, 6)
        assert await take_events(subscription, 1) == [(0, 6, bytes([6]))]
        await log.close()

    run(scenario)


def test_a_partition_that_ends_in_markers_of_transactions_is_followed_to_its_end(
    kafka: KafkaBroker,
) -> None:
    def write() -> None:
        producer = Producer(
            {"bootstrap.servers": kafka.servers, "transactional.id": "t", "log_level": 0}
        )
        producer.init_transactions(30)
        for value, is_kept in ((b"kept", True), (b"aborted", False)):
            producer.begin_transaction()
            producer.produce("markers", value, partition=0)
            if is_kept:
                producer.commit_transaction(30)
            else:
                producer.flush(30)
                producer.abort_transaction(30)

    async def scenario() -> None:
        log = await created(kafka, "markers")
        await runtime.run_blocking(write)
        # The broker answers that a transaction has ended before it has written its markers.
        end = 4
        while (await log.high_water_marks())[0] < end:
            await runtime.sleep(0.05)
        items: list[LogItem] = []
        subscription = await log.subscribe({0: 0})
        while not isinstance(item := await anext(subscription.items), PositionReached) or (
            item.next_offset < end
        ):
            items.append(item)
        assert [item for item in items if isinstance(item, EventDelivered)] == [
            EventDelivered(0, 0, b"kept")
        ]
        assert item == PositionReached(0, end)
        assert await log.publish(0, b"after") == end
        assert await payloads(subscription, 1) == [b"after"]
        await log.close()

    run(scenario)


# A broker that dies


def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    kafka: KafkaBroker,
) -> None:
    told: dict[bytes, int] = {}
    unknown: list[bytes] = []

    async def publish_all(log: KafkaEventLog, reached: asyncio.Event) -> None:
        for number in range(PUBLISHED):
            payload = str(number).encode()
            try:
                told[payload] = await log.publish(number % 2, payload)
            except OutcomeUnknown:
                unknown.append(payload)
            if number == KILLED_AT:
                reached.set()

    async def scenario() -> None:
        log = await created(kafka, "killed", 2)
        subscription = await log.subscribe({0: 0, 1: 0})
        reached = asyncio.Event()
        publishing = runtime.spawn(publish_all(log, reached), name="publishing")
        await reached.wait()
        kafka.kill()
        await runtime.run_blocking(kafka.start, lambda: answers(kafka))
        await publishing
        assert len(told) + len(unknown) == PUBLISHED
        ends = await log.high_water_marks()
        delivered = await take_events(subscription, sum(ends.values()))
        found = {payload: (partition, offset) for partition, offset, payload in delivered}
        assert len(found) == len(delivered), "each of them once"
        for payload, offset in told.items():
            assert found.pop(payload) == (int(payload) % 2, offset)
        assert set(found) <= set(unknown)
        await log.close()

    run(scenario)


# What Kafka reads of what we write


def test_kafkas_formatter_and_serde_read_what_we_publish(kafka: KafkaBroker) -> None:
    published = [encode_event(event) for event in EVENTS]

    async def scenario() -> None:
        log = await created(kafka, "written")
        for event, payload in zip(EVENTS, published, strict=True):
            epoch = 9 if isinstance(event, PartitionDelete) else None
            await log.publish(0, payload, publisher_epoch=epoch)
        await log.close()

    run(scenario)
    lines = formatted(kafka, "written", len(EVENTS))
    read = kafka.tools.run(str(READER), given="\n".join(payload.hex() for payload in published))
    written_again, described = zip(*(line.split("\t") for line in read.splitlines()), strict=True)
    assert list(written_again) == [payload.hex() for payload in published]
    for event, line, description in zip(EVENTS, lines, described, strict=True):
        assert line.endswith(description), "the formatter prints what the serde read"
        assert f"state={kafkas_name(event.state)}" in description


def test_the_command_line_reads_a_log_in_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await created(kafka, "looked-at")
        await log.publish(0, encode_event(started(10, 0, 99)), publisher_epoch=7)
        await log.close()

    run(scenario)
    brokers = ("--bootstrap-servers", kafka.servers, "--topic", "looked-at")
    one = ("--metadata-partitions", "1")
    shown = headwater("inspect", "event", *brokers, *one, "--metadata-partition", "0", "--json")
    told = json.loads(shown.stdout)
    assert (told["log_offset"], told["epoch_beside"], told["end_offset"]) == (0, 7, 99)
    store = f"file://{tmp_path}"
    headwater("stream", "create", store, "orders")
    listed = headwater("tier", "list", store, "orders", *brokers, *one)
    assert (listed.returncode, listed.stdout) == (1, "partition 0: nothing is in the tier\n")
    other = headwater("tier", "list", store, "orders", *brokers)
    assert "has 1 partitions, and 50 are asked for" in other.stderr


def headwater(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, as one types it."""
    return subprocess.run(
        [sys.executable, "-m", "headwater.cli", *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=LIMIT_S,
    )
