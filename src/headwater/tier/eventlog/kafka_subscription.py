"""Subscriptions to a Kafka topic, and their reader on a thread.

The value of a record is the event, and a header has the publisher's epoch. Kafka's own readers
ignore unknown headers, and Kafka's own writers write none.

While a caller waits for an item, rounds of reading run on a thread, one after the other. A round
first changes the assignment of the client, then waits for records. The client reads ahead by
itself, within a bound, and drops the records of a partition that is no longer assigned. A
subscription that is dropped without being closed closes its client after the running round.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    EntriesTrimmed,
    HeadwaterError,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.tier.eventlog.contract import (
    EventDelivered,
    EventUnreadable,
    MetadataEventLog,
    PartitionFailed,
    PositionReached,
    Subscription,
)
from headwater.tier.eventlog.kafka_topic import EPOCH_BYTES, EPOCH_HEADER, error_of, kafka_error

TopicItem: TypeAlias = EventDelivered | EventUnreadable | PartitionFailed | PositionReached
"""The items of a topic, which has no snapshots."""

UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError.INVALID_MSG,
    }
)
"""A batch of records that fails its checksum or cannot be decompressed."""


def read_record(partition: int, offset: int, message: Message) -> EventDelivered | EventUnreadable:
    payload = message.value()
    if payload is None:
        return _unreadable(partition, offset, "it has no value, and an event always has one")
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    epochs = [value for name, value in pairs if name == EPOCH_HEADER]
    if not epochs:
        return EventDelivered(partition, offset, payload)
    # Ignoring an unreadable epoch would let an event of a stale leader count.
    if len(epochs) > 1 or not isinstance(epochs[0], bytes) or len(epochs[0]) != EPOCH_BYTES:
        wrong = f"{EPOCH_HEADER} is not one number of {EPOCH_BYTES} bytes"
        return _unreadable(partition, offset, wrong)
    return EventDelivered(partition, offset, payload, int.from_bytes(epochs[0], "big"))


def _unreadable(partition: int, offset: int, why: str) -> EventUnreadable:
    error = Corrupt(f"the record at {offset} of metadata partition {partition}: {why}")
    return EventUnreadable(partition, offset, error)


SLICE_S: Final = 0.05
"""How long the client sleeps before the round checks whether the assignment changes."""
SLICES: Final = 200
"""After so many a round ends without items, so that no thread outlives its subscription long."""
BATCH_RECORDS: Final = 1_000
ASK_TIMEOUT_S: Final = 5.0

OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class TopicReader:
    """Reads partitions of one topic for a subscription, on a thread, one call at a time."""

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._consumer = Consumer(settings)
        self._interrupted = False

    def interrupt(self, interrupted: bool = True) -> None:
        """From any thread: end a round that waits for records soon."""
        self._interrupted = interrupted

    def round(self, removed: list[int], added: dict[int, int]) -> list[TopicItem]:
        """Remove and add partitions, the latter from their offsets, and wait for items."""
        try:
            self._assign(removed, added)
            for _ in range(SLICES):
                if self._interrupted:
                    break
                first = self._consumer.poll(SLICE_S)
                if first is not None:
                    more = self._consumer.consume(BATCH_RECORDS - 1, 0)
                    items = (
                        read_message(self._topic, message, self._consumer)
                        for message in (first, *more)
                    )
                    return [item for item in items if item is not None]
        except KafkaException as error:
            raise kafka_error(f"{self._topic} cannot be read", error_of(error)) from error
        return []

    def close(self) -> None:
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


def read_message(topic: str, message: Message, consumer: Any) -> TopicItem | None:
    """The item of a record or of an error; None if followers need not know of it."""
    partition, offset, error = message.partition(), message.offset(), message.error()
    if partition is None or partition < 0 or offset is None:
        if error is not None and error.fatal():
            raise KafkaException(error)
        return None  # an error of a connection, which the client makes again
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
    return PartitionFailed(
        partition, kafka_error(f"metadata partition {partition} of {topic}", error)
    )


def _out_of_range(topic: str, partition: int, offset: int, consumer: Any) -> HeadwaterError:
    """Why the leader does not have an offset: it was deleted, or never existed.

    `consumer` is a `Consumer`, which may return None although its stub says otherwise.
    """
    where = TopicPartition(topic, partition)
    try:
        ends = consumer.get_watermark_offsets(where, timeout=ASK_TIMEOUT_S, cached=False)
    except KafkaException as error:
        return kafka_error(f"where metadata partition {partition} begins and ends", error_of(error))
    if ends is None:
        return Unavailable(f"no leader says where metadata partition {partition} begins and ends")
    begin, end = ends
    if offset < begin:
        return EntriesTrimmed(
            _at(partition, offset) + f"it was deleted: {begin} is the first", first_offset=begin
        )
    if offset > end:
        return _rolled_back(partition, offset, f"it ends at {end}")
    return Unavailable(_at(partition, offset) + "its leader was behind and did not have it")


def _rolled_back(partition: int, offset: int, why: str) -> RolledBack:
    return RolledBack(
        _at(partition, offset) + f"{why}: this is not the log that was followed before"
    )


def _at(partition: int, offset: int) -> str:
    return f"metadata partition {partition} at {offset}: "


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition between `add` and `remove`; after another `add` it is a new object."""

    next_offset: int
    failed: bool = False


