"""`headwater produce`, `read`, `gc` and `lag`."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import headwater
from headwater.buffer.consumer import Consumer, Lag
from headwater.buffer.producer import Accepted
from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.native import NativeCollector
from headwater.buffer.stream import create_stream, open_stream
from headwater.cli import interrupt as interrupt_module
from headwater.cli import produce_input
from headwater.cli.advice import command
from headwater.cli.interrupt import Interrupt, Interrupted
from headwater.cli.produce_run import Outcome, show_outcome
from headwater.cli.read_output import Lines
from headwater.cli.upkeep_view import total_lag
from headwater.core import limits
from headwater.core.errors import Refused
from headwater.store import Store, open_store
from tests.cli.conftest import Invoke

SCHEMA = {"id": "int64 not null", "at": "timestamp[us, UTC]", "amount": "decimal(10, 2)"}


def on(url: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    """Run something on the store of a test."""

    async def run() -> Any:
        async with open_store(url) as store:
            return await work(store)

    return asyncio.run(run())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A directory store with the stream `events`, whose producers do not linger."""
    url = f"file://{tmp_path}/store"
    on(url, lambda store: create_stream(store, "events", linger_ms=1))
    return url


@pytest.fixture
def make(url: str) -> Callable[..., None]:
    """Makes another stream."""

    def run(name: str, **settings: Any) -> None:
        on(url, lambda store: create_stream(store, name, linger_ms=1, **settings))

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes | str], str]:
    """Writes a file to be read."""

    def write(content: bytes | str) -> str:
        path = tmp_path / "input"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


File = Callable[[bytes | str], str]
Make = Callable[..., None]


def lines(url: str, stream: str = "events", **options: Any) -> list[dict[str, Any]]:
    """What a reader finds."""
    found: list[dict[str, Any]] = headwater.read(url, stream, **options).to_table().to_pylist()
    return found


def values(url: str, stream: str = "events") -> list[bytes]:
    return [row["_value"] for row in lines(url, stream)]


# Lines


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
    assert values(url) == []


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
    assert "say --parquet" in done.stderr
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


# Rows


