"""The partition of one key, as Kafka's Java client chooses it.

Kafka hashes a key with murmur2 and a fixed seed, clears the sign and takes the remainder by the
number of partitions. Keys that share a partition in Kafka share it here, too.

`partitioner` does the same for columns of keys. This module does not import Arrow, because the
commands that only compute the metadata partition of an event should not load it.
"""

from __future__ import annotations

import struct
from typing import Final

from headwater.core.errors import Refused

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
ROTATE: Final = 24
POSITIVE: Final = 0x7FFFFFFF
WORD_BYTES: Final = 4
_U32: Final = 0xFFFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of this key, out of `partitions`."""
    check_partitions(partitions)
    return (murmur2(key) & POSITIVE) % partitions


def check_partitions(partitions: int) -> None:
    """Refuse an invalid number of partitions."""
    if not 1 <= partitions <= POSITIVE:
        raise Refused(f"{partitions:,} partitions: a stream has 1 to {POSITIVE:,}")


def before_last_mix(key: bytes) -> int:
    """The hash of all words of a key, before the final mix."""
    words = len(key) // WORD_BYTES
    hashed = SEED ^ len(key)
    for word in struct.unpack_from(f"<{words}I", key):
        mixed = word * MULTIPLIER & _U32
        mixed = (mixed ^ mixed >> ROTATE) * MULTIPLIER & _U32
        hashed = (hashed * MULTIPLIER & _U32) ^ mixed
    rest = key[words * WORD_BYTES :]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * MULTIPLIER & _U32
    return hashed


def murmur2(key: bytes) -> int:
    """Kafka's murmur2 of the key, as an unsigned number of 32 bits."""
    hashed = before_last_mix(key)
    hashed = (hashed ^ hashed >> 13) * MULTIPLIER & _U32
    return hashed ^ hashed >> 15
