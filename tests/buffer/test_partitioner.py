"""The partitioner: where Kafka's Java client would put a key, one by one and in bulk."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer import partitioner
from headwater.buffer.murmur2 import murmur2, partition_for_key
from headwater.buffer.partitioner import partition_keys
from headwater.core.errors import Refused

KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From Kafka's own test of its murmur2, which has signed numbers."""

KEYS = st.lists(st.none() | st.binary(max_size=30), max_size=200)


@pytest.mark.parametrize("key", KAFKA)
def test_a_key_has_the_hash_that_kafka_gives_it(key: bytes) -> None:
    assert murmur2(key) == KAFKA[key] % 2**32


def test_a_partition_is_the_remainder_of_the_positive_hash() -> None:
    # -973932308 without its sign bit is 1173551340.
    assert partition_for_key(b"21", 1000) == 340
    assert partition_for_key(b"abc", 1000) == 107
    assert partition_for_key(b"abc", 1) == 0
    assert partition_for_key(b"", 7) == (murmur2(b"") & 0x7FFFFFFF) % 7


@given(key=st.binary(max_size=80), partitions=st.integers(1, 2**31 - 1))
def test_a_partition_is_always_one_of_them(key: bytes, partitions: int) -> None:
    assert 0 <= murmur2(key) < 2**32
    assert 0 <= partition_for_key(key, partitions) < partitions


def one_by_one(keys: list[bytes | None], partitions: int) -> list[int]:
    return [-1 if key is None else partition_for_key(key, partitions) for key in keys]


@given(
    keys=KEYS,
    partitions=st.sampled_from([1, 2, 12, 1000, 2**31 - 1]),
    least=st.integers(1, 5),
    stride=st.integers(1, 300),
)
def test_in_bulk_is_as_one_by_one(
    keys: list[bytes | None], partitions: int, least: int, stride: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioner, "_LEAST_ROWS", least)
        patch.setattr(partitioner, "_STRIDE_ROWS", stride)

        found = partition_keys(pa.array(keys, pa.binary()), partitions)

    assert found.type == pa.int32()
    assert found.to_pylist() == one_by_one(keys, partitions)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 8, 16, 35, 300])
def test_many_keys_of_one_length(length: int) -> None:
    keys: list[bytes | None] = [(b"%09d" % (index * 7919) * 40)[:length] for index in range(2000)]

    assert partition_keys(pa.array(keys, pa.binary()), 12).to_pylist() == one_by_one(keys, 12)


def test_many_keys_of_many_lengths() -> None:
    keys: list[bytes | None] = [
        None if index % 11 == 0 else b"%d" % index**5 * (index % 9) for index in range(40_000)
    ]

    assert partition_keys(pa.array(keys, pa.binary()), 12).to_pylist() == one_by_one(keys, 12)


@pytest.mark.parametrize("keys", [[], [None], [None] * 100, [b""] * 100])
def test_keys_without_a_byte(keys: list[bytes | None]) -> None:
    assert partition_keys(pa.array(keys, pa.binary()), 3).to_pylist() == one_by_one(keys, 3)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string()])
def test_a_part_of_an_array_is_hashed_as_what_it_shows(kind: pa.DataType) -> None:
    texts = [f"user-{index}" for index in range(300)]
    keys = pa.array(texts, kind).slice(10, 250)

    found = partition_keys(keys, 12)

    assert found.to_pylist() == one_by_one([text.encode() for text in texts[10:260]], 12)


@pytest.mark.parametrize("partitions", [0, -1, 2**31])
def test_there_are_partitions_to_choose_from(partitions: int) -> None:
    with pytest.raises(Refused, match="partitions"):
        partition_for_key(b"key", partitions)
    with pytest.raises(Refused, match="partitions"):
        partition_keys(pa.array([b"key"]), partitions)
