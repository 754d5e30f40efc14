"""What `headwater produce` says that it sent."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headwater.buffer.producer import Accepted
from headwater.cli.produce_run import Outcome, Range, show_outcome
from headwater.core.errors import OutcomeUnknown, Refused
from tests.cli.conftest import Invoke


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


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(3, error=Refused("x")), "none of the 3 records that were read is accepted"),
        (Outcome(1, error=Refused("x")), "the one record that was read is not accepted"),
        (
            Outcome(3, unknown_rows=3, error=OutcomeUnknown("x")),
            "no record is known to be accepted, of 3 records that were read",
        ),
    ],
)
def test_what_was_read_and_not_accepted_is_counted(outcome: Outcome, said: str) -> None:
    console = Console(file=io.StringIO(), width=100)
    show_outcome(console, outcome)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == f"✗ {said}\n"


@pytest.mark.parametrize(
    ("outcome", "lines"),
    [
        (
            Outcome(2, leading_rows=1, ranges={0: Range(1, 1, 1)}, error=Refused("x")),
            ["of the input, the first record is accepted", "1 record was read and not accepted"],
        ),
        (
            Outcome(9, leading_rows=4, ranges={0: Range(1, 5, 5)}, error=Refused("x")),
            [
                "of the input, the first 4 records are accepted, all of them",
                "1 of those that follow is accepted as well, in other partitions or calls",
                "4 records were read and not accepted",
            ],
        ),
        (
            Outcome(9, ranges={0: Range(1, 5, 5)}, unknown_rows=1, error=OutcomeUnknown("x")),
            [
                "of the input, the first record is not known to be accepted",
                "5 of those that follow are accepted as well, in other partitions or calls",
                "3 records were read and not accepted",
                "of 1 record it is not known whether it is accepted",
            ],
        ),
    ],
)
def test_what_is_left_is_counted_in_words(outcome: Outcome, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), width=100)
    show_outcome(console, outcome)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[2:-1] == lines


def test_ranges_tell_of_others_between() -> None:
    outcome = Outcome()
    outcome.add([Accepted(0, 0, 1, 5, 1, 5), Accepted(0, 1, 6, 7, 2, 2)])
    assert (outcome.ranges[0].runs, outcome.rows) == (1, 7)
    outcome.add([Accepted(0, 3, 10, 11, 3, 2), Accepted(1, 0, 1, 1, 1, 1)])
    assert (outcome.ranges[0].runs, outcome.ranges[0].last_lsn, outcome.rows) == (2, 11, 10)
