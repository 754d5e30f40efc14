"""Frames: what a scan finds, and when it says torn or corrupt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headwater.core import frame as frame_module
from headwater.core.errors import AlreadyExists, LimitExceeded
from headwater.core.frame import MAGIC, OVERHEAD_BYTES, Ending, Scan, encode_frame, scan
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore

SALT = b"of this file"

PAYLOADS = st.lists(st.binary(max_size=60), max_size=8)
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


@given(PAYLOADS)
def test_what_was_written_is_read_back(payloads: list[bytes]) -> None:
    data, ends = build(payloads, synced=before)

    found = scan(data, salt=SALT)

    assert found.ending is Ending.CLEAN
    assert payloads_of(found) == payloads
    assert [frame.number for frame in found.frames] == list(range(1, len(payloads) + 1))
    assert [(frame.offset, frame.end) for frame in found.frames] == list(pairwise(ends))
    assert found.valid_bytes == len(data)
    assert found.last_number == len(payloads)
    assert found.evidence == max(0, len(payloads) - 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read(kind: type[bytes]) -> None:
    data, ends = build([b"one", b"two", b"three"], synced=before)
    broken = data[: ends[1]] + b"x" + data[ends[1] + 1 :]

    assert scan(kind(data), salt=SALT).last_number == 3
    assert scan(kind(broken), salt=SALT).ending is Ending.CORRUPT


def test_a_view_of_a_part_of_a_buffer_is_read_as_what_it_shows() -> None:
    data, ends = build([b"one", b"two", b"three"], synced=before)
    broken = data[: ends[1]] + b"x" + data[ends[1] + 1 :]
    around = b"." * 7 + broken + b"." * 9

    found = scan(memoryview(around)[7:-9], salt=SALT)

    assert (found.ending, found.valid_bytes, found.evidence) == (Ending.CORRUPT, ends[1], 2)


@given(PAYLOADS)
def test_numbers_may_leave_gaps_but_must_rise(payloads: list[bytes]) -> None:
    data = b""
    for index, payload in enumerate(payloads):
        data += encode_frame(payload, number=10 + 7 * index, synced=0, offset=len(data))
    assert scan(data).ending is Ending.CLEAN

    again = data + encode_frame(b"", number=10, synced=0, offset=len(data))
    if payloads:
        assert scan(again).ending is Ending.TORN
        assert payloads_of(scan(again)) == payloads


# The end of the file.


@given(SOME_PAYLOADS, st.data())
def test_any_prefix_of_the_bytes_keeps_every_whole_frame(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    cut = data.draw(st.integers(0, len(whole)))
    kept = sum(end <= cut for end in ends[1:])

    found = scan(whole[:cut], salt=SALT)

    assert payloads_of(found) == payloads[:kept]
    assert found.valid_bytes == ends[kept]
    assert found.ending is (Ending.CLEAN if cut in ends else Ending.TORN)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("rest", [MAGIC, b"\0\0\0", b"xyz"])
def test_a_tail_of_one_to_three_bytes_is_torn_and_what_follows_its_cut_is_read(
    length: int, rest: bytes
) -> None:
    data, _ = build([b"one", b"two"])

    found = scan(data + rest[:length], salt=SALT)

    assert found.ending is Ending.TORN
    assert found.valid_bytes == len(data)
    healed = data + encode_frame(b"three", number=3, synced=2, offset=len(data), salt=SALT)
    assert payloads_of(scan(healed, salt=SALT)) == [b"one", b"two", b"three"]


@given(SOME_PAYLOADS, st.integers(1, 2000))
def test_zeros_after_the_last_frame_are_a_torn_tail(payloads: list[bytes], zeros: int) -> None:
    data, _ = build(payloads, synced=before)

    found = scan(data + bytes(zeros), salt=SALT)

    assert (found.ending, found.valid_bytes) == (Ending.TORN, len(data))
    assert payloads_of(found) == payloads


@given(SOME_PAYLOADS, st.data())
def test_a_file_that_stops_below_what_was_synced_has_lost_its_end(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    kept = data.draw(st.integers(0, len(payloads) - 1))
    synced = data.draw(st.integers(kept + 1, len(payloads)))

    assert scan(whole[: ends[kept]], salt=SALT, synced=synced).ending is Ending.CORRUPT
    assert scan(whole[: ends[kept]], salt=SALT, synced=kept).ending is Ending.CLEAN


def test_an_empty_file_is_clean_unless_something_was_synced() -> None:
    assert scan(b"").ending is Ending.CLEAN
    assert scan(b"").last_number == 0
    assert scan(b"", synced=1).ending is Ending.CORRUPT


# One flipped bit.


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_in_what_a_later_frame_says_was_synced_is_corruption(
    payloads: list[bytes], data: st.DataObject
) -> None:
    payloads = [*payloads, b"the last"]
    whole, ends = build(payloads, synced=before)
    bit = data.draw(st.integers(0, ends[-2] * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    found = scan(flip(whole, bit), salt=SALT)

    assert found.ending is Ending.CORRUPT
    assert payloads_of(found) == payloads[:hit]
    assert found.valid_bytes == ends[hit]


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_in_what_the_caller_knows_was_synced_is_corruption(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    for synced in range(len(payloads) + 1):
        found = scan(flip(whole, bit), salt=SALT, synced=synced)
        assert found.ending is (Ending.CORRUPT if synced > hit else Ending.TORN)
        assert payloads_of(found) == payloads[:hit]


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_above_what_was_synced_is_a_torn_tail_whatever_follows(
    payloads: list[bytes], data: st.DataObject
) -> None:
    safe = data.draw(st.integers(0, len(payloads) - 1))
    whole, ends = build(payloads, synced=lambda number: min(number - 1, safe))
    bit = data.draw(st.integers(ends[safe] * 8, len(whole) * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    found = scan(flip(whole, bit), salt=SALT, synced=safe)

    assert found.ending is Ending.TORN
    assert payloads_of(found) == payloads[:hit]


# What is not a frame of this file.


def test_a_frame_of_another_file_is_no_frame_here() -> None:
    mine, ends = build([b"one", b"two"], salt=SALT)
    other, _ = build([b"one", b"two"], salt=b"of another file")

    found = scan(mine[: ends[1]] + other[ends[1] :], salt=SALT)

    assert (found.ending, found.last_number) == (Ending.TORN, 1)
    assert scan(other, salt=SALT).frames == []


def test_a_frame_at_another_place_is_no_frame_there() -> None:
    one, _ = build([b"one"])
    moved = encode_frame(b"two", number=2, synced=1, offset=len(one) + 1, salt=SALT)

    assert scan(one + moved, salt=SALT).last_number == 1


@pytest.mark.parametrize("what", ["another salt", "another offset"])
def test_a_frame_inside_a_payload_gives_no_evidence(what: str) -> None:
    """A record may carry a copy of a log. It must not turn a torn tail into corruption."""
    start = OVERHEAD_BYTES - 4
    carried = encode_frame(
        b"carried",
        number=9,
        synced=8,
        offset=start if what == "another salt" else start + 1,
        salt=b"of another file" if what == "another salt" else SALT,
    )
    data, _ = build([carried])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.evidence, found.frames) == (Ending.TORN, 0, [])


def test_a_frame_of_this_file_at_its_place_after_a_bad_one_is_evidence() -> None:
    """The counterpart: with the right salt and offset it is found, so the two tests bite."""
    start = OVERHEAD_BYTES - 4
    placed = encode_frame(b"placed", number=9, synced=8, offset=start, salt=SALT)
    data, _ = build([placed])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.evidence) == (Ending.CORRUPT, 8)


@given(st.integers(0, 50), st.integers(1, 500))
def test_a_payload_that_repeats_the_magic_is_no_reason_to_cry_corruption(
    others: int, times: int
) -> None:
    data, ends = build([b"x" * others, MAGIC * times])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.valid_bytes) == (Ending.TORN, ends[1])


def test_a_payload_that_carries_whole_logs_is_no_reason_to_cry_corruption() -> None:
    carried = b"inner"
    for _ in range(3):
        carried, _ends = build([carried] * 5, synced=before, salt=b"of another file")
    data, _ = build([carried])

    assert scan(data[:-1], salt=SALT).ending is Ending.TORN


def test_a_search_made_endless_by_its_content_stops_and_cuts_nothing_off() -> None:
    """Headers that each promise a long frame would be checksummed in the square of their number."""
    checksummed = 0
    header = encode_frame(bytes(4000), number=9, synced=8, offset=0)[: OVERHEAD_BYTES - 4]
    data, _ = build([header * 1000])
    real = frame_module._checksum

    def counting(header: bytes, payload: memoryview, offset: int, salt: bytes) -> int:
        nonlocal checksummed
        checksummed += len(payload)
        return real(header, payload, offset, salt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "_checksum", counting)
        found = scan(data[:-1], salt=SALT)

    assert found.ending is Ending.CORRUPT
    assert checksummed <= 5 * len(data)


@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_read_without_an_error(data: bytes, synced: int) -> None:
    found = scan(data, salt=SALT, synced=synced)

    assert found.frames == []
    assert found.valid_bytes == 0


@given(SOME_PAYLOADS, st.data())
def test_any_damage_is_read_without_an_error_and_leaves_a_prefix(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads, synced=before)
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - at))
    put = data.draw(st.binary(max_size=60))
    assume(whole[at : at + length] != put)

    found = scan(whole[:at] + put + whole[at + length :], salt=SALT)

    assert payloads_of(found) == payloads[: len(found.frames)]
    assert len(found.frames) >= sum(end <= at for end in ends[1:])


# Refused on write.


class Large(bytes):
    """As many bytes as it says, without holding them."""

    def __len__(self) -> int:
        return FRAME_PAYLOAD_MAX_BYTES + 1


def test_a_payload_that_would_be_refused_on_read_is_refused_on_write() -> None:
    with pytest.raises(LimitExceeded, match="FRAME_PAYLOAD_MAX_BYTES"):
        encode_frame(Large(), number=1, synced=0, offset=0)


def test_the_largest_payload_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "FRAME_PAYLOAD_MAX_BYTES", 100)
    data = encode_frame(bytes(100), number=1, synced=0, offset=0)

    assert scan(data).ending is Ending.CLEAN
    with pytest.raises(LimitExceeded):
        encode_frame(bytes(101), number=1, synced=0, offset=0)
    monkeypatch.setattr(frame_module, "FRAME_PAYLOAD_MAX_BYTES", 99)
    assert scan(data).ending is Ending.TORN


@pytest.mark.parametrize(
    ("number", "synced"), [(0, 0), (1, 1), (1, 2), (1, -1), (1 << 64, 0), (-1, -2)]
)
def test_a_frame_that_claims_itself_synced_or_has_no_number_is_refused(
    number: int, synced: int
) -> None:
    with pytest.raises(LimitExceeded):
        encode_frame(b"", number=number, synced=synced, offset=0)


def test_the_bytes_of_a_frame_are_these() -> None:
    """The format on disk: a change here is a change for every file already written."""
    assert encode_frame(b"payload", number=258, synced=257, offset=3, salt=b"salt").hex() == (
        "48574631"  # HWF1
        "07000000"  # length
        "0201000000000000"  # number
        "0101000000000000"  # synced
        "7061796c6f6164"  # payload
        "3a74a8c1"
    )


# A log on a disk that loses power.


class Log:
    """The smallest log: appends, syncs now and then, and recovers by what the scan says."""

    def __init__(self, disk: FaultyDisk) -> None:
        try:
            self._file = disk.create("/log")
            disk.sync_dir("/")
        except AlreadyExists:
            self._file = disk.open("/log", write=True)
        self.recovered = scan(self._file.read_at(0, self._file.stat().size_bytes), salt=SALT)
        self.end = self.recovered.valid_bytes
        self.number = self.synced = self.recovered.last_number
        if self.recovered.ending is Ending.TORN:
            self._file.truncate(self.end)
        # Also when clean: frames that a killed process left are read here, and not yet safe.
        self._file.sync()

    def append(self, payload: bytes) -> None:
        frame = encode_frame(
            payload, number=self.number + 1, synced=self.synced, offset=self.end, salt=SALT
        )
        self._file.append(frame)
        self.number += 1
        self.end += len(frame)

    def sync(self) -> None:
        self._file.sync()
        self.synced = self.number


def run_log(seed: int, disk: FaultyDisk, ack: Callable[[int], None]) -> None:
    random, log = Random(seed), Log(disk)
    for number in range(1, 15):
        log.append(bytes([number]) * random.choice((1, 30, 700, 1500)))
        if random.random() < 0.4:
            log.sync()
            ack(log.synced)


def check_log(disk: FaultyDisk, acknowledged: list[int]) -> None:
    safe = max(acknowledged, default=0)
    log = Log(disk)
    assert log.recovered.ending is not Ending.CORRUPT
    assert log.recovered.last_number >= safe
    for frame in log.recovered.frames:
        assert set(frame.payload) == {frame.number}
    log.append(b"after")
    torn = Log(disk.after_crash(Random(0)))
    assert torn.recovered.ending is not Ending.CORRUPT
    log.sync()
    again = Log(disk.after_crash(Random(0)))
    assert again.recovered.ending is Ending.CLEAN
    assert again.recovered.last_number == log.number


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_is_never_corruption_and_never_loses_a_synced_frame(seed: int) -> None:
    done = explore(lambda disk, ack: run_log(seed, disk, ack), check_log, seed=seed, states=10)

    assert done.states > 300


def test_a_disk_that_skips_its_syncs_is_noticed_by_the_log() -> None:
    with pytest.raises(AssertionError):
        explore(
            lambda disk, ack: run_log(0, disk, ack),
            check_log,
            make_disk=lambda *, seed, crash_at=None, fail_at=None: FaultyDisk(
                seed=seed, crash_at=crash_at, skip_sync=True
            ),
        )


@given(st.lists(st.sampled_from([10, 400, 600, 3000]), min_size=2, max_size=10), st.data())
@settings(max_examples=60)
def test_unsynced_frames_that_survive_out_of_order_are_a_torn_tail(
    sizes: list[int], data: st.DataObject
) -> None:
    disk = FaultyDisk()
    log = Log(disk)
    safe = data.draw(st.integers(0, len(sizes)))
    for number, size in enumerate(sizes, start=1):
        log.append(bytes([number]) * size)
        if number == safe:
            log.sync()
    seed = data.draw(st.integers(0, 10_000))

    with disk.after_crash(Random(seed)).open("/log") as file:
        found = scan(file.read_at(0, 1 << 20), salt=SALT, synced=safe)

    assert found.ending is not Ending.CORRUPT
    assert found.last_number >= safe
    assert [len(frame.payload) for frame in found.frames] == sizes[: len(found.frames)]