class KafkaSubscription(Subscription):
    """For one event loop."""

    def __init__(self, log: MetadataEventLog, reader: TopicReader) -> None:
        self._log = log
        self._reader = reader
        self._followed: dict[int, _Followed] = {}
        self._reading: dict[int, _Followed] = {}
        """The partitions that the reader follows since the last round began."""
        self._ready: deque[TopicItem] = deque()
        self._round: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        # A round references the subscription: when it is dropped, the reader is idle.
        run = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        self._dropped = weakref.finalize(self, runtime.call_on, loop, run, _close_reader, reader)
        self._dropped.atexit = False

    def add(self, partition: int, start_offset: int) -> None:
        self._log.check_start(partition, start_offset)
        if self._closing is not None:
            raise Refused("the subscription is closed: subscribe again")
        if partition not in self._followed:
            self._followed[partition] = _Followed(start_offset)
            self._reader.interrupt()

    def remove(self, partition: int) -> None:
        if self._followed.pop(partition, None) is not None:
            self._ready = deque(item for item in self._ready if item.partition != partition)
            self._reader.interrupt()

    def notify(self, partition: int) -> None:
        """The client polls anyway."""

    def assigned(self) -> list[int]:
        return sorted(self._followed)

    async def close(self) -> None:
        if self._closing is None:
            self._followed.clear()
            self._ready.clear()
            self._log.forget(self)
            self._reader.interrupt()
            self._dropped.detach()
            self._closing = runtime.spawn(self._close(), name="kafka subscription closing")
        await asyncio.shield(self._closing)

    async def __anext__(self) -> TopicItem:
        while self._closing is None:
            if self._ready:
                item = self._ready.popleft()
                if isinstance(item, PartitionFailed):
                    del self._followed[item.partition]
                return item
            if self._round is None:
                self._round = runtime.spawn(self._read(), name="kafka subscription")
            # The round goes on for the next caller if this one stops waiting.
            await asyncio.shield(self._round)
        raise StopAsyncIteration

    async def _read(self) -> None:
        """Run one round of the reader with the changes of the assignment, and keep its items."""
        self._reader.interrupt(False)
        reading, self._reading = self._reading, dict(self._followed)
        removed = [p for p, followed in reading.items() if self._reading.get(p) is not followed]
        added = {
            partition: followed.next_offset
            for partition, followed in self._reading.items()
            if reading.get(partition) is not followed
        }
        try:
            for item in await runtime.run_blocking(self._reader.round, removed, added):
                self._add_item(item)
        except asyncio.CancelledError:
            # The event loop ends: a thread that goes on would delay the end of the process.
            self._reader.interrupt()
            raise
        finally:
            self._round = None

    def _add_item(self, item: TopicItem) -> None:
        followed = self._reading.get(item.partition)
        # The partition may have been removed, or added again, while the item was fetched.
        if followed is None or self._followed.get(item.partition) is not followed:
            return
        if followed.failed:
            return
        if isinstance(item, PartitionFailed):
            followed.failed = True
        elif isinstance(item, PositionReached):
            if item.next_offset <= followed.next_offset:
                return  # the events before it have shown the same
            followed.next_offset = item.next_offset
        elif item.offset < followed.next_offset:
            return
        else:
            followed.next_offset = item.offset + 1
        self._ready.append(item)

    async def _close(self) -> None:
        if self._round is not None:
            await asyncio.wait([self._round])
        await runtime.run_blocking(self._reader.close)


def _close_reader(reader: TopicReader) -> None:
    runtime.spawn(runtime.run_blocking(reader.close), name="kafka subscription dropped")
