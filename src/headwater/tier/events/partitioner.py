"""Which metadata partition the events of a partition go to: the one that Kafka would choose."""

from __future__ import annotations

import functools
from struct import Struct
from typing import Final

from headwater.buffer.murmur2 import partition_for_key
from headwater.tier.identity import TopicIdPartition

METADATA_PARTITIONS: Final = 50
"""Kafka's default for `remote.log.metadata.topic.num.partitions`."""

_KEY: Final = Struct(">I")
_U32: Final = 0xFFFFFFFF
_U64: Final = 0xFFFFFFFFFFFFFFFF


# Asked for every event and every question, nearly always about the same few partitions.
@functools.lru_cache(maxsize=4096)
def metadata_partition_for(partition: TopicIdPartition, partitions: int) -> int:
    """The metadata partition, out of so many: murmur2 of Java's hash of topic id and partition."""
    number = partition.topic_id.int
    low, high = _java_hash(number & _U64), _java_hash(number >> 64)
    hashed = 31 * (31 * (31 + low) + high) + partition.partition
    return partition_for_key(_KEY.pack(hashed & _U32), partitions)


def _java_hash(value: int) -> int:
    return (value ^ (value >> 32)) & _U32