def test_a_byte_order_mark_before_the_first_line_of_json_is_none_of_it(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", "--json", file('\ufeff{"a": 1}\n{"a": 2}\n'))
    assert done.exit_code == 0, done.stderr
    assert invoke("read", url, "events").stdout == '{"a":1}\n{"a":2}\n'
    again = invoke("produce", url, "events", "--json", file('{"a": 1}\n\ufeff{"a": 2}\n'))
    assert (again.exit_code, "line 2 is no JSON object" in again.stderr) == (2, True)


def test_json_lines_are_typed_rows(invoke: Invoke, url: str, file: File) -> None:
    text = '{"id":1,"name":"a"}\n\n{"id":2,"name":null,"tags":["x"],"_key":"k"}\n'
    assert invoke("produce", url, "events", file(text), "--json").exit_code == 0
    rows = lines(url, columns=["id", "name", "tags", "_key"])
    assert rows == [
        {"id": 1, "name": "a", "tags": None, "_key": None},
        {"id": 2, "name": None, "tags": ["x"], "_key": b"k"},
    ]


def test_a_column_that_is_null_throughout_is_not_left_out_silently(
    invoke: Invoke, url: str, file: File, tmp_path: Path
) -> None:
    done = invoke("produce", url, "events", file('{"a":1,"b":null}\n{"a":2,"b":null}\n'), "--json")
    assert done.exit_code == 0
    assert "'b': null throughout" in done.stderr
    assert f"stream alter {url} events --schema FILE" in done.stderr
    known = invoke("produce", url, "events", file('{"a":1,"b":null}\n{"a":2,"b":3}\n'), "--json")
    assert known.stderr == ""


@pytest.mark.parametrize(
    ("rows", "says", "schema", "then"),
    [
        (
            ('{"a":1,"b":null}', '{"a":2,"b":"x"}'),
            "has b, and its reader shows a",
            '{"a": "long", "b": "string"}',
            '{"a":1,"b":null}\n{"a":2,"b":"x"}\n',
        ),
        (
            ('{"a":1}', '{"a":1.5}'),
            "is double, and those before have int64",
            '{"a": "double"}',
            '{"a":1.0}\n{"a":1.5}\n',
        ),
        (
            ('{"a":1}', '{"a":1.5}'),
            "is double, and those before have int64",
            '{"a": "decimal(5, 1)"}',
            '{"a":"1.0"}\n{"a":"1.5"}\n',
        ),
    ],
)
def test_what_was_written_in_two_shapes_is_read_once_a_schema_is_declared(
    invoke: Invoke, url: str, file: File, rows: tuple[str, str], says: str, schema: str, then: str
) -> None:
    for row in rows:
        assert invoke("produce", url, "events", file(f"{row}\n"), "--json").exit_code == 0
    refused = invoke("read", url, "events")
    assert refused.exit_code == 2
    assert says in refused.stderr
    advised = f"stream alter {url} events --schema FILE"
    assert f"{command()} {advised}" in refused.stderr
    if "b" in says:
        assert advised in invoke("read", url, "events", "--columns=a,b").stderr
    assert invoke(*advised.replace("FILE", file(schema)).split()).exit_code == 0
    assert invoke("read", url, "events").stdout == then


def test_rows_beside_opaque_values_are_read_by_the_advice_that_is_given(
    invoke: Invoke, url: str, file: File
) -> None:
    invoke("produce", url, "events", file("opaque\n"))
    invoke("produce", url, "events", file('{"a":1}\n'), "--json")
    advised = f"stream alter {url} events --schema FILE"
    assert advised in invoke("read", url, "events").stderr
    invoke(*advised.replace("FILE", file('{"a": "long"}')).split())
    assert "Name the columns to be read, _value among them" in invoke("read", url, "events").stderr
    shown = invoke("read", url, "events", "--columns=a,_value", "--format=json").stdout
    assert shown == '{"a":null,"_value":"opaque"}\n{"a":1,"_value":null}\n'


@pytest.mark.parametrize(
    ("second", "says"),
    [('{"id":1.5}', "1.5 (float) is no int64"), ('{"id":"x"}', "is int64, and string is given")],
)
def test_a_column_keeps_the_type_of_its_first_value(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch, second: str, says: str
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 20)
    done = invoke("produce", url, "events", file(f'{{"id":1,"at":null}}\n{second}\n'), "--json")
    assert done.exit_code == 2
    assert "line 2: " in done.stderr
    assert f"stream alter {url} events --schema FILE" in done.stderr
    assert "column 'id'" in done.stderr
    assert says in done.stderr
    assert "declare a schema" in done.stderr
    assert lines(url, columns=["id"]) == [{"id": 1}]


def test_a_line_that_is_no_object_is_named_and_what_precedes_it_is_sent(
    invoke: Invoke, url: str, file: File
) -> None:
    for wrong in ("nope", "[1]", '{"id":'):
        done = invoke("produce", url, "events", file(f'{{"id":1}}\n{wrong}\n{{"id":2}}'), "--json")
        assert done.exit_code == 2
        assert "line 2 is no JSON object" in done.stderr
        assert "1 record accepted" in done.stdout


@pytest.mark.parametrize("good", [1, 2, 5, 100])
def test_a_value_that_does_not_fit_is_named_by_its_line_and_what_precedes_it_is_sent(
    invoke: Invoke, url: str, file: File, good: int
) -> None:
    numbers = [number + 0.5 if number == good - 1 else number for number in range(good)]
    text = "".join(f'{{"id":{number}}}\n\n' for number in numbers)
    done = invoke("produce", url, "events", file(text + '{"id":"x"}\n{"id":2}\n'), "--json")
    assert done.exit_code == 2
    assert f"line {2 * good + 1}: column 'id'" in done.stderr
    assert "nor was what follows" in done.stderr
    assert [row["id"] for row in lines(url, columns=["id"])] == numbers


def test_a_first_line_that_does_not_fit_is_named(invoke: Invoke, url: str, file: File) -> None:
    done = invoke("produce", url, "events", file(f'{{"id":{10**30}}}\n{{"id":1}}\n'), "--json")
    assert (done.exit_code, done.stdout) == (2, "✗ nothing was sent\n")
    assert "line 1: column 'id'" in done.stderr


def test_a_declared_schema_says_what_text_means(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("strict", schema=SCHEMA)
    text = '{"id":1,"at":"2026-01-02T03:04:05Z","amount":"1.20"}\n{"id":2,"amount":3}\n'
    done = invoke("produce", url, "strict", file(text), "--json")
    assert done.exit_code == 0, done.stderr
    first, second = lines(url, "strict", columns=list(SCHEMA))
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert first == {"id": 1, "at": at, "amount": Decimal("1.20")}
    assert second == {"id": 2, "at": None, "amount": Decimal("3.00")}
    for wrong, says in (
        ('{"id":1,"extra":1}', "extra"),
        ('{"at":"2026-01-02T03:04:05Z"}', "id"),
        ('{"id":1,"at":"soon"}', "soon"),
        ('{"id":1.5}', "1.5 (float) is no int64"),
        ('{"id":true}', "bool is given"),
        ('{"id":"1"}', "string is given"),
    ):
        done = invoke("produce", url, "strict", file(wrong), "--json")
        assert done.exit_code == 2
        assert says in done.stderr
    assert len(lines(url, "strict")) == 2


NESTED = {
    "s": "struct<x: int64, y: double>",
    "l": "list<struct<x: int64>>",
    "m": "map<string, struct<x: int32, b: binary>>",
    "f": "float",
}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"s":{"x":1,"lost":"gone"}}', "s.lost  string is given, and not declared"),
        ('{"s":{"X":7}}', "s.X  int64 is given, and not declared (did you mean 'x'?)"),
        ('{"l":[{"x":1},{"lost":2}]}', "l.element.lost  int64 is given, and not declared"),
        ('{"m":{"k":{"x":1,"lost":2}}}', "m.value.lost  int64 is given, and not declared"),
        ('{"m":{"k":{"x":1.5}}}', "1.5 (float) is no int32"),
        ('{"f":1e300}', "1e+300 (float) is no float"),
    ],
)
def test_what_is_not_declared_within_a_column_is_refused_and_not_dropped(
    invoke: Invoke, url: str, make: Make, file: File, wrong: str, says: str
) -> None:
    make("nested", schema=NESTED)
    good = '{"s":{"y":0.5},"l":[{"x":1}],"m":{"k":{"b":"text"}},"f":0.5}'
    done = invoke("produce", url, "nested", file(f"{good}\n{wrong}\n"), "--json")
    assert done.exit_code == 2
    assert f"line 2: column '{wrong[2]}" in done.stderr
    assert says in done.stderr
    (row,) = lines(url, "nested", columns=list(NESTED))
    assert row == {
        "s": {"x": None, "y": 0.5},
        "l": [{"x": 1}],
        "m": [("k", {"x": None, "b": b"text"})],
        "f": 0.5,
    }


