"""Which metadata partition an event goes to."""

from __future__ import annotations

import uuid

import pytest

from headwater.core.errors import Refused
from headwater.tier import TopicIdPartition, metadata_partition_for


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"), [(0xCA, 7, 31), (0x1, 0, 35), (0x1, 1, 6)]
)
def test_it_is_the_one_that_kafka_chooses(topic_id: int, partition: int, expected: int) -> None:
    place = TopicIdPartition(uuid.UUID(int=topic_id), "orders", partition)
    assert metadata_partition_for(place, 50) == expected


def test_the_upper_half_of_the_id_counts_and_the_name_does_not() -> None:
    low, high = uuid.UUID(int=1), uuid.UUID(int=1 | 5 << 64)
    chosen = [metadata_partition_for(TopicIdPartition(one, "a", 0), 2**20) for one in (low, high)]
    assert chosen[0] != chosen[1]
    assert metadata_partition_for(TopicIdPartition(low, "b", 0), 2**20) == chosen[0]


def test_every_number_is_in_range() -> None:
    top = uuid.UUID(int=2**128 - 1)
    for partition in (0, 1, 2**31 - 1):
        for count in (1, 2, 50):
            found = metadata_partition_for(TopicIdPartition(top, "a", partition), count)
            assert 0 <= found < count


def test_there_is_at_least_one_partition() -> None:
    with pytest.raises(Refused):
        metadata_partition_for(TopicIdPartition(uuid.UUID(int=1), "a", 0), 0)
