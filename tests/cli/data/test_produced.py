"""What `headwater produce` says that it sent."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.buffer.producer import Accepted, BlockingProducer, PartlyAccepted
from headwater.cli.produce_command import PartitionRange, ProduceOutcome
from headwater.cli.produce_input import InputPiece
from headwater.cli.produce_run import FromTheStart, produce_all
from headwater.cli.render import Progress, report_lines
from headwater.cli.terminal import Interrupt
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused, Unavailable
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
        (ProduceOutcome(3, error=Refused("x")), "none of the 3 records that were sent is accepted"),
        (ProduceOutcome(1, error=Refused("x")), "the one record that was sent is not accepted"),
        (ProduceOutcome(error=OutcomeUnknown("x")), "nothing was sent"),
        (
            ProduceOutcome(3, unknown_rows=3, error=OutcomeUnknown("x")),
            "none of the 3 records that were sent is known to be accepted",
        ),
        (
            ProduceOutcome(1, unknown_rows=1, error=OutcomeUnknown("x")),
            "the one record that was sent is not known to be accepted",
        ),
        (
            ProduceOutcome(100, error=OutcomeUnknown("x")),
            "none of the 100 records that were sent is known to be accepted",
        ),
        (
            ProduceOutcome(4, skipped_rows=1, leading_rows=1, error=Refused("x")),
            "none of the 3 records that were sent is accepted; 1 was accepted before",
        ),
    ],
)
def test_what_was_sent_and_not_accepted_is_counted(outcome: ProduceOutcome, said: str) -> None:
    assert _shown(outcome)[0] == f"✗ {said}"


@pytest.mark.parametrize(
    ("outcome", "lines"),
    [
        (
            ProduceOutcome(
                2, leading_rows=1, ranges={0: PartitionRange(1, 1, 1)}, error=Refused("x")
            ),
            ["of the input, the first record is accepted", "1 record was read and not accepted"],
        ),
        (
            ProduceOutcome(
                9, leading_rows=4, ranges={0: PartitionRange(1, 5, 5)}, error=Refused("x")
            ),
            [
                "of the input, the first 4 records are accepted, all of them",
                "1 of those that follow is accepted as well, in other partitions or calls",
                "4 records were read and not accepted",
            ],
        ),
        (
            ProduceOutcome(
                9, ranges={0: PartitionRange(1, 5, 5)}, unknown_rows=1, error=OutcomeUnknown("x")
            ),
            [
                "of the input, the first record is not known to be accepted",
                "5 of those that follow are accepted as well, in other partitions or calls",
                "3 records were read and not accepted",
                "of 1 record it is not known whether it is accepted",
            ],
        ),
    ],
)
def test_what_is_left_is_counted_in_words(outcome: ProduceOutcome, lines: list[str]) -> None:
    assert _shown(outcome)[2:-1] == lines


def _shown(outcome: ProduceOutcome) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in report_lines(outcome.describe(), 100)]


class _Failing:
    """Stands in for a producer, of which each call fails with the next of these errors."""

    metrics = SimpleNamespace(batches_flushed=0, bytes_flushed=0)

    def __init__(self, *errors: HeadwaterError, closing: HeadwaterError | None = None) -> None:
        self._errors = iter(errors)
        self._closing = closing

    def produce(self, *_: Any, **__: Any) -> Any:
        def result() -> None:
            raise error

        error = next(self._errors)
        return SimpleNamespace(is_done=False, accepted=list, result=result)

    def close(self) -> None:
        if self._closing is not None:
            raise self._closing


@pytest.mark.parametrize("doubted", [0, 1, 2])
def test_an_unknown_outcome_of_one_call_is_not_hidden_by_the_failure_of_another(
    doubted: int,
) -> None:
    """The error and the lines: a user who reads "not accepted" sends the records again."""
    errors: list[HeadwaterError] = [Unavailable("dropped"), Refused("stopped"), Refused("stopped")]
    unknown = OutcomeUnknown("no answer")
    errors[doubted] = unknown
    sizes = [10, 20, 30]
    outcome = produce_all(
        cast("BlockingProducer", _Failing(*errors, closing=unknown)),
        iter([InputPiece([b"x"] * size, None, None, size, size) for size in sizes]),
        FromTheStart(None, None),
        in_order=False,
        interrupt=Interrupt(),
        progress=Progress(quiet=True),
    )
    assert outcome.error is unknown
    assert outcome.unknown_rows == sizes[doubted]
    assert _shown(outcome)[:-1] == [
        "✗ none of the 60 records that were sent is known to be accepted",
        "of the input, the first record is not known to be accepted",
        f"{60 - sizes[doubted]} records were read and not accepted",
        f"of {sizes[doubted]} records it is not known whether they are accepted",
    ]
    assert "a second run may send accepted records again" in _shown(outcome)[-1]


def test_what_close_says_of_an_unknown_outcome_is_not_replaced() -> None:
    closing = OutcomeUnknown("no answer")
    outcome = produce_all(
        cast("BlockingProducer", _Failing(Unavailable("dropped"), closing=closing)),
        iter([InputPiece([b"x"], None, None, 1, 1)]),
        FromTheStart(None, None),
        in_order=False,
        interrupt=Interrupt(),
        progress=Progress(quiet=True),
    )
    assert outcome.error is closing
    assert _shown(outcome) == ["✗ the one record that was sent is not known to be accepted"]


def test_of_a_partly_accepted_call_nothing_is_in_doubt() -> None:
    """Also where the reason is no error of this package."""
    partly = PartlyAccepted("1 of 2", reason=ValueError("x"))
    outcome = produce_all(
        cast("BlockingProducer", _Failing(partly)),
        iter([InputPiece([b"x"], None, None, 1, 1)]),
        FromTheStart(None, None),
        in_order=False,
        interrupt=Interrupt(),
        progress=Progress(quiet=True),
    )
    assert (outcome.error, outcome.unknown_rows) == (partly, 0)


def test_ranges_tell_of_others_between() -> None:
    outcome = ProduceOutcome()
    outcome.add([Accepted(0, 0, 1, 5, 1, 5), Accepted(0, 1, 6, 7, 2, 2)])
    assert (outcome.ranges[0].runs, outcome.rows) == (1, 7)
    outcome.add([Accepted(0, 3, 10, 11, 3, 2), Accepted(1, 0, 1, 1, 1, 1)])
    assert (outcome.ranges[0].runs, outcome.ranges[0].last_lsn, outcome.rows) == (2, 11, 10)
