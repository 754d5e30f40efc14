"""A chunk reads back as it was written, and whatever else is there is refused by name."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.queue.native.chunk import (
    MAGIC,
    OVERHEAD_BYTES,
    Chunk,
    ChunkEntry,
    LatestTimes,
    ProducerIncarnation,
    check_producer_sequences,
    decode_chunk,
    encode_chunk,
    first_chunk,
)
from headwater.core import limits
from headwater.core.errors import Bug, Corrupt, HeadwaterError, LimitExceeded, NotSupported
from headwater.core.runtime import encode_ulid
from tests.buffer.native.given import AT_MS, batch

TOKEN = b"t" * 16
ME = ProducerIncarnation("me", "1")
counts = st.integers(0, 2**40)
times = st.integers(-(2**63), 2**63 - 1)
ulids = st.integers(0, 2**128 - 1).map(encode_ulid)


def sealed(body: bytes, *, magic: bytes = MAGIC) -> bytes:
    """A body with a head and a checksum that fit it."""
    data = struct.pack("<4sI", magic, len(body)) + body
    return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def a_chunk(*, batches: int = 3) -> Chunk:
    """A chunk of two producers, some of whose batches ride in it."""
    chunk = first_chunk("q1").written(TOKEN, opened=[ProducerIncarnation("other", "2")])
    for sequence in range(1, batches + 1):
        group = [
            batch(
                sequence,
                batch_id=encode_ulid(sequence),
                rows=sequence,
                metadata=b"m" * sequence,
                inline=b"x" if sequence % 2 else None,
            )
        ]
        chunk = chunk.written(TOKEN, owner=ME, batches=group)
        chunk = chunk.written(TOKEN, owner=ProducerIncarnation("other", "2"), batches=group)
    return chunk


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    owners = tuple(
        draw(st.lists(st.builds(ProducerIncarnation, st.text(), st.text()), min_size=1, max_size=4))
    )
    last = [0] * len(owners)
    entries = []
    for _ in range(draw(st.integers(0, 6))):
        owner = draw(st.integers(0, len(owners) - 1))
        last[owner] += draw(st.integers(1, 5))
        timestamps: tuple[int | None, int | None] = draw(
            st.just((None, None)) | st.tuples(times, times)
        )
        entries.append(
            ChunkEntry(
                owner,
                draw(st.binary(min_size=16, max_size=16)),
                draw(counts),
                draw(counts),
                draw(times),
                draw(times),
                timestamps[0],
                timestamps[1],
                last[owner],
                draw(st.integers(0, 100)),
                draw(st.none() | st.binary(max_size=20)),
                draw(st.none() | st.binary(max_size=20)),
            )
        )
    number = draw(counts)
    newest = st.builds(LatestTimes, st.none() | times, st.none() | times)
    return Chunk(
        queue_id=draw(st.text()),
        number=number,
        token=draw(st.binary(min_size=16, max_size=16)),
        closed=draw(st.booleans()),
        first_sequence=draw(counts),
        first_lsn=draw(counts),
        bytes_before=draw(counts),
        newest_before=tuple(draw(newest) for _ in range(number.bit_count())),
        batch_floor=draw(ulids),
        openings=draw(counts),
        recent_openings=tuple(
            draw(st.lists(st.builds(ProducerIncarnation, st.text(), st.text()), max_size=4))
        ),
        owners=owners,
        entries=tuple(entries),
        schema_floor=draw(st.integers(0, 100)),
    )


@given(chunks())
def test_reads_back_as_it_was_written(chunk: Chunk) -> None:
    assert decode_chunk(encode_chunk(chunk), queue_id=chunk.queue_id, number=chunk.number) == chunk
    assert decode_chunk(memoryview(encode_chunk(chunk)), queue_id=None, number=None) == chunk


def test_every_flipped_bit_is_noticed() -> None:
    data = bytearray(encode_chunk(a_chunk()))
    for position in range(len(data) * 8):
        data[position // 8] ^= 1 << position % 8
        with pytest.raises((Corrupt, NotSupported)):
            decode_chunk(bytes(data), queue_id="q1", number=1)
        data[position // 8] ^= 1 << position % 8
    assert decode_chunk(bytes(data), queue_id="q1", number=1) == a_chunk()


def test_every_truncation_and_every_addition_is_noticed() -> None:
    data = encode_chunk(a_chunk())
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_chunk(data[:length], queue_id="q1", number=1)
    with pytest.raises(Corrupt):
        decode_chunk(data + b"\0", queue_id="q1", number=1)


def test_a_chunk_of_another_queue_or_number_is_refused() -> None:
    data = encode_chunk(a_chunk())
    with pytest.raises(Corrupt, match="of queue q1, not q2"):
        decode_chunk(data, queue_id="q2", number=1)
    with pytest.raises(Corrupt, match="chunk 1, not 2"):
        decode_chunk(data, queue_id="q1", number=2)


def test_a_later_format_says_what_to_do() -> None:
    later = sealed(msgspec.msgpack.encode(a_chunk()), magic=b"HWC3")
    with pytest.raises(NotSupported, match="Upgrade"):
        decode_chunk(later, queue_id="q1", number=1)
    with pytest.raises(Corrupt, match="not a chunk"):
        decode_chunk(sealed(b"", magic=b"PAR1"), queue_id="q1", number=1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"owner": 2}, "producer's order"),
        ({"owner": -1}, "producer's order"),
        ({"producer_sequence": 0}, "producer's order"),
        ({"rows": -1}, "impossible"),
        ({"size_bytes": -1}, "impossible"),
        ({"batch": b"short"}, "impossible"),
        ({"min_timestamp_us": 5}, "impossible"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(changes: dict[str, object], says: str) -> None:
    chunk = a_chunk()
    odd = msgspec.structs.replace(chunk.entries[0], **changes)
    data = encode_chunk(msgspec.structs.replace(chunk, entries=(odd, *chunk.entries[1:])))
    with pytest.raises(Corrupt, match=says):
        decode_chunk(data, queue_id="q1", number=1)


def test_a_producer_that_goes_back_within_a_chunk_is_refused() -> None:
    chunk = a_chunk()
    twice = msgspec.structs.replace(chunk, entries=(*chunk.entries, chunk.entries[0]))
    with pytest.raises(Corrupt, match="producer's order"):
        decode_chunk(encode_chunk(twice), queue_id="q1", number=1)


@given(st.binary(max_size=300))
def test_of_arbitrary_bytes_only_documented_errors_escape(data: bytes) -> None:
    for bytes_ in (data, sealed(data)):
        with pytest.raises(HeadwaterError):
            decode_chunk(bytes_, queue_id=None, number=None)


@given(st.data())
@settings(max_examples=300)
def test_of_a_chunk_with_odd_fields_only_documented_errors_escape(data: st.DataObject) -> None:
    fields = msgspec.to_builtins(a_chunk(), builtin_types=(bytes,))
    odd: st.SearchStrategy[object] = st.one_of(
        st.none(),
        st.integers(-(2**63), 2**64 - 1),
        st.binary(max_size=20),
        st.text(),
        st.lists(st.none() | st.integers(-5, 5) | st.lists(st.integers(-5, 5)), max_size=4),
    )
    position = data.draw(st.integers(0, len(fields) - 1))
    fields[position] = data.draw(odd)
    body = msgspec.msgpack.encode(fields)
    with contextlib.suppress(HeadwaterError):
        decode_chunk(sealed(body), queue_id=None, number=None)


def test_memory_is_bounded_by_what_was_read() -> None:
    # As many of the smallest things as fit, in each list: none may be taken for what it is not.
    fields = msgspec.to_builtins(a_chunk(batches=1), builtin_types=(bytes,))
    entry = [0, b"", 0, 0, 0, 0, None, None, 1, 0]
    for position, one in ((-1, entry), (-2, ["", ""]), (-3, ["", ""])):
        many = list(fields)
        many[position] = [one] * (limits.CHUNK_MAX_BYTES // (3 * len(one)))
        data = sealed(msgspec.msgpack.encode(many))
        tracemalloc.start()
        try:
            with pytest.raises(Corrupt):
                decode_chunk(data, queue_id=None, number=None)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 4 * len(data) + limits.MIB


def test_a_length_is_checked_before_anything_is_made_of_it() -> None:
    huge_list = b"\x9d" + msgspec.msgpack.encode("q1") + b"\xdd\xff\xff\xff\xff"
    with pytest.raises(Corrupt):
        decode_chunk(sealed(huge_list), queue_id=None, number=None)


def test_a_chunk_above_its_limit_is_not_written() -> None:
    large = batch(1, metadata=b"m" * limits.CHUNK_MAX_BYTES)
    with pytest.raises(LimitExceeded, match="CHUNK_MAX_BYTES"):
        encode_chunk(first_chunk("q1").written(TOKEN, owner=ME, batches=[large]))
    assert len(encode_chunk(first_chunk("q1"))) > OVERHEAD_BYTES


def test_a_chunk_goes_on_where_the_one_before_it_ends() -> None:
    batches = [batch(n, rows=n, size_bytes=100, min_ms=AT_MS, max_ms=AT_MS - n) for n in (1, 2, 3)]
    full = first_chunk("q1").written(TOKEN, owner=ME, batches=batches, closed=True)
    follower = full.written(TOKEN, owner=ME, batches=[batch(4, rows=5)])
    assert (follower.number, follower.first_sequence, follower.first_lsn) == (2, 3, 7)
    assert follower.bytes_before == 300
    assert follower.newest_before == (LatestTimes(AT_MS - 1, (AT_MS - 1) * 1000),)
    assert [tuple(place) for place in full.places()] == [(0, 1), (1, 2), (2, 4)]
    assert (follower.next_sequence, follower.next_lsn, follower.bytes_through) == (4, 12, 310)


def test_the_floor_of_the_batches_never_goes_down() -> None:
    high, low = encode_ulid(9), encode_ulid(3)
    chunk = first_chunk("q1").written(TOKEN, batch_floor=high)
    assert chunk.written(TOKEN, batch_floor=low).batch_floor == high
    assert chunk.written(TOKEN, closed=True).written(TOKEN).batch_floor == high


def test_openings_are_counted_and_the_last_are_remembered() -> None:
    chunk = first_chunk("q1")
    for number in range(limits.CHUNK_OPENINGS + 3):
        chunk = chunk.written(
            TOKEN, opened=[ProducerIncarnation(f"p{number}", "1")], closed=number % 2 == 0
        )
    assert chunk.openings == limits.CHUNK_OPENINGS + 3
    newest = [f"p{limits.CHUNK_OPENINGS + 2 - back}" for back in range(limits.CHUNK_OPENINGS)]
    assert [one.producer for one in chunk.recent_openings] == newest


def test_a_group_goes_on_densely_and_its_metadata_fit() -> None:
    check_producer_sequences([batch(4), batch(5)], 3)
    for odd in ([batch(4), batch(6)], [batch(5)], [batch(4), batch(4)]):
        with pytest.raises(Bug):
            check_producer_sequences(odd, 3)
    with pytest.raises(LimitExceeded, match="METADATA_MAX_BYTES"):
        check_producer_sequences([batch(1, metadata=bytes(limits.METADATA_MAX_BYTES + 1))], 0)
