"""Records of the topic: the event is the value, and the publisher's epoch a header beside it.

Kafka's own readers pass over headers that they do not know, and Kafka's own writers have none.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from confluent_kafka import KafkaError, Message

from headwater.core.errors import Corrupt
from headwater.tier.eventlog.items import (
    EventDelivered,
    EventUnreadable,
    PartitionFailed,
    PositionReached,
)
from headwater.tier.events import check_epoch

Happening: TypeAlias = EventDelivered | EventUnreadable | PartitionFailed | PositionReached
"""What there is to tell of a topic, which has no snapshots."""

EPOCH_HEADER: Final = "headwater-publisher-epoch"
EPOCH_BYTES: Final = 8

UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError.INVALID_MSG,
    }
)
"""A batch of records that does not match its checksum or cannot be unpacked."""


def epoch_headers(publisher_epoch: int | None) -> list[tuple[str, bytes]]:
    """What travels beside an event."""
    if publisher_epoch is None:
        return []
    check_epoch(publisher_epoch)
    return [(EPOCH_HEADER, publisher_epoch.to_bytes(EPOCH_BYTES, "big"))]


def read_record(partition: int, offset: int, message: Message) -> EventDelivered | EventUnreadable:
    """A record as whoever follows sees it."""
    payload = message.value()
    if payload is None:
        return _unreadable(partition, offset, "has no value, and an event is never none")
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    epochs = [value for name, value in pairs if name == EPOCH_HEADER]
    if not epochs:
        return EventDelivered(partition, offset, payload)
    # To pass over an epoch that cannot be read would let an event count whose leader is over.
    if len(epochs) > 1 or not isinstance(epochs[0], bytes) or len(epochs[0]) != EPOCH_BYTES:
        wrong = f"{EPOCH_HEADER} is not one number of {EPOCH_BYTES} bytes"
        return _unreadable(partition, offset, wrong)
    return EventDelivered(partition, offset, payload, int.from_bytes(epochs[0], "big"))


def _unreadable(partition: int, offset: int, why: str) -> EventUnreadable:
    error = Corrupt(f"the record at {offset} of metadata partition {partition}: {why}")
    return EventUnreadable(partition, offset, error)
