"""A Kafka topic: finding or creating it, sending events to it, and Kafka's errors.

Always holds: only the broker decides the offset of an event; a partition whose leader does not
answer is unknown, not empty; an error says whether an event was not appended, or may have been.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from headwater.core import RetryPolicy, runtime
from headwater.core.errors import (
    Denied,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.events import check_epoch

_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_TOO_LARGE: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_GONE: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class ConnectionErrors:
    """The errors of a client's connections, which a time-out does not contain."""

    def __init__(self) -> None:
        self.count = 0
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Called by the client, on any thread."""
        self._last = error
        self.count += 1

    def __str__(self) -> str:
        return "" if self._last is None else f" (last connection error: {self._last.str()})"


def error_of(raised: KafkaException) -> KafkaError:
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def kafka_error(what: str, error: KafkaError) -> HeadwaterError:
    """The error of a request that has changed nothing."""
    for kinds, kind in ((_DENIED, Denied), (_TOO_LARGE, LimitExceeded), (_REFUSED, Refused)):
        if error.code() in kinds:
            return kind(f"{what}: {error.str()}")
    return Unavailable(f"{what}: {error.str()}")


def publish_error(
    what: str, error: KafkaError, connections: ConnectionErrors, *, is_first: bool
) -> HeadwaterError:
    """The error of an event that the client sent and the broker did not acknowledge.

    The client repeats attempts without an answer, and reports the answer to the last one: an event
    that a broker refuses then may have been appended before. `is_first`: no connection failed since
    the event was sent, so there was one attempt. An event that is too large is so in every attempt.
    """
    code = error.code()
    if code in _TOO_LARGE or (is_first and (code in _DENIED or code in _GONE or code in _REFUSED)):
        return kafka_error(what, error)
    return OutcomeUnknown(
        f"{what}: {error.str()}{connections}; it may have been appended: follow the partition to "
        "its end to find out"
    )


LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
REQUEST_TIMEOUT_S: Final = 10.0
MARKS_TIMEOUT_S: Final = 5.0
APPEARING: Final = RetryPolicy(attempts=50, deadline_s=30.0, base_s=0.05, cap_s=1.0)
"""How long to wait until all brokers know a created topic."""

MOVING: Final = RetryPolicy(attempts=5, deadline_s=MARKS_TIMEOUT_S, base_s=0.05, cap_s=0.5)
"""How long to look for a leader before its partition counts as unknown."""


@dataclass(frozen=True, slots=True)
class NewTopicSettings:
    partition_count: int
    replication_factor: int


class KafkaTopic:
    """One topic, and an admin client to query it."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self._client: AdminClient | None = AdminClient(settings)

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            raise Refused("the event log is closed: open another")
        return self._client

    def close(self) -> None:
        """Drop the client, whose threads end with its last reference. Blocks."""
        self._client = None

    async def count_partitions(self) -> int | None:
        """The number of partitions; None if there is no such topic."""
        # All topics are listed: a request for one by name may create it.
        try:
            topics = await runtime.run_blocking(
                lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            )
        except KafkaException as error:
            raise kafka_error(
                "the brokers do not say which topics there are", error_of(error)
            ) from error
        return len(topics[self.name].partitions) or None if self.name in topics else None

    async def create(self, settings: NewTopicSettings) -> None:
        """Create it if it does not exist, and wait until the brokers know it."""
        topic = NewTopic(
            self.name,
            num_partitions=settings.partition_count,
            replication_factor=settings.replication_factor,
            # As brokers create it: unlimited retention, uncompacted; two replicas acknowledge.
            config={
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "min.insync.replicas": str(min(2, settings.replication_factor)),
            },
        )
        requests = self._admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        try:
            await asyncio.wrap_future(requests[self.name])
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise kafka_error(
                    f"the topic {self.name} cannot be created", error_of(error)
                ) from error
        budget = APPEARING.start()
        while await self.count_partitions() is None:
            if not await budget.pause():
                raise Unavailable(f"the topic {self.name} was created and does not appear")

    async def fetch_id(self) -> uuid.UUID:
        """The topic's id; a topic that is created again has another one."""
        requests = self._admin.describe_topics(
            TopicCollection([self.name]), request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            described = await asyncio.wrap_future(requests[self.name])
        except KafkaException as error:
            raise kafka_error(
                f"the brokers do not describe {self.name}", error_of(error)
            ) from error
        topic_id = read_id(described.topic_id)
        if topic_id.int == 0:
            raise NotSupported(
                f"the brokers are too old to give {self.name} an id: pass a log_id, and another "
                "one whenever the topic is created again"
            )
        return topic_id

    async def end_offsets(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """The offset after the last event of each partition whose leader answers.

        Each partition is a separate request: one without a leader does not delay the others. Events
        after an open transaction count, because they were acknowledged.
        """
        ends: dict[int, int] = {}
        failed: HeadwaterError = Unavailable(
            f"no leader of {self.name} answers within {MARKS_TIMEOUT_S} s"
        )
        budget = MOVING.start()
        try:
            async with asyncio.timeout(MARKS_TIMEOUT_S):
                while True:
                    unknown = [p for p in partitions if p not in ends]
                    queries = (self._query_end(partition, ends) for partition in unknown)
                    errors = [one for one in await asyncio.gather(*queries) if one is not None]
                    if not errors:
                        return ends
                    failed = errors[0]
                    if not await budget.pause():
                        break
                    # Otherwise the client keeps asking a leader that may have been replaced.
                    await self.count_partitions()
        except (TimeoutError, Unavailable):
            pass  # the ends that were learned so far are returned
        if not ends:
            raise failed
        return ends

    async def _query_end(self, partition: int, ends: dict[int, int]) -> HeadwaterError | None:
        where = TopicPartition(self.name, partition)
        what = f"where metadata partition {partition} of {self.name} ends"
        try:
            requests: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
                {where: LATEST}, request_timeout=MARKS_TIMEOUT_S
            )
            answer = await asyncio.wrap_future(requests[where])
        except KafkaException as error:
            return kafka_error(what, error_of(error))
        except HeadwaterError as error:
            return error
        if answer.offset < 0:
            return Unavailable(f"{what}: its leader does not say")
        ends[partition] = answer.offset
        return None


def read_id(topic_id: Any) -> uuid.UUID:
    """A UUID from the client's, which has two signed halves."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in halves))


async def find_topic(
    topic: KafkaTopic, partition_count: int | None, new: NewTopicSettings | None
) -> int:
    """Find or create the topic; returns how many of its partitions are used."""
    count = await topic.count_partitions()
    if count is None and new is not None:
        await topic.create(new)
        count = await topic.count_partitions()
    if count is None:
        raise NotFound(
            f"there is no topic {topic.name}: a broker with tiered storage creates it, or open the "
            "log with create=True"
        )
    if partition_count is not None and partition_count > count:
        raise Refused(
            f"{topic.name} has {count} partitions, not {partition_count}: the number decides which "
            "partition an event is in, so do not add partitions to a topic that is in use"
        )
    if partition_count is None and count != METADATA_PARTITIONS:
        raise Refused(
            f"{topic.name} has {count} partitions, and {METADATA_PARTITIONS} are the default: pass "
            "the number that its writers use (partition_count; for brokers "
            "remote.log.metadata.topic.num.partitions), without partitions that were added to a "
            "topic in use"
        )
    return partition_count or count


# The publisher's epoch is in a header: Kafka's own readers ignore unknown ones.
EPOCH_HEADER: Final = "headwater-publisher-epoch"
EPOCH_BYTES: Final = 8
POLL_S: Final = 0.05

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


def epoch_headers(publisher_epoch: int | None) -> Headers:
    if publisher_epoch is None:
        return []
    check_epoch(publisher_epoch)
    return [(EPOCH_HEADER, publisher_epoch.to_bytes(EPOCH_BYTES, "big"))]


class KafkaSender:
    """An idempotent producer, which is replaced after a fatal error. For one event loop.

    While answers are outstanding, a thread waits for them in the client.
    """

    def __init__(
        self, topic: str, settings: Callable[[Callable[[KafkaError], None]], dict[str, Any]]
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._connections = ConnectionErrors()
        self._client: _Client | None = None
        self._closing: list[asyncio.Task[None]] = []
        """For clients that had a fatal error."""

    async def publish(self, partition: int, payload: bytes, publisher_epoch: int | None) -> int:
        headers = epoch_headers(publisher_epoch)
        what = f"an event for metadata partition {partition} of {self._topic}"
        errors_before = self._connections.count
        try:
            landed = self._usable_client().send(self._topic, partition, payload, headers)
        except BufferError as error:
            raise Unavailable(f"{what}: too many events are being sent; try again later") from error
        except KafkaException as error:
            raise kafka_error(what, error_of(error)) from error
        try:
            offset = await landed
        except KafkaException as error:
            is_first = self._connections.count == errors_before
            raise publish_error(
                what, error_of(error), self._connections, is_first=is_first
            ) from error
        if offset is None or offset < 0:
            raise OutcomeUnknown(
                f"{what}: an earlier attempt to send it was appended, and the broker no longer "
                "knows the offset: follow the partition to its end to find out"
            )
        return offset

    async def close(self) -> None:
        """Stop waiting for answers: the outcomes of events being sent stay unknown."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
        await asyncio.gather(*self._closing)

    def _usable_client(self) -> _Client:
        if self._client is not None and self._client.is_dead:
            closing = runtime.spawn(self._client.close(), name="kafka producer closing")
            self._closing.append(closing)
            closing.add_done_callback(self._closing.remove)
            self._client = None
        if self._client is None:
            self._client = _Client(Producer(self._settings(self._connections.note)))
        return self._client


class _Client:
    """A producer, and the futures that wait for its answers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: dict[asyncio.Future[int | None], None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False
        self.is_dead = False

    def send(
        self, topic: str, partition: int, payload: bytes, headers: Headers
    ) -> asyncio.Future[int | None]:
        """Send an event; the future has its offset after the broker's answer."""
        loop = asyncio.get_running_loop()
        landed: asyncio.Future[int | None] = loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(self._settle, landed, error, message.offset())

        self._producer.produce(
            topic, payload, partition=partition, headers=headers, on_delivery=delivered
        )
        self._waiting[landed] = None
        if self._serving is None:
            self._serving = runtime.spawn(self._serve(), name="kafka delivery reports")
        return landed

    async def close(self) -> None:
        """Drop events that are being sent, and close the client."""
        self._producer.purge()
        if self._serving is not None:
            await asyncio.wait([self._serving])
        await runtime.run_blocking(self._producer.close)

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await runtime.run_blocking(self._take_answers)
        except asyncio.CancelledError:
            # The event loop ends: a thread that goes on would delay the end of the process.
            self._stopped = True
            raise
        finally:
            self._serving = None

    def _take_answers(self) -> None:
        """Runs on a thread until all events are answered, which has a time limit."""
        while len(self._producer) and not self._stopped:
            try:
                self._producer.poll(POLL_S)
            except KafkaException:
                # It lost its sequence or was fenced, and sends nothing any more. Each waiting
                # publisher gets an error: the event was not sent, or its outcome is unknown.
                self.is_dead = True
                self._producer.purge()

    def _settle(
        self, landed: asyncio.Future[int | None], error: KafkaError | None, offset: int | None
    ) -> None:
        self._waiting.pop(landed, None)
        if landed.done():
            return  # the publisher has stopped waiting
        if error is not None:
            landed.set_exception(KafkaException(error))
        else:
            landed.set_result(offset)