def test_a_field_that_earlier_lines_did_not_have_is_not_dropped(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", 14)
    done = invoke("produce", url, "events", file('{"s":{"x":1}}\n{"s":{"y":2}}\n'), "--json")
    assert done.exit_code == 2
    assert "line 2: column 's'" in done.stderr
    assert "declare a schema" in done.stderr
    assert lines(url, columns=["s"]) == [{"s": {"x": 1}}]


def test_files_of_columns(invoke: Invoke, url: str, tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "_key": [b"x", b"y", b"z"]})
    pq.write_table(table, tmp_path / "parquet")
    for name, new in (("stream", pa.ipc.new_stream), ("arrow", pa.ipc.new_file)):
        with new(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    (tmp_path / "csv").write_text("id,name,_key\n1,a,x\n2,b,y\n3,c,z\n")
    for name, flag in (
        ("parquet", "--parquet"),
        ("stream", "--arrow"),
        ("arrow", "--arrow"),
        ("csv", "--csv"),
    ):
        done = invoke("produce", url, "events", str(tmp_path / name), flag)
        assert done.exit_code == 0, (name, done.stderr)
        assert "3 records accepted" in done.stdout
    rows = lines(url, columns=["id", "name", "_key"])
    assert [row["id"] for row in rows] == [1, 2, 3] * 4
    assert rows[:3] == table.to_pylist()


def test_a_damaged_file_of_columns_says_how_far_it_was_read(
    invoke: Invoke, url: str, file: File
) -> None:
    done = invoke("produce", url, "events", file(b"PAR1 and no more"), "--parquet")
    assert done.exit_code == 2
    assert "after 0 rows" in done.stderr


def test_large_batches_are_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_input, "PIECE_BYTES", 1000)
    batch = pa.record_batch({"id": pa.array(range(1000), pa.int64())})
    slices = list(produce_input._sliced(batch))
    assert [piece.num_rows for piece in slices] == [125] * 8
    assert pa.Table.from_batches(slices).to_pydict() == batch.to_pydict()


