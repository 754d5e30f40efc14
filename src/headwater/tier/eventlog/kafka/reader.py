"""The consumer behind a subscription. Everything here runs on a thread, one call at a time.

A round takes over what is to be followed and then waits for records. What the client has fetched
before a change is never returned after it: it forgets what it holds of a partition that is no
longer assigned.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headwater.core.errors import (
    Corrupt,
    HeadwaterError,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.tier.eventlog.items import EventUnreadable, PartitionFailed, PositionReached
from headwater.tier.eventlog.kafka.faults import error_of, fault
from headwater.tier.eventlog.kafka.records import UNREADABLE, Happening, read_record

SLICE_S: Final = 0.05
"""How long the client sleeps at a stretch; then it is looked whether something is to change."""
SLICES: Final = 200
"""After so many a round ends with nothing, so that no thread outlives whoever waited for it."""
BATCH_RECORDS: Final = 1_000
ASK_TIMEOUT_S: Final = 5.0

OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class Reads(Protocol):
    """What is needed of a consumer."""

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = ..., cached: bool = ...
    ) -> tuple[int, int] | None:
        """The first offset of a partition, and one past its last."""
        ...


class Reader:
    """Reads the partitions of one topic that a subscription follows."""

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._consumer = Consumer(settings)
        self._interrupted = False

    def interrupt(self, interrupted: bool = True) -> None:
        """From any thread: let a round that waits for records end soon."""
        self._interrupted = interrupted

    def round(self, removed: list[int], added: dict[int, int]) -> list[Happening]:
        """Follow these no longer, follow those from their offsets, and wait for what there is."""
        try:
            self._assign(removed, added)
            for _ in range(SLICES):
                if self._interrupted:
                    break
                first = self._consumer.poll(SLICE_S)
                if first is not None:
                    more = self._consumer.consume(BATCH_RECORDS - 1, 0)
                    return [item for message in (first, *more) for item in self._read(message)]
        except KafkaException as error:
            raise fault(f"{self._topic} cannot be read", error_of(error)) from error
        return []

    def close(self) -> None:
        """Let go of the client."""
        self._consumer.close()

    def _assign(self, removed: list[int], added: dict[int, int]) -> None:
        if removed:
            self._consumer.incremental_unassign(
                [TopicPartition(self._topic, partition) for partition in removed]
            )
        if added:
            self._consumer.incremental_assign(
                [
                    TopicPartition(self._topic, partition, start)
                    for partition, start in added.items()
                ]
            )

    def _read(self, message: Message) -> list[Happening]:
        item = read_message(self._topic, message, self._consumer)
        return [] if item is None else [item]


def read_message(topic: str, message: Message, consumer: Reads) -> Happening | None:
    """A record, or what happened instead, as an item; None if it is nobody's concern."""
    partition, offset, error = message.partition(), message.offset(), message.error()
    if partition is None or partition < 0 or offset is None:
        if error is not None and error.fatal():
            raise KafkaException(error)
        return None  # Of a connection, which is made again.
    if error is None:
        return read_record(partition, offset, message)
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        return PositionReached(partition, offset)
    if code in OUT_OF_RANGE:
        return PartitionFailed(partition, _out_of_range(topic, partition, offset, consumer))
    if code == KafkaError._LOG_TRUNCATION:
        return PartitionFailed(partition, _rolled_back(partition, offset, error.str()))
    if code in UNREADABLE and offset >= 0:
        return EventUnreadable(partition, offset, Corrupt(_at(partition, offset) + error.str()))
    return PartitionFailed(partition, fault(f"metadata partition {partition} of {topic}", error))


def _out_of_range(topic: str, partition: int, offset: int, consumer: Reads) -> HeadwaterError:
    """Why the leader does not have an offset: it is gone, or never was."""
    where = TopicPartition(topic, partition)
    try:
        ends = consumer.get_watermark_offsets(where, timeout=ASK_TIMEOUT_S, cached=False)
    except KafkaException as error:
        return fault(f"where metadata partition {partition} begins and ends", error_of(error))
    if ends is None:
        return Unavailable(f"nobody says where metadata partition {partition} begins and ends")
    begin, end = ends
    if offset < begin:
        return Trimmed(
            _at(partition, offset) + f"it was deleted: {begin} is the first", floor=begin
        )
    if offset > end:
        return _rolled_back(partition, offset, f"it ends at {end}")
    return Unavailable(_at(partition, offset) + "a leader did not have it that was behind")


def _rolled_back(partition: int, offset: int, why: str) -> RolledBack:
    return RolledBack(
        _at(partition, offset) + f"{why}: this is not the log that was followed before"
    )


def _at(partition: int, offset: int) -> str:
    return f"metadata partition {partition} at {offset}: "
