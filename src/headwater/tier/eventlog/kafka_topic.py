"""A Kafka topic: finding or creating it, sending events to it, and what Kafka's errors mean.

Always holds: only the broker decides at which offset an event is; a partition whose leader does not
answer is unknown, not empty; an error says whether an event surely has not landed or may have.
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
    """What went wrong with connections: what a time-out by itself does not tell."""

    def __init__(self) -> None:
        self.count = 0
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Called by the client, on whatever thread serves it."""
        self._last = error
        self.count += 1

    def __str__(self) -> str:
        return "" if self._last is None else f" (last heard: {self._last.str()})"


def error_of(raised: KafkaException) -> KafkaError:
    """What a client's exception carries."""
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def kafka_error(what: str, error: KafkaError) -> HeadwaterError:
    """Why something did not work that has changed nothing."""
    for kinds, kind in ((_DENIED, Denied), (_TOO_LARGE, LimitExceeded), (_REFUSED, Refused)):
        if error.code() in kinds:
            return kind(f"{what}: {error.str()}")
    return Unavailable(f"{what}: {error.str()}")


def publish_error(
    what: str, error: KafkaError, trouble: ConnectionErrors, *, is_first: bool
) -> HeadwaterError:
    """Why an event that was handed to the client was not acknowledged.

    The client repeats what it gets no answer to, and the last answer is that to the last attempt:
    what a broker refuses then may have landed before. `is_first` says that nothing went wrong with
    a connection since the event was handed over. What is too large is so in every attempt.
    """
    code = error.code()
    if code in _TOO_LARGE or (is_first and (code in _DENIED or code in _GONE or code in _REFUSED)):
        return kafka_error(what, error)
    return OutcomeUnknown(
        f"{what}: {error.str()}{trouble}; it may have landed all the same: follow the partition to "
        "its end to know"
    )


LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
REQUEST_TIMEOUT_S: Final = 10.0
MARKS_TIMEOUT_S: Final = 5.0
APPEARING: Final = RetryPolicy(attempts=50, deadline_s=30.0, base_s=0.05, cap_s=1.0)
"""How long a topic that was created may take until its brokers know of it."""

MOVING: Final = RetryPolicy(attempts=5, deadline_s=MARKS_TIMEOUT_S, base_s=0.05, cap_s=0.5)
"""How long a leader is looked for before its partition counts as unknown."""


