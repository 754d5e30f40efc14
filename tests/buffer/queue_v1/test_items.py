"""Produce calls become the items of a manifest entry, adjacent equal ones a single item."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer.batch import Call, Calls
from headwater.buffer.queue.v1.manifest_format import (
    ManifestEntry,
    MetadataItem,
    pack_calls,
    time_range_ms,
    unpack_metadata,
)
from headwater.core.errors import Corrupt
from tests.buffer.manifest_items import item_for

calls_of = st.lists(
    st.tuples(st.integers(1, 3), st.integers(-2, 2), st.sampled_from([None, b"", b"m", b"longer"])),
    max_size=12,
)


def test_no_calls_are_no_items() -> None:
    assert pack_calls(Calls.of([])) == b""
    assert time_range_ms(b"") is None
    assert unpack_metadata(b"") == ()


def test_an_item_is_the_published_bytes() -> None:
    packed = pack_calls(Calls.of([Call(0, 1_700_000_000_000, b"m")]))
    assert packed.hex() == "000000000068e5cf8b010000010000006d"


def test_adjacent_calls_that_say_the_same_share_an_item() -> None:
    calls = Calls.of([Call(n, 7, b"m") for n in range(100_000)])
    assert list(unpack_metadata(pack_calls(calls))) == [MetadataItem(0, 7, b"m")]
    calls = Calls.of([Call(0, 7, b"m"), Call(1, 8, b"m"), Call(2, 8, None), Call(5, 7, b"m")])
    assert [item.start_index for item in unpack_metadata(pack_calls(calls))] == [0, 1, 2, 5]


@given(calls_of)
def test_every_record_keeps_the_time_and_the_metadata_of_its_call(
    drawn: list[tuple[int, int, bytes | None]],
) -> None:
    calls: list[Call] = []
    records: list[tuple[int, bytes]] = []
    for count, time_ms, metadata in drawn:
        calls.append(Call(len(records), time_ms, metadata))
        records += [(time_ms, metadata or b"")] * count
    packed = pack_calls(Calls.of(calls))
    entry = ManifestEntry(0, "x", unpack_metadata(packed))
    for index, (time_ms, metadata) in enumerate(records):
        found = item_for(entry, index)
        assert found is not None
        assert (found.ingestion_time_ms, found.payload) == (time_ms, metadata)
    times_ms = [time_ms for _, time_ms, _ in drawn]
    assert time_range_ms(packed) == ((min(times_ms), max(times_ms)) if drawn else None)
    assert b"".join(_repacked(item) for item in entry.metadata) == packed


def _repacked(item: MetadataItem) -> bytes:
    head = struct.pack("<IqI", item.start_index, item.ingestion_time_ms, len(item.payload))
    return head + item.payload


def test_a_part_of_the_calls_packs_as_they_would_alone() -> None:
    calls = Calls.of([Call(n, n // 2, b"%d" % n) for n in range(9)])
    part = Calls(calls.columns.slice(3, 4))
    alone = Calls.of([Call(n, n // 2, b"%d" % n) for n in range(3, 7)])
    assert pack_calls(part) == pack_calls(alone)


def test_items_that_are_cut_off_are_refused() -> None:
    packed = pack_calls(Calls.of([Call(0, 7, b"metadata")]))
    for length in range(1, len(packed)):
        with pytest.raises(Corrupt, match="cut off"):
            unpack_metadata(packed[:length])
