"""`headwater inspect wal` and `headwater log repair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import blocking
from headwater.buffer import BlockingProducer
from headwater.cli.app import app
from headwater.log import Spool, prepare_lost
from headwater.log.replica.copies import SavedState, encode_state
from headwater.log.spool.codec import GroupFrame
from headwater.log.spool.frame import GroupKind
from tests.log.given import encode_frame, numbered, wait

SEGMENT = f"{1:020d}.wal"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return grown(tmp_path / "log")


def grown(path: Path) -> Path:
    spool = Spool.open(str(path))
    for lsn in range(1, 6):
        wait(spool.append(numbered(lsn, 1), term=2, timestamp_ms=1_700_000_000_000))
    wait(spool.append(prepare_lost(2, "batch 7 is gone"), term=2))
    wait(spool.close())
    return path


def told(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_a_good_segment_is_told_with_its_frames(folder: Path) -> None:
    status, found = told("inspect", "wal", str(folder / SEGMENT))
    assert (status, found["good"], found["ending"]) == (0, True, "clean")
    assert (found["frames"], found["groups"], found["lost_ranges"]) == (6, 6, 1)
    assert (found["first_lsn"], found["last_lsn"], found["synced_lsn_beside"]) == (1, 7, 7)
    assert found["last_frames"][0]["columns"] == "_value"
    assert found["last_frames"][-1]["columns"] == "lost: batch 7 is gone"
    shown = CliRunner().invoke(app, ["inspect", "wal", str(folder / SEGMENT), "--frames", "2"])
    assert shown.exit_code == 0
    assert "clean" in shown.stdout


def test_a_torn_and_a_corrupt_end_are_told_apart(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.wal"
    alone.write_bytes((folder / SEGMENT).read_bytes()[:-1])
    status, found = told("inspect", "wal", str(alone))
    assert (status, found["ending"]) == (1, "torn")
    assert "its head tells of LSN 7" in found["problems"][0]["message"]
    # Beside the marks of its log the same bytes are corrupt.
    (folder / SEGMENT).write_bytes(alone.read_bytes())
    status, found = told("inspect", "wal", str(folder / SEGMENT))
    assert (status, found["ending"]) == (1, "corrupt")
    assert "LSN 6 to 7 cannot be read" in found["problems"][0]["message"]
    assert "log repair" in found["problems"][0]["advice"]


def test_a_sealed_segment_is_judged_by_the_next_one(folder: Path) -> None:
    (folder / f"{20:020d}.wal").touch()
    status, found = told("inspect", "wal", str(folder / SEGMENT))
    assert (status, found["ending"]) == (1, "corrupt")
    assert "LSN 8 to 19" in found["problems"][0]["message"]


def test_frames_of_another_implementation_are_shown() -> None:
    data = encode_frame(b'{"operation":"insert","rid":5}', term=1, lsn=9, timestamp_ms=3)
    result = CliRunner().invoke(app, ["inspect", "wal", "-", "--json"], input=data)
    found = json.loads(result.stdout)
    assert (result.exit_code, found["frames"], found["groups"]) == (0, 1, 0)


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "no bytes"), (b"PAR1....", "a Parquet file"), (b"HWX1", "the index")]
)
def test_what_is_no_segment_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    status, found = told("inspect", "wal", str(path))
    assert status == 1
    assert said in found["problems"][0]["message"]


def test_a_segment_given_as_a_batch_is_named(folder: Path) -> None:
    status, found = told("inspect", "batch", str(folder / SEGMENT))
    assert status == 1
    assert "a segment of a log" in found["problems"][0]["message"]
    assert "inspect wal" in found["problems"][0]["advice"]


def test_repair_mends_from_a_copy_and_says_so(folder: Path, tmp_path: Path) -> None:
    copy = grown(tmp_path / "copy")
    damage(folder / SEGMENT, 100)
    result = CliRunner().invoke(app, ["log", "repair", str(folder), "--from", str(copy)])
    assert result.exit_code == 0
    assert f"repaired LSN 1 to 1 from {copy}" in result.stdout
    assert f"kept     {folder / SEGMENT}.damaged" in result.stdout
    again = CliRunner().invoke(app, ["log", "repair", str(folder)])
    assert "nothing is damaged" in again.stdout
    assert Spool.open(str(folder)).current_lsn() == 7


def test_repair_says_what_no_copy_has(folder: Path) -> None:
    damage(folder / SEGMENT, 100)
    result = CliRunner().invoke(app, ["log", "repair", str(folder)])
    assert result.exit_code == 1
    assert "missing  LSN 1 to 1: no source has it" in result.stdout
    status, found = told("log", "repair", str(folder), "--give-up")
    assert (status, found["missing"]) == (0, [])
    assert found["repaired"][0]["source"] == "given up in a repair"


def test_what_was_given_up_is_not_called_repaired(folder: Path) -> None:
    damage(folder / SEGMENT, 100)
    result = CliRunner().invoke(app, ["log", "repair", str(folder), "--give-up"])
    assert "given up LSN 1 to 1: readers get a lost range" in result.stdout
    assert "repaired" not in result.stdout


def test_repair_mends_from_the_buffer(folder: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "orders")
    with BlockingProducer(url, "orders") as producer:
        producer.produce([b"record %d" % lsn for lsn in range(1, 6)])
    damage(folder / SEGMENT, 100)
    asked = ["log", "repair", str(folder), "--buffer", url]
    assert CliRunner().invoke(app, asked).exit_code == 2
    result = CliRunner().invoke(app, [*asked, "--stream", "orders"])
    assert result.exit_code == 0
    assert "repaired LSN 1 to 1 from the buffer of orders, partition 0" in result.stdout
    (group, *_) = wait(Spool.open(str(folder)).read_since(0))
    assert group.records.column("_value").to_pylist() == [b"record 1"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["log", "repair", str(tmp_path / "nowhere")])
    assert result.exit_code == 2


def test_a_source_that_is_no_log_is_refused_and_nothing_is_given_up(
    folder: Path, tmp_path: Path
) -> None:
    damage(folder / SEGMENT, 100)
    before = (folder / SEGMENT).read_bytes()
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "typo", tmp_path / "empty", folder, folder / SEGMENT):
        asked = ["log", "repair", str(folder), "--from", str(wrong), "--give-up"]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 2
        assert str(wrong) in result.stderr
        assert (folder / SEGMENT).read_bytes() == before
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_replicas_folder_is_a_copy(folder: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    grown(replica / "copy-2")
    (replica / "replica.json").write_bytes(encode_state(SavedState(term=2, copy=2)))
    damage(folder / SEGMENT, 100)
    result = CliRunner().invoke(app, ["log", "repair", str(folder), "--from", str(replica)])
    assert result.exit_code == 0
    assert f"repaired LSN 1 to 1 from {replica}/copy-2" in result.stdout
    damage(folder / SEGMENT, 100)
    (replica / "replica.json").write_bytes(encode_state(SavedState(term=2, copy=2, diverged_lsn=1)))
    result = CliRunner().invoke(app, ["log", "repair", str(folder), "--from", str(replica)])
    assert result.exit_code == 2
    assert "holds other records" in result.stderr


def test_a_folder_or_a_file_without_a_log_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        result = CliRunner().invoke(app, ["log", "repair", str(path)])
        assert result.exit_code == 2
        assert "name the folder of one" in result.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_frames_that_are_whole_and_cannot_be_read_are_a_problem(tmp_path: Path) -> None:
    body = GroupFrame._of([b"no Arrow"], GroupKind.RECORDS, 1, numbered(1, 1))
    body.place(term=1, first_lsn=1, timestamp_ms=0, synced_lsn=0, offset=0)
    path = tmp_path / SEGMENT
    path.write_bytes(bytes(body.data))
    status, found = told("inspect", "wal", str(path))
    assert status == 1
    assert "unreadable" in found["problems"][-1]["message"]


def test_bytes_of_anything_are_not_called_torn(tmp_path: Path) -> None:
    path = tmp_path / "random"
    path.write_bytes(b"anything at all " * 20)
    status, found = told("inspect", "wal", str(path))
    assert status == 1
    assert "no frame of a log" in found["problems"][0]["message"]
    assert "Open the log" not in found["problems"][0]["advice"]


def test_frames_out_of_order_are_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "x.logical.wal"
    frames = (encode_frame(b"x", term=1, lsn=lsn, timestamp_ms=3) for lsn in (1, 3, 2))
    path.write_bytes(b"".join(frames))
    status, found = told("inspect", "wal", str(path))
    assert (status, found["ending"]) == (1, "corrupt")
    assert "LSN 2 is behind" in found["problems"][0]["message"]
