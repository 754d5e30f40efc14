"""`headwater produce` that fails on the way: what is accepted, and how the next run goes on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.buffer.murmur2 import partition_for_key
from headwater.buffer.producer import Handle
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.stream import alter_stream
from headwater.cli import produce_input, produce_run
from headwater.core.errors import NoSpace, OutcomeUnknown
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, lines, on, values

Fill = Callable[..., None]
WIDE = 20_000
"""Of a record that takes a batch of its own."""


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Makes the disk full for some uploads of a run, counted from 0."""
    upload = NativeAppender.upload

    def fill(*numbers: int) -> None:
        count = iter(range(1_000_000))

        async def failing(self: Any, batch_id: str, data: Any) -> None:
            if next(count) in numbers:
                raise NoSpace("the disk is full")
            await upload(self, batch_id, data)

        monkeypatch.setattr(NativeAppender, "upload", failing)

    return fill


def wide(count: int, start: int = 0) -> list[bytes]:
    return [f"{number:06d}".encode().ljust(WIDE, b".") for number in range(start, start + count)]


def first(count: int) -> str:
    return "the first record is" if count == 1 else f"the first {count} records are"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every record is a call, and a batch."""
    monkeypatch.setattr(produce_input, "BLOCK_BYTES", WIDE)


BATCHES = ("--set", f"batch_bytes={WIDE}", "--set", "max_in_flight=4")
RESUME = ("--producer-id=load", "--resume")


@pytest.mark.usefixtures("small_pieces")
def test_nothing_is_accepted_after_the_first_failure(
    invoke: Invoke, url: str, file: File, full: Fill
) -> None:
    sent = wide(12)
    full(5)
    done = invoke("produce", url, "events", file(b"\n".join(sent)), *BATCHES)
    accepted = values(url)
    assert done.exit_code == 2
    assert accepted == sent[: len(accepted)], "there is no hole"
    assert len(accepted) <= 5
    assert f"of the input, {first(len(accepted))} accepted" in done.stdout
    assert "the disk is full" in done.stderr, "the reason, not what followed from it"
    assert "Free some space" in done.stderr


def test_of_a_call_that_is_accepted_in_part_the_records_are_counted(
    invoke: Invoke, url: str, file: File, full: Fill
) -> None:
    sent = wide(12)
    full(5)
    one_call = ("produce", url, "events", file(b"\n".join(sent) + b"\n"), *BATCHES)
    done = invoke(*one_call)
    accepted = values(url)
    assert done.exit_code == 2
    assert accepted == sent[: len(accepted)] != sent
    assert f"of the input, {first(len(accepted))} accepted" in done.stdout
    assert f"{12 - len(accepted)} records were read and not accepted" in done.stdout
    assert "--producer-id ID --resume" in done.stdout
    assert "the disk is full" in done.stderr
    assert "not known" not in done.output, "the rest is certainly not accepted"
    assert "handle" not in done.output, "which a command does not have"


def test_of_a_write_in_doubt_nothing_is_called_unaccepted(
    invoke: Invoke, url: str, file: File, full: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(5)
    doubt = OutcomeUnknown("the answer was lost")
    monkeypatch.setattr(Handle, "_error", lambda *_: doubt)
    one_call = file(b"\n".join(wide(12)) + b"\n")  # a line without an end is a call of its own
    done = invoke("produce", url, "events", one_call, *BATCHES, *RESUME)
    left = 12 - len(values(url))
    assert done.exit_code == 2
    assert f"of {left} records it is not known whether they are accepted" in done.stdout
    assert "not accepted" not in done.stdout
    assert "check before you repeat it" in done.stderr


@pytest.mark.usefixtures("small_pieces")
def test_a_second_run_goes_on_after_what_was_accepted(
    invoke: Invoke, url: str, file: File, full: Fill
) -> None:
    sent = wide(12)
    command = ("produce", url, "events", file(b"\n".join(sent)), *BATCHES, *RESUME)
    full(3)
    failed = invoke(*command)
    assert failed.exit_code == 2
    accepted = len(values(url))
    assert accepted < len(sent)
    assert "the same command, run again, continues" in failed.stdout
    full()
    again = invoke(*command)
    assert again.exit_code == 0, again.stderr
    assert f"continues after {first(accepted).rsplit(' ', 1)[0]} of the input" in again.stderr
    assert values(url) == sent
    nothing = invoke(*command)
    assert (nothing.exit_code, len(values(url))) == (0, 12)
    assert "0 records accepted" in nothing.stdout
    assert "12 were accepted before" in nothing.stdout


@pytest.mark.parametrize("form", ["keyed", "keyless", "json", "parquet", "one partition"])
@pytest.mark.usefixtures("small_pieces")
def test_every_partition_goes_on_where_it_was(
    invoke: Invoke,
    url: str,
    make: Make,
    tmp_path: Path,
    full: Fill,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce_run, "TURN_RECORDS", 3)
    chance = random.Random(3)
    make("wide", partitions=3)
    keys = [f"k{chance.randrange(40)}".encode() for _ in range(30)]
    sent = [(key, value) for key, value in zip(keys, wide(30), strict=True)]
    where = tmp_path / "input"
    flags: tuple[str, ...] = ()
    if form == "keyed":
        where.write_bytes(b"\n".join(key + b":" + value for key, value in sent))
        flags = ("--key-separator=:",)
    elif form == "json":
        where.write_text(
            "".join(f'{{"_key":"{k.decode()}","v":"{v.decode()}"}}\n' for k, v in sent)
        )
        flags = ("--json",)
    elif form == "parquet":
        table = pa.table({"_key": keys, "v": [value.decode() for _, value in sent]})
        pq.write_table(table, where, row_group_size=4)
        flags = ("--parquet",)
    else:
        where.write_bytes(b"\n".join(value for _, value in sent))
        flags = ("--partition=1",) if form == "one partition" else ()
    command = ("produce", url, "wide", str(where), *flags, *BATCHES, *RESUME)
    for _ in range(100):
        full(*chance.sample(range(12), 3))
        done = invoke(*command)
        if done.exit_code == 0:
            break
        assert "the disk is full" in done.stderr, done.stderr
    else:
        raise AssertionError("it never ended")
    assert invoke(*command).exit_code == 0
    column = "v" if flags in (("--json",), ("--parquet",)) else "_value"
    for partition in range(3):
        found = [
            row[column] if isinstance(row[column], bytes) else row[column].encode()
            for row in lines(url, "wide", partition=partition, columns=[column])
        ]
        if "key" in form or column == "v":
            expected = [
                value
                for number, (key, value) in enumerate(sent)
                if (number // 3 % 3 if form == "keyless" else partition_for_key(key, 3))
                == partition
            ]
        else:
            expected = [value for _, value in sent] if partition == 1 else []
        assert found == expected


def test_what_cannot_be_resumed_is_said(
    invoke: Invoke, url: str, make: Make, file: File, tmp_path: Path
) -> None:
    place = file("a\nb\n")
    plain = ("produce", url, "events", place)
    assert "it needs --producer-id" in invoke(*plain, "--resume").stderr
    both = invoke(*plain, "--resume", "--producer-id=x", "--metadata=m")
    assert "leave --metadata out" in re.sub(r"[│\n ]+", " ", both.stderr)
    assert invoke(*plain, "--producer-id=old").exit_code == 0
    told = invoke(*plain, "--producer-id=old", "--resume")
    assert (told.exit_code, "have no position of their input" in told.stderr) == (2, True)
    assert invoke(*plain, "--producer-id=new", "--resume").exit_code == 0
    told = invoke(*plain, "--producer-id=new")
    assert (told.exit_code, "was used with --resume" in told.stderr) == (2, True)
    told = invoke("produce", url, "events", file("a\n"), "--producer-id=new", "--resume")
    assert (told.exit_code, "it is another input" in told.stderr) == (2, True)
    assert (told.stdout, "the same command" in told.stderr) == ("", False)
    assert len(values(url)) == 4


def test_keys_that_went_elsewhere_are_not_sent_again(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("wide", partitions=2)
    command = ("produce", url, "wide", file("k:a\nl:b\n"), "--key-separator=:", *RESUME)
    assert invoke(*command).exit_code == 0
    on(url, lambda store: alter_stream(store, "wide", partitions=3))
    told = invoke(*command)
    assert told.exit_code == 2
    assert "records would go elsewhere" in told.stderr
    assert len(lines(url, "wide")) == 2


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("--csv", "--key-column=a"), ("--csv", "--key-column=b")),
        (("--csv", "--key-column=a"), ("--csv",)),
        (("--key-separator=,",), ()),
        ((), ("--key-separator=,",)),
    ],
)
def test_an_input_with_other_keys_is_not_gone_on_with(
    invoke: Invoke, url: str, make: Make, file: File, first: Any, then: Any
) -> None:
    make("wide", partitions=2)
    command = ("produce", url, "wide", file("a,b\n1,2\n3,4\n"), *RESUME)
    assert invoke(*command, *first).exit_code == 0
    before = lines(url, "wide")
    told = invoke(*command, *then)
    assert told.exit_code == 2
    assert "records would go elsewhere" in told.stderr
    assert lines(url, "wide") == before
    # Where keys do not decide, they may be others.
    make("narrow")
    for options in (first, then):
        alone = ("produce", url, "narrow", file("a,b\n1,2\n3,4\n"), *RESUME, *options)
        assert invoke(*alone).exit_code == 0