@pytest.mark.parametrize(
    ("name", "text"), [("nothing", None), ("input", b"PAR1"), ("input", b"none\n")]
)
def test_where_nothing_was_sent_no_counts_are_shown(
    invoke: Invoke, url: str, tmp_path: Path, name: str, text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    done = invoke("produce", url, "events", str(tmp_path / name), "--key-separator=:")
    assert (done.exit_code, done.stdout) == (2, "✗ nothing was sent\n")


def test_what_was_read_and_not_accepted_is_counted() -> None:
    console = Console(file=io.StringIO(), width=100)
    show_outcome(console, Outcome(read_rows=3, error=Refused("x")))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "✗ none of the 3 records that were read is accepted\n"


# Standard input, signals


def start(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headwater.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **pipes,
    )


def wait_for(url: str, records: int) -> None:
    async def look(store: Store) -> None:
        looker = (await open_stream(store, "events")).looker(0)
        async with asyncio.timeout(60):
            while (await looker.state()).next_lsn <= records:
                continue

    on(url, look)


def test_a_signal_sends_what_was_read_and_says_so(url: str) -> None:
    process = start("produce", url, "events", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhal")
    process.stdin.flush()
    wait_for(url, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, err
    assert b"2 records accepted" in out
    assert b"interrupted: every whole line" in out
    assert b"Traceback" not in err
    assert values(url) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_following_shows_what_comes_until_a_signal(
    url: str, invoke: Invoke, file: File, number: signal.Signals, status: int
) -> None:
    invoke("produce", url, "events", file("before\n"))
    process = start("read", url, "events", "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == b"before\n"
    invoke("produce", url, "events", file("after\n"))
    assert process.stdout.readline() == b"after\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, b"")


def test_signals_are_taken_while_waiting_and_noted_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with Interrupt() as interrupt:
        with pytest.raises(Interrupted), interrupt.waiting():
            signalled()
        assert interrupt.exit_status == 130
        with pytest.raises(Interrupted), interrupt.waiting():
            raise AssertionError("it was interrupted before")
    with Interrupt() as interrupt:
        signalled()
        assert interrupt.received == signal.SIGINT
        signalled()  # passed on by whoever started this
        monkeypatch.setattr(interrupt_module, "SAME_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signalled()


# Reading


@pytest.fixture
def filled(url: str, invoke: Invoke, file: File) -> str:
    """Five records in two batches, one of them no text."""
    for text in (b"k:one\nk:two\nk:three\n", b"k:\xff\xfe\nk:five\n"):
        assert invoke("produce", url, "events", file(text), "--key-separator=:").exit_code == 0
    return url


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
    invoke("produce", url, "events", file('{"id":1}\n'), "--json")
    invoke("produce", url, "events", file("opaque\n"))
    done = invoke("read", url, "events", "--format=parquet", "-o", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "two shapes" in done.stderr
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
    skipped = invoke("read", url, "events", "--skip-unreadable")
    assert (skipped.exit_code, skipped.stdout) == (1, "first\nlast\n")
    assert "LSNs 2 to 3 cannot be read" in skipped.stderr


def test_the_help_has_room_for_words(invoke: Invoke) -> None:
    words = invoke("read", "--help", COLUMNS="80").stdout
    assert "--no-skip-unreadable" not in words
    assert "lines|json|csv" not in words


def test_a_screen_shows_places_and_nothing_that_moves_its_cursor() -> None:
    batch = pa.record_batch(
        {"_value": [b"plain", b"\x1b[31mred\x07"], "_lsn": [7, 1234], "_partition": [0, 2]}
    )
    sink = io.BytesIO()
    Lines(sink, batch.schema, None, on_screen=True).write(batch)
    plain, red = re.sub(r"\x1b\[[02]m", "", sink.getvalue().decode()).splitlines()
    assert plain == "        7  plain"
    assert red == r"  2:1,234  \x1b[31mred\x07"


# Lag and garbage


def acknowledge(url: str, batches: int, stream: str = "events") -> None:
    async def work(store: Store) -> None:
        async with await Consumer.open(store, stream, gc=False) as consumer:
            for _ in range(batches):
                batch = await consumer.next_batch()
                assert batch is not None
                await consumer.ack(batch.sequence)

    on(url, work)


def test_lag_by_partition_and_in_total(invoke: Invoke, url: str, make: Make, file: File) -> None:
    make("wide", partitions=2)
    for partition in (0, 1, 1):
        invoke("produce", url, "wide", file("a\nb\n"), f"--partition={partition}")
    text = invoke("lag", url, "wide").stdout
    assert re.search(r"^ +0 +1 +2 +", text, re.MULTILINE)
    assert re.search(r"^ +1 +2 +4 +", text, re.MULTILINE)
    assert re.search(r"^ +total +3 +6 +", text, re.MULTILINE)
    found = json.loads(invoke("lag", url, "wide", "--json").stdout)
    assert [one["batches"] for one in found["partitions"]] == [1, 2]
    assert (found["total"]["records"], found["total"]["seconds"] >= 0) == (6, True)
    acknowledge(url, 1, "wide")
    one = json.loads(invoke("lag", url, "wide", "--json", "--partition=0").stdout)
    assert one["total"] == {"batches": 0, "records": 0, "size_bytes": 0, "seconds": 0.0}
    refused = invoke("lag", url, "wide", "--group=audit", "--partition=1")
    assert "group 'audit' has no position" in refused.stderr


def test_lag_is_watched_until_a_signal(url: str) -> None:
    process = start("lag", url, "events", "--watch", "--json", "--every=0.1")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["stream"] == "events"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGTERM, b"")


def test_the_total_is_of_those_partitions_that_can_be_told() -> None:
    lag = Lag(1, 2, 3, 4.0)
    assert total_lag({0: lag, 1: "gone", 2: Lag(1, 1, None, 9.0)}) == Lag(2, 3, 3, 9.0)


def test_gc_says_what_went_and_what_stays_and_why(
    invoke: Invoke, url: str, make: Make, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLOOR_SETTLE_S", 0.0)
    make("brief", retention_ms=0)
    for text in ("a\n", "x" * 40_000 + "\n", "b\n"):
        invoke("produce", url, "brief", file(text))
    kept = invoke("gc", url, "brief").stdout
    assert re.search(r"kept +3 +batches: not acknowledged", kept)
    acknowledge(url, 3, "brief")
    done = invoke("gc", url, "brief", "--full")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"deleted +3 +batches, .* KiB: acknowledged, and past", done.stdout)
    assert re.search(r"kept +0 +batches: not acknowledged", done.stdout)
    assert re.search(r"oldest now +3 ", done.stdout)
    again = json.loads(invoke("gc", url, "brief", "--json").stdout)
    assert again["partitions"][0]["batches_expired"] == 0
    assert again["partitions"][0]["floor_lsn"] == 4


def test_gc_goes_on_until_nothing_is_left_to_do(
    invoke: Invoke, url: str, make: Make, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_MAX_ENTRIES", 1)
    monkeypatch.setattr(limits, "GC_CHUNKS", 2)
    monkeypatch.setattr(limits, "GC_PARALLEL", 1)
    make("brief", retention_ms=0)
    for text in ("a\n", "b\n", "c\n"):
        invoke("produce", url, "brief", file(text))
    acknowledge(url, 3, "brief")
    report = json.loads(invoke("gc", url, "brief", "--json").stdout)["partitions"][0]
    assert (report["batches_expired"], report["floor_sequence"]) == (3, 3)


def test_gc_counts_what_is_kept_at_one_moment(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer acknowledges, and its own collector raises the floor, while this one works."""
    invoke("produce", url, "events", file("a\n"))
    collect = NativeCollector.collect

    async def late(*arguments: Any, **options: Any) -> Collected:
        report = await collect(*arguments, **options)
        report.kept_retained = -512
        return report

    monkeypatch.setattr(NativeCollector, "collect", late)
    [found] = json.loads(invoke("gc", url, "events", "--json").stdout)["partitions"]
    assert (found["kept_pending"], found["kept_retained"], found["floor_sequence"]) == (1, 0, 0)


def test_gc_keeps_what_the_retention_keeps(invoke: Invoke, url: str, file: File) -> None:
    invoke("produce", url, "events", file("a\n"))
    acknowledge(url, 1)
    done = invoke("gc", url, "events", "--partition=0")
    assert re.search(r"1 +batches: acknowledged, and kept for 7 days", done.stdout)
    assert values(url) == [b"a"]


# Arithmetic


def test_ranges_tell_of_others_between() -> None:
    outcome = Outcome()
    outcome.add([Accepted(0, 0, 1, 5, 1, 5), Accepted(0, 1, 6, 7, 2, 2)])
    assert (outcome.ranges[0].runs, outcome.rows) == (1, 7)
    outcome.add([Accepted(0, 3, 10, 11, 3, 2), Accepted(1, 0, 1, 1, 1, 1)])
    assert (outcome.ranges[0].runs, outcome.ranges[0].last_lsn, outcome.rows) == (2, 11, 10)