@dataclass(frozen=True, slots=True)
class NewTopicSettings:
    """How to create the topic if it is not there."""

    partition_count: int
    replication_factor: int

    def config(self) -> dict[str, str]:
        """Unlimited retention, uncompacted, as brokers create it; two replicas acknowledge."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(min(2, self.replication_factor)),
        }


class KafkaTopic:
    """One topic, by its name, through a client that asks about topics."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self._client: AdminClient | None = AdminClient(settings)

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            raise Refused("the log of metadata events is closed: open another")
        return self._client

    def close(self) -> None:
        """Let go of the client, which ends its threads with its last reference: on a thread."""
        self._client = None

    async def count_partitions(self) -> int | None:
        """How many it has; None if it is not there."""
        # All topics are listed: a request for one by its name may create it.
        try:
            known = await runtime.run_blocking(
                lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            )
        except KafkaException as error:
            raise kafka_error(
                "the brokers do not say which topics there are", error_of(error)
            ) from error
        return len(known[self.name].partitions) or None if self.name in known else None

    async def create(self, wish: NewTopicSettings) -> None:
        """Create it if it does not exist, and wait until the brokers know of it."""
        new = NewTopic(
            self.name,
            num_partitions=wish.partition_count,
            replication_factor=wish.replication_factor,
            config=wish.config(),
        )
        requests = self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
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

    async def ask_id(self) -> uuid.UUID:
        """The id that the brokers gave it; a topic that is created again has another."""
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
                f"the brokers give {self.name} no id, which older ones do not: pass a log_id, and "
                "another one whenever the topic is created again"
            )
        return topic_id

    async def end_offsets(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """One past the last offset of each partition whose leader answers.

        Each partition is a request of its own: one without a leader delays no other's answer. What
        no transaction has decided yet counts: an event beyond it was acknowledged all the same.
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
                    asking = (self._learn_end(partition, ends) for partition in unknown)
                    errors = [error for error in await asyncio.gather(*asking) if error is not None]
                    if not errors:
                        return ends
                    failed = errors[0]
                    if not await budget.pause():
                        break
                    # The client goes on asking a leader that it once heard of, which may be over.
                    await self.count_partitions()
        except (TimeoutError, Unavailable):
            pass  # What was learned until now is what is known.
        if not ends:
            raise failed
        return ends

    async def _learn_end(self, partition: int, ends: dict[int, int]) -> HeadwaterError | None:
        try:
            ends[partition] = await self._ask_end(partition)
        except HeadwaterError as error:
            return error
        return None

    async def _ask_end(self, partition: int) -> int:
        where = TopicPartition(self.name, partition)
        what = f"where metadata partition {partition} of {self.name} ends"
        requests: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            {where: LATEST}, request_timeout=MARKS_TIMEOUT_S
        )
        try:
            answer = await asyncio.wrap_future(requests[where])
        except KafkaException as error:
            raise kafka_error(what, error_of(error)) from error
        offset: int = answer.offset
        if offset < 0:
            raise Unavailable(f"{what}: its leader does not say")
        return offset


def read_id(topic_id: Any) -> uuid.UUID:
    """An id of the client's, which has two signed halves, as any other."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in halves))


async def find_topic(
    topic: KafkaTopic, asked_count: int | None, wish: NewTopicSettings | None
) -> int:
    """How many partitions are used of it: as many as are asked for, or Kafka's default."""
    found = await topic.count_partitions()
    if found is None and wish is not None:
        await topic.create(wish)
        found = await topic.count_partitions()
    if found is None:
        raise NotFound(
            f"there is no topic {topic.name}: a broker with tiered storage makes it, or open the "
            "log with create=True"
        )
    if asked_count is not None and asked_count > found:
        raise Refused(
            f"{topic.name} has {found} partitions, and {asked_count} are asked for: events find "
            "theirs by the number of partitions, so add none to a topic that is in use"
        )
    if asked_count is None and found != METADATA_PARTITIONS:
        raise Refused(
            f"{topic.name} has {found} partitions, and {METADATA_PARTITIONS} are the default: say "
            "by how many its writers choose (partition_count; of brokers "
            "remote.log.metadata.topic.num.partitions). Partitions that were added to a topic in "
            "use do not count"
        )
    return asked_count or found


# The publisher's epoch travels beside the event: Kafka's own readers ignore unknown headers.
EPOCH_HEADER: Final = "headwater-publisher-epoch"
EPOCH_BYTES: Final = 8
POLL_S: Final = 0.05

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


def epoch_headers(publisher_epoch: int | None) -> list[tuple[str, bytes]]:
    """What travels beside an event."""
    if publisher_epoch is None:
        return []
    check_epoch(publisher_epoch)
    return [(EPOCH_HEADER, publisher_epoch.to_bytes(EPOCH_BYTES, "big"))]


class KafkaSender:
    """One idempotent producer, replaced when it fails for good. For one event loop.

    A thread waits for answers while some are outstanding, and sleeps in the client until one comes.
    """

    def __init__(
        self, topic: str, settings: Callable[[Callable[[KafkaError], None]], dict[str, Any]]
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._trouble = ConnectionErrors()
        self._client: _Client | None = None
        self._closing: list[asyncio.Task[None]] = []
        """Those that were at their end."""

    async def publish(self, partition: int, payload: bytes, publisher_epoch: int | None) -> int:
        """Send an event; the offset that the broker gave it."""
        headers: Headers = [*epoch_headers(publisher_epoch)]
        what = f"an event for metadata partition {partition} of {self._topic}"
        heard = self._trouble.count
        try:
            landed = self._living_client().send(self._topic, partition, payload, headers)
        except BufferError as error:
            raise Unavailable(f"{what}: too many others are under way; try again later") from error
        except KafkaException as error:
            raise kafka_error(what, error_of(error)) from error
        try:
            offset = await landed
        except KafkaException as error:
            is_first = self._trouble.count == heard
            raise publish_error(what, error_of(error), self._trouble, is_first=is_first) from error
        if offset is None or offset < 0:
            raise OutcomeUnknown(
                f"{what}: it landed, as an earlier attempt to send it, and the broker no longer "
                "knows at which offset: follow the partition to its end to know"
            )
        return offset

    async def close(self) -> None:
        """Wait for nothing more: whether events under way landed stays unknown."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
        await asyncio.gather(*self._closing)

    def _living_client(self) -> _Client:
        if self._client is not None and self._client.is_dead:
            closing = runtime.spawn(self._client.close(), name="kafka producer closing")
            self._closing.append(closing)
            closing.add_done_callback(self._closing.remove)
            self._client = None
        if self._client is None:
            self._client = _Client(Producer(self._settings(self._trouble.note)))
        return self._client


class _Client:
    """A producer, and who waits for its answers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: dict[asyncio.Future[int | None], None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False
        self.is_dead = False

    def send(
        self, topic: str, partition: int, payload: bytes, headers: Headers
    ) -> asyncio.Future[int | None]:
        """Hand an event to the client; its offset once the broker has answered."""
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
        """Give up what is under way, and let go of the client."""
        self._producer.purge()
        if self._serving is not None:
            await asyncio.wait([self._serving])
        await runtime.run_blocking(self._producer.close)

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await runtime.run_blocking(self._take_answers)
        except asyncio.CancelledError:
            # The event loop ends: a thread that went on would hold up the end of the process.
            self._stopped = True
            raise
        finally:
            self._serving = None

    def _take_answers(self) -> None:
        """On a thread: until everything that was sent is answered, which has a time limit."""
        while len(self._producer) and not self._stopped:
            try:
                self._producer.poll(POLL_S)
            except KafkaException:
                # It lost its place in its sequence, or its right to one: it sends nothing any
                # more. Each publisher that waits gets an error: not sent, or perhaps landed.
                self.is_dead = True
                self._producer.purge()

    def _settle(
        self, landed: asyncio.Future[int | None], error: KafkaError | None, offset: int | None
    ) -> None:
        self._waiting.pop(landed, None)
        if landed.done():
            return  # The publisher has stopped waiting.
        if error is not None:
            landed.set_exception(KafkaException(error))
        else:
            landed.set_result(offset)
