"""What a large cache takes: memory for each segment, and steps for each question."""

from __future__ import annotations

import gc
import tracemalloc

import msgspec

from headwater.tier import TierCache
from headwater.tier.events import stamp
from headwater.tier.segment_table import CHUNK_ROWS, StartIndex
from tests.tier.given import finished, started

SEGMENTS = 4096
PLAIN_MAX_BYTES = 160
CUSTOM_BYTES = 60
OBJECT_BYTES = 40
"""What Python adds to bytes that are kept as an object."""


def bytes_a_segment(custom_metadata: bytes | None) -> float:
    """Of a cache with this in every segment, each time as bytes of its own."""
    cache = TierCache()
    gc.collect()
    tracemalloc.start()
    for number in range(SEGMENTS):
        own = None if custom_metadata is None else bytes(bytearray(custom_metadata))
        cache.apply(started(number, number * 10, number * 10 + 9))
        cache.apply(msgspec.structs.replace(finished(number), custom_metadata=own))
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / SEGMENTS


def test_a_segment_takes_a_bounded_part_of_the_memory() -> None:
    assert bytes_a_segment(None) <= PLAIN_MAX_BYTES
    own = stamp(3, bytes(CUSTOM_BYTES - 12))
    assert bytes_a_segment(own) <= PLAIN_MAX_BYTES + CUSTOM_BYTES + OBJECT_BYTES


def test_what_is_forgotten_gives_its_place_to_what_comes() -> None:
    cache = TierCache()
    for number in range(1000):
        event = started(number, number, number)
        cache.apply(event)
        for state in (2, 3):
            update = finished(number)
            cache.apply(msgspec.structs.replace(update, state=type(update.state)(state)))
    [partition] = cache.partitions()
    known = cache.partition(partition)
    assert known is not None
    assert (known.segment_count, len(known.table.start)) == (0, 1)


def test_a_question_looks_at_a_chunk_s_worth_of_rows_however_many_there_are() -> None:
    asked = 0

    def value_of(row: int) -> int:
        nonlocal asked
        asked += 1
        return row

    index = StartIndex(value_of)
    for row in range(100 * CHUNK_ROWS):
        index.add(row, row)
    for least in (0, 5_000, 100 * CHUNK_ROWS - 1, 100 * CHUNK_ROWS):
        asked = 0
        found = next(index.rows_from(least), None)
        assert found == (least if least < 100 * CHUNK_ROWS else None)
        assert asked <= CHUNK_ROWS
    # A chunk whose largest value is gone is not looked through for it.
    for row in range(CHUNK_ROWS - 1, 100 * CHUNK_ROWS, CHUNK_ROWS):
        index.remove(row, row)
    asked = 0
    assert next(index.rows_from(2 * CHUNK_ROWS - 1, end=2 * CHUNK_ROWS), None) is None
    assert asked <= 1
