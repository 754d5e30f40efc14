"""`headwater inspect segment`: what a segment holds, and what is wrong with a bad one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.log.record.group import Group
from headwater.tier.segments import footer
from headwater.tier.segments.seal import SEAL_BYTES
from tests.tier.segments.given import encoded, lost, orders

SEGMENT = encoded(
    [orders(1, 6, headers=True), lost(7, 8), orders(9, 4, term=2)], sequences=(40, 44)
)
FOOTER_AT = len(SEGMENT.data) - SEGMENT.receipt.footer_bytes
ROWS = SEGMENT.description.row_groups


def told(path: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["inspect", "segment", str(path), "--json", *arguments])
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if found["good"] else 1)
    return found


def written(folder: Path, data: bytes | bytearray, name: str = "a segment") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_a_segment_says_what_it_holds(tmp_path: Path) -> None:
    found = told(written(tmp_path, SEGMENT.data))
    assert found["good"]
    assert (found["stream"], found["first_lsn"], found["last_lsn"]) == ("orders", 1, 12)
    assert (found["records"], found["lost_lsns"], found["terms"]) == (10, 2, "1, 2")
    assert found["sequences"] == "40 to 44"
    assert [one["column"] for one in found["columns"]][:3] == ["_lsn", "_term", "_key"]
    assert [one["field_id"] for one in found["columns"]][:3] == [1, 2, 3]
    assert [(one["first_lsn"], one["records"]) for one in found["row_groups"]] == [
        (group.first_lsn, group.rows) for group in ROWS
    ]
    assert [one["columns"] for one in found["runs"]][1] == "lost: burnt"
    assert [one["note"] for one in found["first_records"]] == ["1", "2", "3"]
    assert [one["_lsn"] for one in found["first_records"]] == [1, 2, 3]
    assert "matches" in found["checksum"]
    shown = told(written(tmp_path, SEGMENT.data), "--records", "1")
    assert (len(shown["first_records"]), shown["first_records_total"]) == (1, 10)


def test_records_without_a_time_have_no_latest_one(tmp_path: Path) -> None:
    timed = orders(1, 3)
    timeless = Group(1, 1, 3, timed.records.drop_columns(["_commit_timestamp"]))
    found = told(written(tmp_path, encoded([timeless]).data))
    assert found["latest_record_ms"] is None
    assert {one["latest_ms"] for one in found["row_groups"]} == {None}
    assert told(written(tmp_path, encoded([timed]).data))["latest_record_ms"]


def test_it_is_shown_in_words(tmp_path: Path) -> None:
    path = written(tmp_path, SEGMENT.data)
    result = CliRunner().invoke(app, ["inspect", "segment", str(path)])
    assert result.exit_code == 0
    assert "segment of the tier, Parquet" in result.stdout


def flipped(place: int) -> bytes:
    data = bytearray(SEGMENT.data)
    data[place] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "check"),
    [
        (SEGMENT.data[:-9], "end"),
        (flipped(FOOTER_AT + 5), "footer"),
        (flipped(FOOTER_AT - SEAL_BYTES), "seal"),
        (flipped(ROWS[1].offset + 5), "row group"),
        (flipped(FOOTER_AT - SEAL_BYTES - 5), "body"),
        (b"RDLW" + bytes(40), "kind"),
    ],
    ids=["cut off", "footer", "seal", "row group", "page index", "log"],
)
def test_a_bad_segment_says_which_check_failed(tmp_path: Path, data: bytes, check: str) -> None:
    [problem] = told(written(tmp_path, data))["problems"]
    assert (problem["check"], problem["error"]) == (check, "Corrupt")
    assert problem["advice"]
    if check == "row group":
        assert problem["offset"] == ROWS[1].offset


def test_a_segment_whose_description_contradicts_itself_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(footer, "_contradictions", lambda _: iter(["it ends before it begins"]))
    [problem] = told(written(tmp_path, SEGMENT.data))["problems"]
    assert (problem["check"], problem["error"]) == ("description", "Corrupt")


def test_a_segment_under_another_s_name_is_bad(tmp_path: Path) -> None:
    own = f"{SEGMENT.description.segment_id}.parquet"
    assert told(written(tmp_path, SEGMENT.data, own))["good"]
    other = own.replace("07.parquet", "08.parquet")
    [problem] = told(written(tmp_path, SEGMENT.data, other))["problems"]
    assert problem["check"] == "name"


def test_a_segment_is_recognised_and_another_parquet_file_is_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, SEGMENT.data)
    result = CliRunner().invoke(app, ["inspect", "batch", str(path), "--json"])
    [problem] = json.loads(result.stdout)["problems"]
    assert "inspect segment" in problem["advice"]
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    [problem] = told(written(tmp_path, sink.getvalue()))["problems"]
    assert "not a segment of Headwater" in problem["message"]


def test_nothing_at_all_in_a_file_is_bad(tmp_path: Path) -> None:
    [problem] = told(written(tmp_path, b""))["problems"]
    assert problem["check"] == "length"
