"""Opening again: every cut, flipped bits, and what tells torn from corrupt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

import pytest

from headwater.core.errors import Refused
from headwater.log import SpoolConfig, SpoolCorrupt
from headwater.log.spool.codec import GroupFrame
from headwater.log.spool.frame import (
    CRC_BYTES,
    ENVELOPE,
    GROUP_MAGIC,
    HEAD_BYTES,
    MAGIC,
    V3,
    read_header,
)
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore
from tests.log.given import (
    PATH,
    contents,
    encode_frame,
    everything,
    found,
    numbered,
    opened,
    planted,
    values,
    wait,
)
from tests.torture.log_scenarios import BITFLIPS, CUTS, POWER_LOSS

SEGMENT = f"{1:020d}.wal"
MARKS = "-".join(f"{number:020d}" for number in (1, 0, 0, 0)) + ".marks"


def log_of(*counts: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a log with one frame for each count; where each ends, and its last LSN."""
    disk = FaultyDisk()
    spool = opened(disk)
    ends = []
    for count in counts:
        wait(spool.append(numbered(spool.current_lsn() + 1, count), term=1))
        ends.append((len(contents(disk)[SEGMENT]), spool.current_lsn()))
    return contents(disk)[SEGMENT], ends


def test_after_a_cut_at_any_byte_of_any_frame_exactly_the_acknowledged_is_there() -> None:
    CUTS.run_sample()


def test_what_is_cut_off_is_told_with_its_lsns(caplog: pytest.LogCaptureFixture) -> None:
    data, ends = log_of(1, 3, 5)
    with caplog.at_level(logging.WARNING):
        spool = opened(planted({SEGMENT: data[:-1], MARKS: b""}))
    assert spool.torn is not None
    assert (spool.torn.first_lsn, spool.torn.last_lsn) == (5, 9)
    assert spool.torn.offset == ends[1][0]
    assert "LSN 5 to 9 will be written again" in caplog.text
    assert spool.metrics.torn_bytes == len(data) - 1 - ends[1][0]


def test_a_cut_below_what_was_synced_is_corruption_and_nothing_is_cut_off() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 2), term=1))
    wait(spool.append(numbered(3, 2), term=1))
    wait(spool.close())
    files = contents(disk)
    for length in range(len(files[SEGMENT])):
        damaged = planted({**files, SEGMENT: files[SEGMENT][:length]})
        with pytest.raises(SpoolCorrupt, match=r"headwater log repair.*--from.*--tier.*--buffer"):
            opened(damaged)
        assert contents(damaged)[SEGMENT] == files[SEGMENT][:length]


def test_damage_that_a_later_frame_says_was_synced_names_file_offset_and_lsn() -> None:
    data, ends = log_of(2, 3, 1, 1)
    start = ends[0][0]
    for place in (start, start + 5, start + 40, ends[1][0] - 1):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        disk = planted({SEGMENT: bytes(damaged), MARKS: b""})
        with pytest.raises(SpoolCorrupt) as raised:
            opened(disk)
        assert (raised.value.path, raised.value.offset) == (f"{PATH}/{SEGMENT}", start)
        assert raised.value.lsn == 3
        assert contents(disk)[SEGMENT] == bytes(damaged)


def test_whole_frames_after_a_bad_one_alone_are_no_corruption() -> None:
    """Unsynced frames reach the disk in any order."""
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(group_bytes=30))
    wait(spool.append(numbered(1, 1), term=1))
    before = len(contents(disk)[SEGMENT])
    wait(spool.append(numbered(2, 4), term=1))
    data = bytearray(contents(disk)[SEGMENT])
    data[before : before + 100] = bytes(100)
    again = opened(planted({SEGMENT: bytes(data), MARKS: b""}))
    assert list(everything(again)) == [1]
    assert again.torn is not None
    assert (again.torn.first_lsn, again.torn.last_lsn) == (2, 5)


def test_a_frame_that_somebody_stored_in_a_record_proves_nothing() -> None:
    """A copy of this very log inside one of its records stands at another offset."""
    data, ends = log_of(1, 1, 1)
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    begun = len(contents(disk)[SEGMENT])
    foreign = encode_frame(b"x", term=1, lsn=50, timestamp_ms=0)
    wait(spool.append(values(data[ends[0][0] :] + foreign), term=1))
    torn = bytearray(contents(disk)[SEGMENT])
    torn[begun + 70] ^= 1
    again = opened(planted({SEGMENT: bytes(torn), MARKS: b""}))
    assert again.current_lsn() == 1


def test_a_record_that_says_the_magic_over_and_over_costs_no_more_than_its_bytes() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(values(b"RDLW\x03" * 20_000), term=1))
    torn = contents(disk)[SEGMENT][:-1]
    assert opened(planted({SEGMENT: torn, MARKS: b""})).current_lsn() == 0


