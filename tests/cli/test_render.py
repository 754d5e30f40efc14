"""The one renderer: what a report becomes as text and as JSON, and how long work is shown."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from headwater.cli.render import Progress, report_lines, show
from headwater.cli.report import UNKNOWN, InspectionReport, Note, Problem, Report, Size


def text(report: Report, width: int | None = None) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in report_lines(report, width)]


def table(rows: list[dict[str, object]], width: int | None = None) -> list[str]:
    report = Report()
    report.table("", rows)
    return text(report, width)


def test_the_parts_of_a_report_have_one_order() -> None:
    report = Report("stream orders", "✓", facts={"format": "native"})
    report.table("columns", [{"column": "id"}], 3)
    report.say("later", mark="✗")
    report.remark("seldom")
    assert text(report) == [
        "✓ stream orders",
        "  format  native",
        "",
        "columns, 1 of 3",
        "column",
        "id",
        "✗ later",
        "note: seldom",
    ]


def test_a_name_says_how_a_value_is_shown() -> None:
    facts = {"created_ms": 0, "size_bytes": 2048, "next_lsn": 1234, "is_open": True, "none": None}
    assert text(Report(facts=facts)) == [
        "  created   1970-01-01 00:00:00.000 UTC",
        "  size      2,048 B",
        "  next LSN  1,234",
        "  is open   yes",
        "  none      –",
    ]


def test_numbers_are_at_the_right_also_beside_an_unknown_one() -> None:
    rows: list[dict[str, object]] = [
        {"name": "a", "bytes": Size(1536)},
        {"name": "longer", "bytes": UNKNOWN},
    ]
    assert table(rows) == ["name      bytes", "a       1.5 KiB", "longer        ?"]


def test_characters_of_two_cells_keep_columns_aligned() -> None:
    rows: list[dict[str, object]] = [{"a": "東京", "b": "x"}, {"a": "e\u0301", "b": "y"}]
    assert table(rows) == [
        "a     b",
        "東京  x",
        "e\u0301     y",
    ]


def test_a_row_that_does_not_fit_is_shown_with_its_names() -> None:
    rows: list[dict[str, object]] = [{"stream": "orders", "format": "native"}]
    assert table(rows, 14) == ["stream  format", "orders  native"]
    assert table(rows, 13) == ["  stream", "  orders", "  format", "  native"]


def test_a_long_fact_is_wrapped_below_itself() -> None:
    assert text(Report(facts={"why": " "}), 30) == ["  why"]
    assert text(Report(facts={"why": "one two three four five six"}), 30) == [
        "  why  one two three four five",
        "       six",
    ]


def test_nothing_in_a_value_moves_the_cursor() -> None:
    assert table([{"key": "a\x1b[2Jb"}])[1] == r"a\x1b[2Jb"


def test_a_stream_s_own_columns_are_shown_as_they_are() -> None:
    report = InspectionReport("batch")
    report.table("first_records", [{"taken_ms": 5}])
    assert "1970" in text(report)[-1]
    report.table("first_records", [{"taken_ms": 5}], is_data=True)
    assert text(report)[-2:] == ["taken_ms", "       5"]


def test_json_has_what_the_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    report = InspectionReport("batch", size_bytes=9, facts={"id": b"\xff"})
    report.table("columns", [{"column": "é"}], 2)
    report.remark("seldom")
    report.problems.append(Problem("length", "too short", 4, "Restore it.", "Corrupt"))
    show(report, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "kind": "batch",
        "good": False,
        "size_bytes": 9,
        "id": {"base64": "/w=="},
        "columns": [{"column": "é"}],
        "columns_total": 2,
        "notes": ["seldom"],
        "problems": [
            {
                "check": "length",
                "message": "too short",
                "offset": 4,
                "advice": "Restore it.",
                "error": "Corrupt",
            }
        ],
    }


def on_terminal(monkeypatch: pytest.MonkeyPatch, draw: Callable[[Progress], None]) -> str:
    """What a terminal got of progress."""
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(Progress, "FRAME_S", 0)
        with Progress("opening") as progress:
            draw(progress)
    shown = ""
    with suppress(OSError):  # a terminal that no process writes to any more is an error
        while data := os.read(leader, 4096):
            shown += data.decode()
    os.close(leader)
    return shown


def test_progress_says_how_much_of_what_is_done(
    monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> None:
    def draw(progress: Progress) -> None:
        progress.step("collecting", 3, "partitions")
        progress.step("collecting", 3, "partitions")
        progress.show("reading", 1234, unit="batches")

    _, *lines = on_terminal(monkeypatch, draw).split("\r\x1b[K")[1:-1]
    assert [re.sub(" {2}[━ ]{24} {2}", " | ", line) for line in lines] == [
        "collecting | 1 of 3 partitions",
        "collecting | 2 of 3 partitions",
        "reading: 1,234 batches",
    ]


def test_progress_is_drawn_over_itself_and_leaves_only_what_was_said(
    monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> None:
    def draw(progress: Progress) -> None:
        progress.show("reading", Size(1024), Size(2048))
        progress.say(Note("half of it"))

    shown = on_terminal(monkeypatch, draw)
    assert "reading" in shown
    assert "1 KiB of 2 KiB" in shown
    assert "half of it\r\n" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_report_knows_how_many_rows_of_the_screen_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    report = Report("✓", notes=[Note("x" * 10, "red"), Note("x" * 11), Note("")])
    assert show(report) == 5
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_progress_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("opening") as progress:
        progress.show("reading", 1, 2)
    assert capsys.readouterr() == ("", "")
