"""What `headwater produce` says that it sent."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headwater.buffer.producer import Accepted
from headwater.cli.produce_run import Outcome, show_outcome
from headwater.core.errors import Refused
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


def test_what_was_read_and_not_accepted_is_counted() -> None:
    console = Console(file=io.StringIO(), width=100)
    show_outcome(console, Outcome(read_rows=3, error=Refused("x")))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "✗ none of the 3 records that were read is accepted\n"


def test_ranges_tell_of_others_between() -> None:
    outcome = Outcome()
    outcome.add([Accepted(0, 0, 1, 5, 1, 5), Accepted(0, 1, 6, 7, 2, 2)])
    assert (outcome.ranges[0].runs, outcome.rows) == (1, 7)
    outcome.add([Accepted(0, 3, 10, 11, 3, 2), Accepted(1, 0, 1, 1, 1, 1)])
    assert (outcome.ranges[0].runs, outcome.ranges[0].last_lsn, outcome.rows) == (2, 11, 10)
