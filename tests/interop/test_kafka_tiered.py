"""The manager follows what a broker with tiered storage writes about its own topics."""

from __future__ import annotations

import asyncio
import base64
import re
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from headwater.core import runtime
from headwater.core.errors import Unavailable
from headwater.tier import NotReady, PartitionDeleteState, SegmentState, TopicIdPartition, gaps
from headwater.tier.eventlog import KafkaEventLog
from headwater.tier.manager import TopicMetadataManager
from tests.interop.kafka_admin import (
    answers,
    configure_topic,
    create_topic,
    formatted,
    produce,
    topic_id,
)
from tests.interop.kafka_broker import METADATA_PARTITIONS, KafkaBroker
from tests.tier.given import partition_delete
from tests.tier.manager.given import copy_segment

pytestmark = pytest.mark.interop

METADATA_TOPIC: Final = "__remote_log_metadata"
LIMIT_S: Final = 240.0
LOOK_S: Final = 0.25
RECORDS: Final = 3_000
FINISHED: Final = 2
"""Of 3 MB in segments of one, the last is the one that is written to."""
TIERED: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(main())


def fill(kafka: KafkaBroker, topic: str) -> list[TopicIdPartition]:
    """A topic with two partitions of which segments are copied."""
    create_topic(kafka, topic, 2, TIERED)
    produce(kafka, topic, {partition: [bytes(1_000)] * RECORDS for partition in range(2)})
    return [TopicIdPartition(topic_id(kafka, topic), topic, number) for number in range(2)]


async def until(manager: TopicMetadataManager, is_so: Callable[[], bool]) -> None:
    """Wait for what the broker does in its own time."""
    while True:
        for partition in manager.assigned():
            await manager.refresh(partition)
        if is_so():
            return
        await runtime.sleep(LOOK_S)


def read_by_kafka(lines: list[str], topic: str) -> dict[uuid.UUID, tuple[int, int]]:
    """Finished segments of a topic as Kafka's own formatter tells them: first and last offset."""
    began: dict[uuid.UUID, tuple[int, int]] = {}
    ended: dict[uuid.UUID, tuple[int, int]] = {}
    for line in lines:
        found = re.search(rf":{topic}-\d+, id=([\w-]+)}}", line)
        if found is None:
            continue
        segment = uuid.UUID(bytes=base64.urlsafe_b64decode(found[1] + "=="))
        offsets = re.search(r"startOffset=(\d+), endOffset=(\d+)", line)
        if offsets is not None:
            began[segment] = (int(offsets[1]), int(offsets[2]))
        elif "state=COPY_SEGMENT_FINISHED" in line:
            ended[segment] = began[segment]
    return ended


def test_what_a_broker_says_of_its_own_segments_is_known(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    partitions = fill(kafka, "tiered")
    known: dict[uuid.UUID, tuple[int, int]] = {}

    def finished(manager: TopicMetadataManager) -> dict[uuid.UUID, tuple[int, int]]:
        return {
            segment.segment_id.id: (segment.start_offset, segment.end_offset)
            for partition in partitions
            for segment in manager.partition(partition).segments()
            if segment.state is SegmentState.COPY_FINISHED
        }

    async def scenario() -> None:
        log = await KafkaEventLog.open(kafka.servers, partition_count=METADATA_PARTITIONS)
        assert log.partition_count == METADATA_PARTITIONS
        manager = await TopicMetadataManager.start(log, str(tmp_path))
        await manager.reconcile_assignment(range(METADATA_PARTITIONS))
        await until(manager, lambda: len(finished(manager)) == 2 * FINISHED)
        known.update(finished(manager))
        for partition in partitions:
            end = manager.partition(partition).highest_offset(epoch=0)
            assert end is not None
            covered = manager.partition(partition).cover(0, end + 1)
            assert not list(gaps(covered, 0, end + 1)), "everything is found, from the first on"
            middle = manager.partition(partition).segment_at(epoch=0, offset=end // 2)
            assert middle is not None
            assert middle.segment_id.id in known
        marks = await log.high_water_marks()
        await manager.close()

        lines = await runtime.run_blocking(formatted, kafka, METADATA_TOPIC, sum(marks.values()))
        assert read_by_kafka(lines, "tiered") == known

        again = await TopicMetadataManager.start(log, str(tmp_path))
        assert {p: again.committed_offset(p) + 1 for p in marks} == marks, "from the snapshots"
        await again.reconcile_assignment(range(METADATA_PARTITIONS))
        await until(again, lambda: finished(again) == known)
        await again.close()
        await log.close()

    run(scenario)


def test_segments_that_a_broker_deletes_are_forgotten(kafka: KafkaBroker) -> None:
    partitions = fill(kafka, "expiring")

    async def scenario() -> None:
        log = await KafkaEventLog.open(kafka.servers, partition_count=METADATA_PARTITIONS)
        manager = await TopicMetadataManager.start(log)
        await manager.reconcile_assignment(range(METADATA_PARTITIONS))
        await until(
            manager,
            lambda: all(len(manager.partition(p).segments()) >= FINISHED for p in partitions),
        )
        await until(
            manager,
            lambda: None not in [manager.partition(p).highest_offset(0) for p in partitions],
        )
        before = [manager.partition(partition).highest_offset(epoch=0) for partition in partitions]
        # What we publish there is no concern of the broker's, and does not stop it.
        await copy_segment(manager, 10, 0, 99, publisher=1)
        await manager.publish(partition_delete(PartitionDeleteState.MARKED), publisher_epoch=2)
        await runtime.run_blocking(lambda: configure_topic(kafka, "expiring", retention_bytes="1"))
        await until(manager, lambda: not any(manager.partition(p).segments() for p in partitions))
        after = [manager.partition(partition).highest_offset(epoch=0) for partition in partitions]
        assert all(
            new is not None and new >= (old or 0) for new, old in zip(after, before, strict=True)
        )
        await manager.close()
        await log.close()

    run(scenario)


def test_a_manager_goes_on_when_its_broker_comes_back(kafka: KafkaBroker) -> None:
    async def scenario() -> None:
        log = await KafkaEventLog.open(kafka.servers, partition_count=METADATA_PARTITIONS)
        manager = await TopicMetadataManager.start(log)
        await manager.reconcile_assignment([0])
        await manager.refresh(0)
        kafka.kill()
        with pytest.raises(NotReady):
            await manager.refresh(0)
        with pytest.raises(Unavailable):
            await log.high_water_marks()
        await runtime.run_blocking(kafka.start, lambda: answers(kafka))
        partitions = await runtime.run_blocking(fill, kafka, "after")
        await manager.reconcile_assignment(range(METADATA_PARTITIONS))
        await until(
            manager,
            lambda: all(len(manager.partition(p).segments()) >= FINISHED for p in partitions),
        )
        await manager.close()
        await log.close()

    run(scenario)