def test_an_end_that_looks_like_too_many_frames_is_not_cut_off() -> None:
    places, size = 64, 64 * HEAD_BYTES
    end = bytearray(HEAD_BYTES)
    for offset in range(HEAD_BYTES, size, HEAD_BYTES):
        payload_bytes = size - offset - V3.size - CRC_BYTES
        end += V3.pack(MAGIC, 3, 1, 10, 0, payload_bytes)
        end += ENVELOPE.pack(GROUP_MAGIC, 0, 10, 0, offset)
    assert len(end) == places * HEAD_BYTES
    disk = planted({SEGMENT: bytes(end), MARKS: b""})
    with pytest.raises(SpoolCorrupt, match=r"offset 0, from LSN 1 on.*cut the file off"):
        opened(disk)
    assert contents(disk)[SEGMENT] == bytes(end)


def framed(first_lsn: int, *, synced_lsn: int, offset: int) -> bytes:
    """A whole frame of two records that says this of itself."""
    body = GroupFrame.of_records(numbered(first_lsn, 2))
    body.place(term=1, first_lsn=first_lsn, timestamp_ms=0, synced_lsn=synced_lsn, offset=offset)
    return bytes(body.data)


FIRST = framed(1, synced_lsn=0, offset=0)
STRANGE = {
    "after a gap": framed(5, synced_lsn=0, offset=len(FIRST)),
    "written elsewhere": framed(3, synced_lsn=0, offset=len(FIRST) + 8),
    "synced before it was written": framed(3, synced_lsn=4, offset=len(FIRST)),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_whole_frame_that_cannot_stand_there_is_none_of_this_log(what: str) -> None:
    spool = opened(planted({SEGMENT: FIRST + STRANGE[what]}))
    assert list(everything(spool)) == [1, 2]
    assert spool.torn is not None
    assert spool.torn.first_lsn == 3


@pytest.mark.parametrize("what", ["after a gap", "written elsewhere", "missing"])
def test_a_sealed_segment_of_frames_that_cannot_stand_there_is_damage(what: str) -> None:
    files = {SEGMENT: FIRST + STRANGE.get(what, b""), f"{7:020d}.wal": b""}
    spool = opened(planted(files))
    with pytest.raises(SpoolCorrupt, match="from LSN 3 on"):
        everything(spool)
    assert list(found(wait(spool.read_since(0, max_records=2)))) == [1, 2]


def test_a_process_that_died_while_it_began_left_nothing_in_the_way() -> None:
    for files in ({MARKS: b""}, {SEGMENT: b""}, {f"{7:020d}.wal": b""}, {"x.new": b"half"}):
        spool = opened(planted(files), first_lsn=9)
        assert wait(spool.append(numbered(9, 1), term=1)) == (9, 9)


def test_what_is_written_above_a_floor_that_outlived_its_records_is_safe() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(sync="none"))
    wait(spool.append(numbered(1, 5), term=1))
    wait(spool.prune_through(5))
    disk.crash()
    for seed in range(20):
        left = disk.after_crash(Random(seed))
        again = opened(left)
        assert (again.oldest_lsn(), again.current_lsn()) == (6, 5)
        wait(again.append(numbered(6, 1), term=1))
        left.crash()
        assert list(everything(opened(left.after_crash(Random(seed))))) == [6]


def test_a_segment_without_marks_is_opened_as_it_is() -> None:
    data, _ = log_of(2, 1)
    spool = opened(planted({SEGMENT: data}))
    assert list(everything(spool)) == [1, 2, 3]


def test_of_several_marks_the_highest_counts() -> None:
    """A rename whose sync failed may be undone by halves."""
    data, _ = log_of(2, 1, 1)
    older, newer = MARKS, "-".join(f"{number:020d}" for number in (1, 2, 3, 9)) + ".marks"
    disk = planted({SEGMENT: data, older: b"", newer: b""})
    spool = opened(disk)
    assert (spool.oldest_lsn(), spool.term) == (3, 9)
    assert [name for name in contents(disk) if name.endswith(".marks")] == [newer]


def test_a_beginning_that_is_moved_down_is_safe_at_every_point() -> None:
    def body(disk: FaultyDisk, ack: Callable[[int], None]) -> None:
        disk.make_dir(PATH)
        disk.sync_dir("/")
        wait(opened(disk, first_lsn=100).close())
        wait(opened(disk, first_lsn=50).close())
        ack(50)

    def check(disk: FaultyDisk, chosen: list[int]) -> None:
        spool = opened(disk)
        assert spool.oldest_lsn() == spool.current_lsn() + 1
        assert not chosen or spool.oldest_lsn() == 50
        wait(spool.close())
        again = opened(disk, first_lsn=50)
        assert wait(again.append(numbered(50, 1), term=1)) == (50, 50)
        assert list(everything(again)) == [50]

    explore(body, check, states=2)


