"""Which partition a key belongs to: the one Kafka's Java client would choose.

Kafka hashes a key with murmur2 under a fixed seed, clears the sign and takes the remainder by the
number of partitions. Keys that a Kafka user knows to share a partition share it here, too.

`partition_keys` hashes keys side by side, sorted by length: each step of murmur2 is one Arrow
kernel over all the keys that have a word left, and those that have none drop off at the front. When
few keys are left, they are not worth a dozen kernels a word and go on one by one.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import Refused

NO_PARTITION: Final = -1
"""In the place of a null key: the caller chooses, round robin."""

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_ROTATE: Final = 24
_U32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_WORD_BYTES: Final = 4

# Rows hashed at a time: the columns of one step stay in the processor's cache.
_STRIDE_ROWS: Final = 32_768
# With fewer keys than this, one by one is faster.
_LEAST_ROWS: Final = 64


def murmur2(key: bytes) -> int:
    """Kafka's murmur2 of the key: a signed 32-bit number, as in Java."""
    hashed = _murmur2(key)
    return hashed - (1 << 32) if hashed > _POSITIVE else hashed


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of this key, out of `partitions`."""
    _check_partitions(partitions)
    return (_murmur2(key) & _POSITIVE) % partitions


def partition_keys(keys: pa.BinaryArray, partitions: int) -> pa.Int32Array:
    """The partition of every key, and -1 for a null."""
    _check_partitions(partitions)
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    parts = [
        _partition_stride(keys.slice(start, _STRIDE_ROWS), partitions)
        for start in range(0, len(keys), _STRIDE_ROWS)
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.int32())


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= _POSITIVE:
        raise Refused(f"{partitions:,} partitions: a stream has 1 to {_POSITIVE:,}")


def _murmur2(key: bytes) -> int:
    hashed = _before_last_mix(key)
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _U32
    return hashed ^ hashed >> 15


def _before_last_mix(key: bytes) -> int:
    words = len(key) // _WORD_BYTES
    hashed = _SEED ^ len(key)
    for word in struct.unpack_from(f"<{words}I", key):
        mixed = word * _MULTIPLIER & _U32
        mixed = (mixed ^ mixed >> _ROTATE) * _MULTIPLIER & _U32
        hashed = (hashed * _MULTIPLIER & _U32) ^ mixed
    rest = key[words * _WORD_BYTES :]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _U32
    return hashed


def _partition_stride(keys: pa.BinaryArray, partitions: int) -> pa.Int32Array:
    lengths = pc.binary_length(keys)
    counts = {pair["values"]: pair["counts"] for pair in pc.value_counts(lengths).to_pylist()}
    if len(counts) == 1 and None not in counts:
        return _reduced(_hash_sorted(keys, lengths, counts), partitions)
    nulls = counts.pop(None, 0)
    # Nulls sort last.
    order = pc.sort_indices(lengths)
    known = order.slice(0, len(keys) - nulls)
    hashed = _hash_sorted(keys.take(known), lengths.take(known), counts)
    missing = pa.repeat(pa.scalar(NO_PARTITION, pa.int32()), nulls)
    # Sorting the order gives its inverse, which brings back the order of the rows.
    chosen = pa.concat_arrays([_reduced(hashed, partitions), missing])
    return chosen.take(pc.sort_indices(order))


def _hash_sorted(
    keys: pa.BinaryArray, lengths: pa.Int32Array, counts: dict[int, int]
) -> pa.UInt32Array:
    """The murmur2 of keys in rising order of length; `counts` says how many have which length."""
    hashed = pc.bit_wise_xor(lengths.cast(pa.uint32()), _scalar(_SEED))
    # With zeros behind it, the rest of a key is a whole word, and the number is the same.
    padded = keys
    if any(length % _WORD_BYTES for length in counts):
        padded = pc.binary_join_element_wise(keys, bytes(_WORD_BYTES - 1), b"")
    done: list[pa.UInt32Array] = []
    start = 0
    while len(hashed) >= _LEAST_ROWS:
        ended = counts.get(start, 0)
        ending = sum(counts.get(start + rest, 0) for rest in range(1, _WORD_BYTES))
        if ending:
            last = _words(padded.slice(ended, ending), start)
            mixed = _multiplied(pc.bit_wise_xor(hashed.slice(ended, ending), last))
            done += [hashed.slice(0, ended), mixed]
        elif ended:
            done.append(hashed.slice(0, ended))
        padded, hashed = padded.slice(ended + ending), hashed.slice(ended + ending)
        if len(hashed):
            mixed = _multiplied(_words(padded, start))
            mixed = _multiplied(_xor_shifted(mixed, _ROTATE))
            hashed = pc.bit_wise_xor(_multiplied(hashed), mixed)
        start += _WORD_BYTES
    few = keys.slice(len(keys) - len(hashed)).to_pylist()
    done.append(pa.array(map(_before_last_mix, few), pa.uint32()))
    hashed = _xor_shifted(pa.concat_arrays(done), 13)
    return _xor_shifted(_multiplied(hashed), 15)


def _words(keys: pa.BinaryArray, start: int) -> pa.UInt32Array:
    """The four bytes of every key from `start` on as a little-endian number."""
    taken = pc.binary_slice(keys, start, start + _WORD_BYTES)
    return pa.Array.from_buffers(pa.uint32(), len(keys), [None, taken.buffers()[2]])


def _xor_shifted(values: pa.UInt32Array, bits: int) -> pa.UInt32Array:
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(bits)))


def _multiplied(values: pa.UInt32Array) -> pa.UInt32Array:
    return pc.multiply(values, _scalar(_MULTIPLIER))


def _reduced(hashed: pa.UInt32Array, partitions: int) -> pa.Int32Array:
    positive = pc.bit_wise_and(hashed, _scalar(_POSITIVE))
    size = _scalar(partitions)
    whole = pc.multiply(pc.divide(positive, size), size)
    return pc.subtract(positive, whole).cast(pa.int32())


def _scalar(value: int) -> pa.UInt32Scalar:
    return pa.scalar(value, pa.uint32())
