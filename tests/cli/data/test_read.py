"""`headwater read`: which records, in which format, and what it says of gaps."""

from __future__ import annotations

import gc
import io
import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.cli.read_output import LinesOutput
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make


def test_lines_are_text_where_they_can_be(invoke: Invoke, filled: str) -> None:
    assert invoke("read", filled, "events").stdout == "one\ntwo\nthree\n0xfffe\nfive\n"


def test_a_part_by_lsn_by_count_and_by_time(invoke: Invoke, filled: str) -> None:
    def shown(*arguments: str) -> list[str]:
        done = invoke("read", filled, "events", *arguments)
        assert done.exit_code == 0, done.stderr
        return done.stdout.split()

    assert shown("--start=2", "--end=4") == ["two", "three"]
    assert shown("--limit=2") == ["one", "two"]
    assert shown("--start=3", "--limit=2") == ["three", "0xfffe"]
    assert len(shown("--start=2020-01-01")) == 5
    assert len(shown("--start=earliest", "--partition=0")) == 5
    assert shown("--follow", "--limit=4") == ["one", "two", "three", "0xfffe"]
    nothing = invoke("read", filled, "events", "--start=latest")
    assert (nothing.stdout, nothing.stderr) == ("", "there are no records here\n")


def test_a_time_goes_by_timestamps_unless_ingestion_is_meant(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("dated")
    rows = [{"n": n, "_timestamp": f"200{n}-01-01T00:00:00Z"} for n in (3, 1, 5)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    invoke("produce", url, "dated", file(lines), "--json")

    def shown(*options: str) -> list[int]:
        done = invoke("read", url, "dated", "--format=json", *options)
        assert done.exit_code == 0, done.stderr
        return [json.loads(line)["n"] for line in done.stdout.splitlines()]

    assert shown("--start=2004-01-01") == [5]
    assert shown("--end=2004-01-01") == [3, 1]
    assert shown("--start=2006-01-01") == []
    assert shown("--start=2006-01-01", "--time-by=ingestion") == [3, 1, 5]
    assert shown("--end=2006-01-01", "--time-by=ingestion") == []
    finer = file('{"n": 1, "_timestamp": "2001-01-01T00:00:00.123456789Z"}\n')
    refused = invoke("produce", url, "dated", finer, "--json")
    assert (refused.exit_code, "more than microseconds" in refused.stderr) == (2, True)
    wrong = invoke("read", url, "dated", "--time-by=event")
    assert (wrong.exit_code, "timestamp or ingestion" in wrong.stderr) == (2, True)
    named = invoke("read", url, "dated", "--format=json", "--columns=_ingestion_timestamp,n")
    assert json.loads(named.stdout.splitlines()[0])["_ingestion_timestamp"] > "2026"


def test_json_has_the_place_of_every_record(invoke: Invoke, filled: str) -> None:
    rows = [
        json.loads(line)
        for line in invoke("read", filled, "events", "--format=json").stdout.splitlines()
    ]
    assert [row["_lsn"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["_sequence"] for row in rows] == [0, 0, 0, 1, 1]
    assert rows[3]["_value"] == {"base64": "//4="}
    assert (rows[0]["_key"], rows[0]["_partition"]) == ("k", 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", rows[0]["_timestamp"])


def test_columns_are_chosen_by_name(invoke: Invoke, filled: str) -> None:
    done = invoke("read", filled, "events", "--columns=_lsn,_key", "--format=csv", "--limit=2")
    assert done.stdout == '"_lsn","_key"\n1,"k"\n2,"k"\n'
    assert invoke("read", filled, "events", "--columns=nothing").exit_code == 2


def test_formats_for_programs(invoke: Invoke, filled: str, tmp_path: Path) -> None:
    expected = [b"one", b"two", b"three", b"\xff\xfe", b"five"]
    arrow = invoke("read", filled, "events", "--format=arrow").stdout_bytes
    assert pa.ipc.open_stream(arrow).read_all()["_value"].to_pylist() == expected
    done = invoke("read", filled, "events", "--format=parquet", "-o", str(tmp_path / "out"))
    assert (done.exit_code, done.stdout) == (0, "")
    assert pq.read_table(tmp_path / "out")["_value"].to_pylist() == expected
    csv = invoke("read", filled, "events", "--format=csv").stdout.splitlines()
    assert csv[0].startswith('"_value","_key","_headers"')
    assert csv[4].startswith('"{""base64"":""//4=""}","k",,')
    assert invoke("read", filled, "events", "--format=xml").exit_code == 2


def test_typed_rows_are_json_on_a_line(invoke: Invoke, url: str, file: File) -> None:
    text = '{"id":1,"name":"é"}\n{"id":2,"name":null}\n'
    invoke("produce", url, "events", file(text), "--json")
    assert invoke("read", url, "events").stdout == text
    one = '{"name":"é"}\n{"name":null}\n'
    assert invoke("read", url, "events", "--columns=name").stdout == one
    assert invoke("read", url, "events", "--columns=_lsn").stdout == "1\n2\n"


def test_a_parquet_file_that_an_error_cut_short_is_left_without_its_end(
    invoke: Invoke, url: str, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: complaints.append(told.exc_value))
    for rows in ('{"id":1}\n', f'{{"id":2,"text":"{"x" * 40_000}"}}\n'):
        invoke("produce", url, "events", file(rows), "--json")
    for batch in (tmp_path / "store").rglob("batches/*"):
        batch.unlink()
    done = invoke("read", url, "events", "--format=parquet", "-o", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "batch 1" in done.stderr
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(tmp_path / "out")
    del done
    gc.collect()  # a writer that was left open completes its file here, and complains
    assert complaints == []


def test_an_output_that_cannot_be_written(invoke: Invoke, filled: str, tmp_path: Path) -> None:
    for place, says in ((tmp_path / "no" / "file", "no folder"), (tmp_path, "is a directory")):
        done = invoke("read", filled, "events", "-o", str(place))
        assert done.exit_code == 2
        assert says in done.stderr
        assert "store ls" not in done.stderr


def test_a_batch_that_is_gone_is_an_error_or_a_gap_that_is_named(
    invoke: Invoke, url: str, file: File, tmp_path: Path
) -> None:
    for text in ("first\n", "x" * 40_000 + "\ny\n", "last\n"):
        invoke("produce", url, "events", file(text))
    [batch] = (tmp_path / "store").glob("streams/events/0/ingest/*/batches/*")
    batch.unlink()
    failed = invoke("read", url, "events")
    assert (failed.exit_code, failed.stdout) == (2, "first\n")
    assert batch.name in failed.stderr
    assert "--skip-unreadable shows what follows" in failed.stderr
    assert "on_bad_batch" not in failed.stderr, "which is for programs"
    skipped = invoke("read", url, "events", "--skip-unreadable")
    assert (skipped.exit_code, skipped.stdout) == (1, "first\nlast\n")
    assert "stream 'events', partition 0: LSNs 2 to 3 cannot be read" in skipped.stderr


def test_what_is_left_out_is_named_with_its_partition(
    invoke: Invoke, url: str, make: Make, file: File, tmp_path: Path
) -> None:
    make("wide", partitions=2)
    for partition in (0, 1):
        text = "x" * 40_000 + "\ny\n"
        invoke("produce", url, "wide", file(text), f"--partition={partition}")
    for batch in (tmp_path / "store").glob("streams/wide/*/ingest/*/batches/*"):
        batch.unlink()
    skipped = invoke("read", url, "wide", "--skip-unreadable")
    assert skipped.exit_code == 1
    for partition in (0, 1):
        said = f"stream 'wide', partition {partition}: LSNs 1 to 2 cannot be read"
        assert said in skipped.stderr


def test_a_chunk_of_another_format_is_named(
    invoke: Invoke, url: str, file: File, tmp_path: Path
) -> None:
    invoke("produce", url, "events", file("a\n"))
    chunk = max((tmp_path / "store").glob("streams/events/0/ingest/*/chunks/*"))
    chunk.write_bytes(b"HWC3" + chunk.read_bytes()[4:])
    failed = invoke("read", url, "events")
    assert failed.exit_code == 2
    assert str(chunk.relative_to(tmp_path / "store")) in failed.stderr
    assert "the object is damaged" in failed.stderr


def test_what_was_deleted_is_answered_with_an_option_of_the_command(
    invoke: Invoke, url: str, file: File
) -> None:
    for text in ("first\n", "last\n"):
        invoke("produce", url, "events", file(text))
    assert invoke("stream", "truncate", url, "events", "--before", "2", "--yes").exit_code == 0
    failed = invoke("read", url, "events", "--start", "1")
    assert failed.exit_code == 2
    assert "(--start earliest begins there)" in failed.stderr
    assert invoke("read", url, "events", "--start", "earliest").stdout == "last\n"


def test_the_help_has_room_for_words(invoke: Invoke) -> None:
    words = invoke("read", "--help", COLUMNS="80").stdout
    assert "--no-skip-unreadable" not in words
    assert "lines|json|csv" not in words


def test_a_screen_shows_places_and_nothing_that_moves_its_cursor() -> None:
    batch = pa.record_batch(
        {"_value": [b"plain", b"\x1b[31mred\x07"], "_lsn": [7, 1234], "_partition": [0, 2]}
    )
    sink = io.BytesIO()
    LinesOutput(sink, batch.schema, None, on_screen=True).write(batch)
    plain, red = re.sub(r"\x1b\[[02]m", "", sink.getvalue().decode()).splitlines()
    assert plain == "        7  plain"
    assert red == r"  2:1,234  \x1b[31mred\x07"
