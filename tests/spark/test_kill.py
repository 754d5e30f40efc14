"""A query whose driver is killed reads everything once."""

from __future__ import annotations

import pytest

from tests.spark import killer
from tests.spark.killer import run_killed


def test_a_driver_killed_between_the_sinks_commit_and_sparks_own_repeats_nothing() -> None:
    run_killed([(1, "sunk")])


def test_a_row_that_is_missing_or_doubled_is_noticed(tmp_path: object) -> None:
    import json
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "sink").mkdir()
    rows = [[0, number, str(number)] for number in range(killer.RECORDS)]
    (folder / "sink/0.json").write_text(json.dumps(rows))
    killer._check(str(folder), [])
    (folder / "sink/1.json").write_text(json.dumps(rows[-1:]))
    with pytest.raises(AssertionError, match=r"doubled after \[\]: \[149\]"):
        killer._check(str(folder), [])
    (folder / "sink/0.json").write_text(json.dumps(rows[:-2]))
    with pytest.raises(AssertionError, match=r"missing after \[\]: \[148\]"):
        killer._check(str(folder), [])
