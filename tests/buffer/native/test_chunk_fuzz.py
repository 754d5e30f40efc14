"""Damage under a checksum that fits: only the documented errors escape, and memory is bounded."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.queue.native.chunk import (
    MAGIC,
    Chunk,
    ProducerIncarnation,
    decode_chunk,
    first_chunk,
)
from headwater.core.errors import Corrupt, NotSupported
from headwater.core.limits import MIB
from headwater.core.runtime import encode_ulid
from tests.buffer.native.given import batch


def _sealed(body: bytes) -> bytes:
    """A body with a head and a checksum that fit: what a hand that knows the format would write."""
    data = struct.pack("<4sI", MAGIC, len(body)) + body
    return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def _body() -> bytes:
    group = [
        batch(n, batch_id=encode_ulid(n), rows=n, metadata=b"m", inline=b"x") for n in (1, 2, 3)
    ]
    owner = ProducerIncarnation("größe", "1")
    chunk = first_chunk("queue").written(bytes(16), owner=owner, batches=group, opened=[owner])
    return msgspec.msgpack.encode(chunk)


BODY = _body()


def _decoded(data: bytes) -> Chunk | None:
    """What was read, if anything was; whatever else than the documented errors comes up fails."""
    tracemalloc.start()
    try:
        return decode_chunk(data, queue_id=None, number=None)
    except (Corrupt, NotSupported):
        return None
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 4 * len(data) + MIB


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), min_size=1))
def test_of_changed_bytes_only_documented_errors_escape(changes: list[tuple[int, int]]) -> None:
    body = bytearray(BODY)
    for place, value in changes:
        body[place] = value
    found = _decoded(_sealed(bytes(body)))
    if found is not None:
        assert len(found.places()) == len(found.entries)
        assert found.next_sequence == found.first_sequence + len(found.entries)


@settings(max_examples=150)
@given(st.integers(0, len(BODY)), st.binary(max_size=64))
def test_of_a_body_that_is_cut_and_goes_on_otherwise_likewise(length: int, rest: bytes) -> None:
    _decoded(_sealed(BODY[:length] + rest))


def test_every_byte_set_to_every_value_likewise() -> None:
    for place in range(len(BODY)):
        for value in (0x00, 0x7F, 0x80, 0x90, 0xA1, 0xC1, 0xC4, 0xDD, 0xDF, 0xFF):
            _decoded(_sealed(BODY[:place] + bytes([value]) + BODY[place + 1 :]))


def test_text_that_is_none_is_refused() -> None:
    with pytest.raises(Corrupt, match="does not parse"):
        decode_chunk(_sealed(BODY.replace(b"queue", b"q\xffeue")), queue_id=None, number=None)


def test_nesting_without_end_is_refused() -> None:
    # A field after the last one is passed over by whoever does not know it.
    later = bytes([BODY[0] + 1]) + BODY[1:]
    with pytest.raises(Corrupt, match="does not parse"):
        decode_chunk(_sealed(later + b"\x91" * 100_000 + b"\xc0"), queue_id=None, number=None)
    known = decode_chunk(_sealed(later + b"\xa5later"), queue_id="queue", number=1)
    assert known == decode_chunk(_sealed(BODY), queue_id="queue", number=1)
