"""`headwater produce` of lines, which are opaque records."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.cli import produce_input
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines, values


def test_lines_come_back_as_they_went(invoke: Invoke, url: str, file: File) -> None:
    text = b"first\n\nthird \xff\nlast, without an end"
    done = invoke("produce", url, "events", file(text))
    assert done.exit_code == 0, done.stderr
    assert "4 records accepted" in done.stdout
    assert "partition 0: LSNs 1 to 4" in done.stdout
    assert values(url) == text.split(b"\n")


def test_several_files_in_their_order(invoke: Invoke, url: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    assert invoke("produce", url, "events", str(tmp_path / "a"), str(tmp_path / "b")).exit_code == 0
    assert values(url) == [b"a1", b"a2", b"b1", b"b2"]


def test_nothing_is_no_record(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file(b""))
    assert (done.exit_code, "0 records accepted" in done.stdout) == (0, True)


def test_keys_stand_before_a_separator(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file("k:v:w\n:x\n"), "--key-separator=:")
    assert done.exit_code == 0, done.stderr
    assert [(row["_key"], row["_value"]) for row in lines(url)] == [(b"k", b"v:w"), (b"", b"x")]
    assert invoke("read", url, "events", "--key-separator=: ").stdout == "k: v:w\n: x\n"


def test_what_stands_before_a_line_without_a_key_is_sent(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file("a:1\nb:2\nnone\nc:3\n"), "--key-separator=:")
    assert done.exit_code == 2
    assert "line 3 has no ':'" in done.stderr
    assert "2 records accepted" in done.stdout
    assert "what follows was not sent" in done.stdout
    assert values(url) == [b"1", b"2"]


def test_a_line_longer_than_a_record_may_be_is_refused(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "RECORD_MAX_BYTES", 10)
    done = invoke("produce", url, "events", file("short\n" + "x" * 20))
    assert done.exit_code == 2
    assert "line 2 has more than 10 bytes (RECORD_MAX_BYTES)" in done.stderr
    assert values(url) == [b"short"]


def test_lines_longer_than_a_block_are_whole(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 7)
    text = [f"line {number}".encode() * (number % 5) for number in range(40)]
    assert invoke("produce", url, "events", file(b"\n".join(text) + b"\n")).exit_code == 0
    assert values(url) == text


def test_files_with_columns_are_not_taken_for_lines(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "file.parquet")
    done = invoke("produce", url, "events", str(tmp_path / "file.parquet"))
    assert done.exit_code == 2
    assert "use --parquet" in done.stderr
    assert values(url) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--json", "--csv"], "choose one of"),
        (["--json", "--key-separator=:"], "_key"),
        (["--key-separator="], "no characters"),
        (["--parquet"], "reads files"),
        (["--parquet", "-"], "reads files"),
        (["--set", "linger_ms"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_opened(
    invoke: Invoke, arguments: list[str], says: str
) -> None:
    done = invoke("produce", "memory://", "events", *arguments)
    assert done.exit_code == 2
    assert says in re.sub(r"[│\n ]+", " ", done.stderr)


@pytest.mark.parametrize("more", [(), ("--producer-id=x", "--resume")])
def test_a_partition_that_is_not_there_is_refused_also_of_no_records(
    invoke: Invoke, url: str, file: File, more: tuple[str, ...]
) -> None:
    done = invoke("produce", url, "events", file(""), "--partition=7", *more)
    assert done.exit_code == 2
    assert "partition is 7: stream 'events' has partitions 0 to 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing", "{file}"], "no stream 'nothing'"),
        (["events", "{file}", "--partition=4"], "partition is 4"),
        (["events", "{file}", "--set", "lingr_ms=1"], "did you mean linger_ms"),
        (["events", "{file}.not"], "there is no file"),
        (["events", "{folder}"], "is a directory"),
        (["events", "{file}.not", "--csv"], "there is no file"),
    ],
)
def test_what_cannot_be_done_is_said(
    invoke: Invoke, url: str, file: File, arguments: list[str], says: str
) -> None:
    place = file("a\n")
    filled = [text.format(file=place, folder=Path(place).parent) for text in arguments]
    done = invoke("produce", url, *filled)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "store ls" not in done.stderr
    assert (f"stream list {url}\n" in done.stderr) == ("no stream" in says)
    assert "Traceback" not in done.output


def test_a_partition_may_be_chosen_and_keys_choose_one(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("wide", partitions=3)
    done = invoke("produce", url, "wide", file("a\nb\n"), "--partition=2")
    assert "partition 2: LSNs 1 to 2" in done.stdout
    keyed = "".join(f"key-{number}:{number}\n" for number in range(30))
    done = invoke("produce", url, "wide", file(keyed), "--key-separator=:")
    assert done.stdout.count("partition ") == 3


def test_a_producer_id_goes_on_for_its_predecessor(invoke: Invoke, url: str, file: File) -> None:
    arguments = ("produce", url, "events", file("a\n"), "--producer-id=me", "--metadata=row 1")
    assert invoke(*arguments).stderr == ""
    again = invoke(*arguments)
    assert "'me' had 1 batches accepted before, the last with \"row 1\"" in again.stderr
    assert [row["_metadata"] for row in lines(url, columns=["_metadata"])] == [b"row 1"] * 2


def test_bytes_are_not_shown_beside_text_that_looks_like_them(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("text")
    assert invoke("produce", url, "events", file(b"\xff\xfe\n0xfffe\n")).exit_code == 0
    assert invoke("produce", url, "text", file("0xfffe\n0x00\n")).exit_code == 0
    done = invoke("read", url, "events")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "in lines, the two look the same" in done.stderr
    assert "--format, such as json" in done.stderr
    assert invoke("read", url, "text").stdout == "0xfffe\n0x00\n"
    assert invoke("read", url, "events", "--limit", "1").stdout == "0xfffe\n"
