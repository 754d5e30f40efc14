"""CRC-32 of two stretches of bytes from that of each.

A frame's checksum covers its head first, and the head is known only when the frame has its place
in the file. The body, which may have megabytes, is summed before that, outside of any lock.
"""

from __future__ import annotations

import functools
import zlib
from typing import Final

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""The polynomial 1, as bits in CRC-32 stand the other way round."""
DIRECT_BYTES: Final = 8192
"""Up to so many bytes, going over them again is cheaper."""


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC-32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _after(bytes_log2: int) -> tuple[tuple[int, ...], ...]:
    """What 2^`bytes_log2` further bytes do to a checksum, for each value of each of its bytes."""
    power = _ONE >> 8
    for _ in range(bytes_log2):
        power = _times(power, power)
    bits = [_times(power, 1 << bit) for bit in range(32)]
    tables = []
    for lowest in range(0, 32, 8):
        table = [0]
        for bit in range(lowest, lowest + 8):
            table += [value ^ bits[bit] for value in table]
        tables.append(tuple(table))
    return tuple(tables)


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two stretches, of which the second has `second_bytes`."""
    for bytes_log2 in range(second_bytes.bit_length()):
        if second_bytes >> bytes_log2 & 1:
            a, b, c, d = _after(bytes_log2)
            first = a[first & 255] ^ b[first >> 8 & 255] ^ c[first >> 16 & 255] ^ d[first >> 24]
    return first ^ second


def crc32_after(first: int, body: memoryview, body_crc: int) -> int:
    """The CRC-32 of `body` after bytes that have `first`."""
    if len(body) <= DIRECT_BYTES:
        return zlib.crc32(body, first)
    return combine(first, body_crc, len(body))
