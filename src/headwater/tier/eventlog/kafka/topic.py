"""The topic: found, or created as brokers create theirs, and asked where its partitions end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from headwater.core import RetryPolicy, runtime
from headwater.core.errors import HeadwaterError, NotFound, NotSupported, Refused, Unavailable
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.kafka.faults import error_of, fault

LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
REQUEST_TIMEOUT_S: Final = 10.0
MARKS_TIMEOUT_S: Final = 5.0
APPEARING: Final = RetryPolicy(attempts=50, deadline_s=30.0, base_s=0.05, cap_s=1.0)
"""How long a topic that was created may take until its brokers know of it."""

MOVING: Final = RetryPolicy(attempts=5, deadline_s=MARKS_TIMEOUT_S, base_s=0.05, cap_s=0.5)
"""How long a leader is looked for before its partition counts as unknown."""


@dataclass(frozen=True, slots=True)
class NewTopicWish:
    """How to create the topic if it is not there."""

    partition_count: int
    replication_factor: int

    def config(self) -> dict[str, str]:
        """Kept for ever and uncompacted, as brokers keep theirs; acknowledged by two replicas."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(min(2, self.replication_factor)),
        }


class Topic:
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
        # All topics are asked for: to ask for one by its name may create it.
        try:
            known = await runtime.run_blocking(
                lambda: self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            )
        except KafkaException as error:
            raise fault("the brokers do not say which topics there are", error_of(error)) from error
        return len(known[self.name].partitions) or None if self.name in known else None

    async def create(self, wish: NewTopicWish) -> None:
        """Create it, unless somebody else was faster, and wait until the brokers know of it."""
        new = NewTopic(
            self.name,
            num_partitions=wish.partition_count,
            replication_factor=wish.replication_factor,
            config=wish.config(),
        )
        asked = self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
        try:
            await asyncio.wrap_future(asked[self.name])
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise fault(f"the topic {self.name} cannot be created", error_of(error)) from error
        budget = APPEARING.start()
        while await self.count_partitions() is None:
            if not await budget.pause():
                raise Unavailable(f"the topic {self.name} was created and does not appear")

    async def ask_id(self) -> uuid.UUID:
        """The id that the brokers gave it; made anew, it has another."""
        asked = self._admin.describe_topics(
            TopicCollection([self.name]), request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            described = await asyncio.wrap_future(asked[self.name])
        except KafkaException as error:
            raise fault(f"the brokers do not describe {self.name}", error_of(error)) from error
        told = read_id(described.topic_id)
        if told.int == 0:
            raise NotSupported(
                f"the brokers give {self.name} no id, which older ones do not: pass a log_id, and "
                "another one whenever the topic is made anew"
            )
        return told

    async def end_offsets(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """One past the last offset of each partition whose leader answers.

        Each is asked for by itself: a partition without a leader holds up no other's answer. What
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
                    told = [error for error in await asyncio.gather(*asking) if error is not None]
                    if not told:
                        return ends
                    failed = told[0]
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
        asked: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            {where: LATEST}, request_timeout=MARKS_TIMEOUT_S
        )
        try:
            told = await asyncio.wrap_future(asked[where])
        except KafkaException as error:
            raise fault(what, error_of(error)) from error
        offset: int = told.offset
        if offset < 0:
            raise Unavailable(f"{what}: its leader does not say")
        return offset


def read_id(topic_id: Any) -> uuid.UUID:
    """An id of the client's, which has two signed halves, as any other."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return uuid.UUID(bytes=b"".join(half.to_bytes(8, "big", signed=True) for half in halves))


async def find_topic(topic: Topic, asked_count: int | None, wish: NewTopicWish | None) -> int:
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
