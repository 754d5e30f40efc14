"""What the kill rounds count is right: a check that cannot fail proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buffer.ledger import Count, count, delivered_numbers, last_line


def test_what_was_delivered_is_told_apart_by_producer() -> None:
    assert delivered_numbers(["a:1", "b:1", "a:2"]) == {"a": [1, 2], "b": [1]}


@pytest.mark.parametrize(
    ("delivered", "expected"),
    [
        ([1, 2, 3], Count(3, 3, 0, 0, 0)),
        ([1, 3], Count(3, 2, 1, 0, 0)),
        ([1, 2, 2, 3], Count(3, 4, 0, 1, 0)),
        ([1, 3, 2], Count(3, 3, 0, 0, 1)),
        ([1, 2, 3, 2, 3], Count(3, 5, 0, 2, 1)),
        # Accepted just before a kill, and nobody was told: not lost, and not doubled either.
        ([1, 2, 3, 4], Count(3, 4, 0, 0, 0)),
    ],
)
def test_lost_doubled_and_disordered_records_are_counted(
    delivered: list[int], expected: Count
) -> None:
    found = count({1, 2, 3}, delivered)
    assert found == expected
    assert found.is_exact == (expected[2:] == (0, 0, 0))


def test_a_torn_line_of_the_ledger_is_cut_off(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert last_line(ledger) is None
    whole = b'{"sequence":4,"through":9,"values":["a:1"]}\n'
    ledger.write_bytes(whole + b'{"sequence":5,"thr')
    last = last_line(ledger)
    assert last is not None
    assert (last.sequence, last.through) == (4, 9)
    assert ledger.read_bytes() == whole