def test_several_marks_without_a_segment_are_no_obstacle() -> None:
    names = [
        "-".join(f"{n:020d}" for n in marks) + ".marks" for marks in ((5, 4, 0, 7), (9, 8, 0, 2))
    ]
    spool = opened(planted(dict.fromkeys(names, b"")), first_lsn=3)
    assert (spool.oldest_lsn(), spool.term) == (3, 7)


@pytest.mark.parametrize("name", [2, 5, 9])
def test_a_last_segment_under_another_name_is_damage_and_no_torn_end(name: int) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    for lsn in (1, 2, 3):
        wait(spool.append(numbered(lsn, 1), term=1))
    wait(spool.seal())
    wait(spool.append(numbered(4, 2), term=1))
    wait(spool.close())
    files = contents(disk)
    files[f"{name:020d}.wal"] = files.pop(f"{4:020d}.wal")
    disk = planted(files)
    with pytest.raises(SpoolCorrupt, match="begins, whole, with LSN 4"):
        opened(disk)
    assert contents(disk)[f"{name:020d}.wal"] == files[f"{name:020d}.wal"]


def published(*, frames: int = 5) -> bytes:
    return b"".join(
        encode_frame(b"payload %d" % lsn, term=2, lsn=lsn, timestamp_ms=lsn)
        for lsn in range(10, 10 + frames)
    )


def test_a_published_spool_is_taken_over_and_goes_on() -> None:
    disk = planted({"data.rdb.logical.wal": published()})
    spool = opened(disk)
    assert (spool.oldest_lsn(), spool.current_lsn(), spool.term) == (10, 14, 2)
    assert everything(spool)[12] == b"payload 12"
    wait(spool.append(values(b"ours"), term=3))
    wait(spool.close())
    assert list(everything(opened(disk)).values())[-2:] == [b"payload 14", b"ours"]


def test_any_prefix_of_a_published_spool_gives_its_whole_frames() -> None:
    data, end, whole = published(frames=3), 0, []
    for length in range(len(data)):
        header = read_header(data[end:])
        assert header is not None
        if length >= end + header.frame_bytes:
            end += header.frame_bytes
            whole.append(header.lsn)
        spool = opened(planted({"x.logical.wal": data[:length]}), first_lsn=10)
        assert list(everything(spool)) == whole


def test_a_flipped_bit_in_a_published_spool_does_not_cost_what_follows() -> None:
    whole = published()
    last = len(whole) // 5 * 4
    for place in range(last):
        data = bytearray(whole)
        data[place] ^= 4
        disk = planted({"x.logical.wal": bytes(data)})
        with pytest.raises((SpoolCorrupt, Refused)):
            opened(disk)
        assert bytes(data) in contents(disk).values()


def test_damage_at_the_beginning_of_a_published_spool_says_what_to_do() -> None:
    data = bytearray(published())
    data[0] ^= 4
    with pytest.raises(SpoolCorrupt, match=r"4 whole ones follow.*back from a copy"):
        opened(planted({"x.logical.wal": bytes(data)}))


def test_taking_over_a_published_spool_is_safe_at_every_point() -> None:
    def body(disk: FaultyDisk, ack: Callable[[int], None]) -> None:
        disk.make_dir(PATH)
        with disk.create(f"{PATH}/x.logical.wal") as file:
            file.append(published())
            file.sync()
        disk.sync_dir(PATH)
        disk.sync_dir("/")
        ack(14)
        spool = opened(disk)
        wait(spool.append(values(b"ours"), term=3))
        ack(15)
        wait(spool.close())

    def check(disk: FaultyDisk, acknowledged: list[int]) -> None:
        if not acknowledged:
            return
        spool = opened(disk)
        records = everything(spool)
        assert list(records) in (list(range(10, 15)), list(range(10, 16)))
        assert max(records) >= acknowledged[-1]
        assert wait(spool.append(values(b"more"), term=3)).first_lsn == max(records) + 1

    explore(body, check)


def test_a_published_spool_that_begins_below_1_is_refused() -> None:
    data = encode_frame(b"x", term=1, lsn=0, timestamp_ms=0)
    with pytest.raises(Refused, match="begin at 1"):
        opened(planted({"x.logical.wal": data}))


def test_a_published_spool_beside_another_log_is_refused() -> None:
    with pytest.raises(Refused, match="taken over"):
        opened(planted({"x.logical.wal": b"", SEGMENT: b""}))


def test_no_flipped_bit_goes_unnoticed() -> None:
    BITFLIPS.run_sample()


def test_no_power_loss_loses_what_was_acknowledged_or_looks_like_corruption() -> None:
    POWER_LOSS.run_sample()
