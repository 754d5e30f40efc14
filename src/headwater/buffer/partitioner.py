"""The partitions of a column of keys, with the same hash as `murmur2`.

`partition_keys` hashes keys together, sorted by length: each step of murmur2 is one Arrow kernel
over all keys that have a word left; finished keys are at the front. The last few keys are hashed
one by one, because they are not worth a dozen kernels per word.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.murmur2 import (
    MULTIPLIER,
    POSITIVE,
    ROTATE,
    SEED,
    WORD_BYTES,
    before_last_mix,
    check_partitions,
)

NO_PARTITION: Final = -1
"""The result for a null key: the caller chooses the partition."""

# Rows hashed at a time, so that the columns of one step stay in the processor's cache.
_STRIDE_ROWS: Final = 32_768
# With fewer keys than this, one by one is faster.
_LEAST_ROWS: Final = 64


def partition_keys(keys: pa.BinaryArray, partitions: int) -> pa.Int32Array:
    """The partition of every key, and -1 for a null."""
    check_partitions(partitions)
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    parts = [
        _partition_stride(keys.slice(start, _STRIDE_ROWS), partitions)
        for start in range(0, len(keys), _STRIDE_ROWS)
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.int32())


def _partition_stride(keys: pa.BinaryArray, partitions: int) -> pa.Int32Array:
    lengths = pc.binary_length(keys)
    counts = {pair["values"]: pair["counts"] for pair in pc.value_counts(lengths).to_pylist()}
    if len(counts) == 1 and None not in counts:
        return _reduced(_hash_sorted(keys, lengths, counts), partitions)
    nulls = counts.pop(None, 0)
    # Nulls sort last.
    order = pc.sort_indices(lengths)
    present = order.slice(0, len(keys) - nulls)
    hashed = _hash_sorted(keys.take(present), lengths.take(present), counts)
    missing = pa.repeat(pa.scalar(NO_PARTITION, pa.int32()), nulls)
    # Sorting the order gives its inverse, which brings back the order of the rows.
    chosen = pa.concat_arrays([_reduced(hashed, partitions), missing])
    return chosen.take(pc.sort_indices(order))


def _hash_sorted(
    keys: pa.BinaryArray, lengths: pa.Int32Array, counts: dict[int, int]
) -> pa.UInt32Array:
    """The murmur2 of keys sorted by length; `counts` has the number of keys per length.

    For example the keys "a", "bcd", "efgh", "ijklm", if few keys were not hashed one by one:

    - `start` 0: no key ends at 0. "a" and "bcd" end within this word: their last, padded word is
      mixed in, and they are done. "efgh" and "ijklm" have the whole word: it is mixed in.
    - `start` 4: "efgh" ended at 4: it is done as it is. "ijklm" ends within this word: as above.

    Keys are done in the order of their lengths, so `done` has the order of `keys`.
    """
    hashed = pc.bit_wise_xor(lengths.cast(pa.uint32()), _scalar(SEED))
    # Padded with zeros, the rest of a key is a whole word with the same value.
    padded = keys
    if any(length % WORD_BYTES for length in counts):
        padded = pc.binary_join_element_wise(keys, bytes(WORD_BYTES - 1), b"")
    done: list[pa.UInt32Array] = []
    start = 0
    while len(hashed) >= _LEAST_ROWS:
        ended = counts.get(start, 0)
        ending = sum(counts.get(start + rest, 0) for rest in range(1, WORD_BYTES))
        if ending:
            last = _words(padded.slice(ended, ending), start)
            mixed = _multiplied(pc.bit_wise_xor(hashed.slice(ended, ending), last))
            done += [hashed.slice(0, ended), mixed]
        elif ended:
            done.append(hashed.slice(0, ended))
        padded, hashed = padded.slice(ended + ending), hashed.slice(ended + ending)
        if len(hashed):
            mixed = _multiplied(_words(padded, start))
            mixed = _multiplied(_xor_shifted(mixed, ROTATE))
            hashed = pc.bit_wise_xor(_multiplied(hashed), mixed)
        start += WORD_BYTES
    few = keys.slice(len(keys) - len(hashed)).to_pylist()
    done.append(pa.array(map(before_last_mix, few), pa.uint32()))
    hashed = _xor_shifted(pa.concat_arrays(done), 13)
    return _xor_shifted(_multiplied(hashed), 15)


def _words(keys: pa.BinaryArray, start: int) -> pa.UInt32Array:
    """The four bytes of every key from `start` on as a little-endian number."""
    taken = pc.binary_slice(keys, start, start + WORD_BYTES)
    return pa.Array.from_buffers(pa.uint32(), len(keys), [None, taken.buffers()[2]])


def _xor_shifted(values: pa.UInt32Array, bits: int) -> pa.UInt32Array:
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(bits)))


def _multiplied(values: pa.UInt32Array) -> pa.UInt32Array:
    return pc.multiply(values, _scalar(MULTIPLIER))


def _reduced(hashed: pa.UInt32Array, partitions: int) -> pa.Int32Array:
    positive = pc.bit_wise_and(hashed, _scalar(POSITIVE))
    size = _scalar(partitions)
    whole = pc.multiply(pc.divide(positive, size), size)
    return pc.subtract(positive, whole).cast(pa.int32())


def _scalar(value: int) -> pa.UInt32Scalar:
    return pa.scalar(value, pa.uint32())
