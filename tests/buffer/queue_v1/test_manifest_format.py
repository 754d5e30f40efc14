"""The published queue manifest: byte for byte, strict unless asked otherwise."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.buffer.batch import Call, Calls
from headwater.buffer.queue.v1.manifest_format import (
    FOOTER_BYTES,
    Manifest,
    ManifestEntry,
    MetadataItem,
    decode_manifest,
    encode_manifest,
    pack_calls,
    time_range_ms,
    unpack_metadata,
)
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.core.limits import MIB
from tests.buffer.manifest_items import item_for

VECTORS = Path(__file__).parents[1] / "vectors"
WRITTEN: dict[str, dict[str, Any]] = json.loads((VECTORS / "v1_manifests.json").read_text())[
    "manifests"
]
ODD: dict[str, dict[str, str]] = json.loads((VECTORS / "v1_odd.json").read_text())["manifest"]
NOT_SUPPORTED = {"version_0", "version_256_swapped_endian", "truncated_1_byte"}

METADATA = st.lists(
    st.builds(
        MetadataItem,
        start_index=st.integers(0, 2**32 - 1),
        ingestion_time_ms=st.integers(-(2**63), 2**63 - 1),
        payload=st.binary(max_size=20),
    ),
    max_size=5,
).map(lambda items: tuple(sorted(items, key=lambda item: item.start_index)))
BATCHES = st.lists(st.tuples(st.text(max_size=20), METADATA), max_size=6)


def manifest_of(vector: dict[str, Any]) -> Manifest:
    entries = tuple(
        ManifestEntry(
            entry["sequence"],
            entry["location"],
            tuple(MetadataItem(at, ms, bytes.fromhex(text)) for at, ms, text in entry["metadata"]),
        )
        for entry in vector["entries"]
    )
    return Manifest(entries, vector["next_sequence"], vector["epoch"])


def written(name: str) -> bytes:
    return bytes.fromhex(WRITTEN[name]["hex"])


def footer(count: int, next_sequence: int, *, epoch: int = 0, version: int = 1) -> bytes:
    return struct.pack("<IQQH", count, next_sequence, epoch, version)


def packed_entry(
    sequence: int, location: bytes = b"a", items: bytes = b"", count: int = 0
) -> bytes:
    body = struct.pack("<QH", sequence, len(location)) + location + struct.pack("<I", count) + items
    return struct.pack("<I", len(body)) + body


def packed_item(start_index: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IqI", start_index, 0, len(payload)) + payload


@pytest.mark.parametrize("name", WRITTEN)
def test_the_reference_s_bytes_are_read_and_written(name: str) -> None:
    data, manifest = written(name), manifest_of(WRITTEN[name])

    found = decode_manifest(data)

    assert found == manifest
    assert found.entries == list(manifest.entries)
    assert encode_manifest(manifest) == data
    assert encode_manifest(found) == data
    assert encode_manifest(Manifest(tuple(found.entries), found.next_sequence, found.epoch)) == data


def test_all_vectors_are_there() -> None:
    assert (len(WRITTEN), len(ODD)) == (9, 19)


def test_the_empty_manifest() -> None:
    assert encode_manifest(Manifest()) == bytes(20) + b"\x01\x00"
    assert decode_manifest(bytes(20) + b"\x01\x00") == Manifest()


@pytest.mark.parametrize("name", ODD)
def test_an_odd_manifest_is_read_as_strictly_as_it_should(name: str) -> None:
    data, read = bytes.fromhex(ODD[name]["hex"]), ODD[name]["read"]
    kind = NotSupported if name in NOT_SUPPORTED else Corrupt

    for lenient in (False, True):
        if read == "always" or (read == "leniently" and lenient):
            found = decode_manifest(data, lenient=lenient)
            assert encode_manifest(found) == data
            assert [entry.location[1:] for entry in found.entries] == [".batch"] * len(
                found.entries
            )
        else:
            with pytest.raises(kind):
                decode_manifest(data, lenient=lenient)


def test_the_epoch_may_be_the_largest() -> None:
    assert decode_manifest(bytes.fromhex(ODD["epoch_u64max"]["hex"])).epoch == 2**64 - 1


def test_a_consumer_opens_dequeues_and_a_producer_appends_as_the_reference_does() -> None:
    three = decode_manifest(written("m04_three_entries_metadata_0_1_3"))
    batch = ("ingest/d.batch", [MetadataItem(0, 1700000000004, b"after-dequeue")])

    opened = three.with_epoch(1)
    dequeued = opened.dequeued(0)
    appended = dequeued.appended([batch])

    assert encode_manifest(opened) == written("m05_three_entries_epoch1")
    assert encode_manifest(dequeued) == written("m06_after_dequeue_through_0")
    assert encode_manifest(appended) == written("m07_append_after_dequeue")
    assert [entry.sequence for entry in appended.entries] == [1, 2, 3]


def test_dequeuing_takes_what_is_at_or_below() -> None:
    queue = decode_manifest(written("m07_append_after_dequeue"))

    assert queue.dequeued(0) == queue
    assert [entry.sequence for entry in queue.dequeued(2).entries] == [3]
    emptied = queue.dequeued(99)
    assert (len(emptied.entries), emptied.next_sequence) == (0, 4)
    assert encode_manifest(emptied) == footer(0, 4, epoch=1)
    assert [entry.sequence for entry in emptied.appended([("x", ())]).entries] == [4]


@given(
    first=BATCHES, second=BATCHES, next_sequence=st.integers(0, 2**63), dequeue=st.integers(0, 9)
)
def test_bytes_are_spliced_as_objects_would_be(
    first: list[tuple[str, tuple[MetadataItem, ...]]],
    second: list[tuple[str, tuple[MetadataItem, ...]]],
    next_sequence: int,
    dequeue: int,
) -> None:
    entries = [
        ManifestEntry(next_sequence + index, location, metadata)
        for index, (location, metadata) in enumerate([*first, *second])
    ]
    through = next_sequence + dequeue - 1
    kept = tuple(entry for entry in entries if entry.sequence > through)
    wanted = Manifest(kept, next_sequence + len(entries), 3)

    read = decode_manifest(encode_manifest(Manifest((), next_sequence, 3).appended(first)))
    found = read.appended(second).dequeued(through)

    assert found == wanted
    assert encode_manifest(found) == encode_manifest(wanted)
    assert decode_manifest(encode_manifest(found)) == wanted


def test_entries_are_a_sequence() -> None:
    entries = decode_manifest(written("m04_three_entries_metadata_0_1_3")).entries

    assert [entry.sequence for entry in entries[1:]] == [1, 2]
    assert [entry.sequence for entry in entries[::-2]] == [2, 0]
    assert [entry.sequence for entry in entries[2:1]] == []
    assert entries[-1].sequence == 2
    assert entries[5:] == []
    assert entries != [entries[0]]
    other: object = "abc"
    assert entries != other
    assert repr(entries) == "<3 packed items in 176 bytes>"
    with pytest.raises(IndexError):
        entries[3]


def test_metadata_is_the_last_item_at_or_before_a_record() -> None:
    entry = manifest_of(WRITTEN["p01_producer_three_calls_none_manifest"]).entries[0]

    payloads = [(item_for(entry, index) or MetadataItem(0, 0)).payload for index in range(6)]

    assert payloads == [b"my-metadata"] * 2 + [b""] + [bytes.fromhex("000102ff")] * 3


def test_a_record_before_the_first_item_has_no_metadata() -> None:
    entry = ManifestEntry(0, "a", (MetadataItem(2, 0),))

    assert item_for(entry, 1) is None
    assert item_for(ManifestEntry(0, "a"), 0) is None
    assert entry.metadata_runs(5) == [(2, 5, entry.metadata[0])]


@given(starts=st.lists(st.integers(0, 12), max_size=6), record_count=st.integers(0, 10))
def test_runs_say_for_every_record_what_it_would_be_told(
    starts: list[int], record_count: int
) -> None:
    # Also out of order, as a manifest that is read leniently may have them.
    entry = ManifestEntry(
        0, "a", [MetadataItem(start, number) for number, start in enumerate(starts)]
    )

    told: dict[int, MetadataItem] = {}
    for start, end, item in entry.metadata_runs(record_count):
        assert start < end
        assert start > max(told, default=-1)
        told |= dict.fromkeys(range(start, end), item)

    assert [told.get(index) for index in range(record_count)] == [
        item_for(entry, index) for index in range(record_count)
    ]


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"", Corrupt, "a manifest of 0 bytes"),
        (footer(0, 0)[1:], Corrupt, "a manifest of 21 bytes"),
        (footer(9, 0, version=2), NotSupported, "version 2 at offset 20.*upgrade"),
        (bytes(17) + footer(1, 1), Corrupt, "entry_count at offset 17 is 1"),
        (packed_entry(0) + b"1" * 18 + footer(2, 2), Corrupt, "the entry at offset 19 says"),
        (packed_entry(0) * 2 + footer(1, 1), Corrupt, "19 bytes at offset 19 follow"),
        (
            packed_entry(0, b"\xff\xfe") + footer(1, 1),
            Corrupt,
            "location at offset 14 is not UTF-8",
        ),
        (
            b"\x0e" + packed_entry(0)[1:] + footer(1, 1),
            Corrupt,
            "says 14 bytes, and 1 for its location: they do not fit",
        ),
        (
            packed_entry(0, b"a" * 9)[:27] + packed_entry(1)[:13] + footer(2, 2),
            Corrupt,
            "the entry at offset 27 is cut off",
        ),
        (packed_entry(0, count=1) + footer(1, 1), Corrupt, "metadata_count at offset 15 is 1"),
        (
            packed_entry(0, items=packed_item(0, b"12") + bytes(14), count=2) + footer(1, 1),
            Corrupt,
            "item at offset 37 passes its entry's end 51",
        ),
        (
            packed_entry(0, items=packed_item(0)[:-4] + b"\x01\0\0\0", count=1) + footer(1, 1),
            Corrupt,
            "says 1 bytes of payload, and 0 are left",
        ),
        (packed_entry(0, items=b"12") + footer(1, 1), Corrupt, "2 bytes at offset 19 follow"),
        (
            packed_entry(0, items=packed_item(3) + packed_item(2), count=2) + footer(1, 1),
            Corrupt,
            "starts at record 2, and the one before it at 3",
        ),
        (packed_entry(4) * 2 + footer(2, 9), Corrupt, "sequence 4, and the one before it 4"),
        (packed_entry(4) + footer(1, 4), Corrupt, "sequence 4, and next_sequence is 4"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        decode_manifest(data)


def test_calls_without_records_share_a_start() -> None:
    items = packed_item(0) + packed_item(0, b"x")

    found = decode_manifest(packed_entry(3, items=items, count=2) + footer(1, 4))

    assert item_for(found.entries[0], 0) == MetadataItem(0, 0, b"x")


@pytest.mark.parametrize(
    ("sequences", "next_sequence"),
    [((3, 7), 8), ((3, 4, 6), 7), ((3, 4), 6), ((3,), 9), ((0, 2), 3)],
)
def test_a_gap_between_sequences_is_a_loss(sequences: tuple[int, ...], next_sequence: int) -> None:
    entries = b"".join(packed_entry(sequence) for sequence in sequences)
    data = entries + footer(len(sequences), next_sequence)

    with pytest.raises(Corrupt, match="entries were lost"):
        decode_manifest(data)

    found = decode_manifest(data, lenient=True)
    assert tuple(entry.sequence for entry in found.entries) == sequences
    assert encode_manifest(found) == data


@pytest.mark.parametrize("next_sequence", [0, 5, 2**64 - 1])
def test_an_empty_queue_may_have_given_any_number_of_sequences(next_sequence: int) -> None:
    assert decode_manifest(footer(0, next_sequence)).next_sequence == next_sequence


def test_leniently_items_may_come_in_any_order() -> None:
    data = packed_entry(0, items=packed_item(3) + packed_item(2), count=2) + footer(1, 1)

    entry = decode_manifest(data, lenient=True).entries[0]

    assert [item.start_index for item in entry.metadata] == [3, 2]
    assert item_for(entry, 5) == MetadataItem(2, 0)


@pytest.mark.parametrize(
    ("manifest", "kind", "reason"),
    [
        (
            Manifest((ManifestEntry(1, "a"), ManifestEntry(1, "b")), 2),
            Refused,
            "1 does not follow 1",
        ),
        (
            Manifest((ManifestEntry(1, "a"), ManifestEntry(3, "b")), 4),
            Refused,
            "3 does not follow 1",
        ),
        (Manifest((ManifestEntry(1, "a"),), 3), Refused, "not the one before"),
        (Manifest((ManifestEntry(1, "a"),), 1), Refused, "not the one before"),
        (Manifest((ManifestEntry(-1, "a"),), 1), LimitExceeded, "sequence: -1"),
        (
            Manifest((ManifestEntry(0, "a", (MetadataItem(2, 0), MetadataItem(1, 0))),), 1),
            Refused,
            "1 comes after 2",
        ),
        (Manifest((ManifestEntry(0, "\ud800"),), 1), Refused, "no UTF-8"),
        (Manifest((ManifestEntry(0, "ä" * 40_000),), 1), LimitExceeded, "location: 80,000"),
        (
            Manifest((ManifestEntry(0, "a", (MetadataItem(2**32, 0),)),), 1),
            LimitExceeded,
            "start_index",
        ),
        (
            Manifest((ManifestEntry(0, "a", (MetadataItem(0, 2**63),)),), 1),
            LimitExceeded,
            "64 bits",
        ),
        (Manifest((), 2**64), LimitExceeded, "next_sequence"),
        (Manifest((), 0, -1), LimitExceeded, "epoch"),
    ],
)
def test_what_would_not_be_read_back_is_not_written(
    manifest: Manifest, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        encode_manifest(manifest)


def most_memory(use: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            packed_entry(0, items=packed_item(0) * 40_000, count=40_000) + footer(1, 1),
            id="items",
        ),
        pytest.param(
            b"".join(packed_entry(number, b"") for number in range(30_000))
            + footer(30_000, 30_000),
            id="entries",
        ),
    ],
)
def test_memory_is_bounded_by_the_input(data: bytes) -> None:
    def use() -> None:
        # Read from other bytes than Python's own, so that the copy counts.
        for entry in decode_manifest(bytearray(data)).entries:
            item_for(entry, 0)

    assert most_memory(use) <= 4 * len(data) + MIB


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(footer(2**32 - 1, 0), id="entry count"),
        pytest.param(packed_entry(0, count=2**32 - 1) + footer(1, 1), id="metadata count"),
        pytest.param(b"\xff" * 40 + footer(1, 1), id="entry length"),
    ],
)
def test_a_count_takes_no_memory(data: bytes) -> None:
    def use() -> None:
        with pytest.raises(Corrupt):
            decode_manifest(data)

    assert most_memory(use) <= MIB


SEEDS = [bytes.fromhex(vector["hex"]) for vector in (*WRITTEN.values(), *ODD.values())]


@settings(max_examples=500)
@given(
    seed=st.sampled_from([seed for seed in SEEDS if seed]),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
    cut=st.tuples(st.integers(0, 300), st.sampled_from([0, 0, 1, 4])),
    lenient=st.booleans(),
)
def test_changed_manifests_are_read_as_they_are_or_refused(
    seed: bytes, changes: list[tuple[int, int]], cut: tuple[int, int], lenient: bool
) -> None:
    changed = bytearray(seed)
    for place, value in changes:
        changed[place % len(changed)] = value
    start = cut[0] % len(changed)
    del changed[start : start + cut[1]]
    data = bytes(changed)

    try:
        found = decode_manifest(data, lenient=lenient)
    except (Corrupt, NotSupported):
        return
    assert encode_manifest(found) == data
    entries = [
        ManifestEntry(entry.sequence, entry.location, tuple(entry.metadata))
        for entry in found.entries
    ]
    if not lenient:
        rebuilt = Manifest(tuple(entries), found.next_sequence, found.epoch)
        assert encode_manifest(rebuilt) == data


@given(body=st.binary(max_size=120), count=st.integers(0, 4))
def test_random_bytes_are_read_or_refused(body: bytes, count: int) -> None:
    for data in (body, body + footer(count, 2**64 - 1)):
        try:
            found = decode_manifest(data, lenient=True)
        except (Corrupt, NotSupported):
            continue
        assert len(data) >= FOOTER_BYTES
        assert encode_manifest(found) == data


# Produce calls become the items of a manifest entry, adjacent equal ones a single item.


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
