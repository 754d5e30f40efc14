"""Frames to scan, and what a scan found in them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from headwater.core.frame import Scan, encode_frame

SALT = b"of this file"
SOME_PAYLOADS = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


def build(
    payloads: list[bytes],
    *,
    synced: Callable[[int], int] = lambda number: 0,
    salt: bytes = SALT,
) -> tuple[bytes, list[int]]:
    """A file of frames 1, 2, …, and the offset at which each ends, from 0 on."""
    data, ends = b"", [0]
    for number, payload in enumerate(payloads, start=1):
        data += encode_frame(
            payload, number=number, synced=synced(number), offset=len(data), salt=salt
        )
        ends.append(len(data))
    return data, ends


def payloads_of(found: Scan) -> list[bytes]:
    return [bytes(frame.payload) for frame in found.frames]


def before(number: int) -> int:
    """Every frame is written after all those before it were synced."""
    return number - 1
