"""Errors whose sentence comes first: in Spark's own workers, and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from headwater.core.errors import Bug, Refused
from headwater.spark.plain_errors import HIDE, plain


@plain
def fails(error: Exception) -> None:
    """Raises what it is given."""
    raise error


@plain
def fails_later(error: Exception) -> Iterator[int]:
    yield 1
    raise error


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process were one of Spark's workers."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv(HIDE, "before")
    monkeypatch.delenv(HIDE)


@pytest.mark.usefixtures("worker")
def test_an_error_with_a_cure_is_sent_without_its_traceback() -> None:
    with pytest.raises(Refused):
        fails(Refused("do this"))
    assert os.environ[HIDE]
    assert (fails.__name__, fails.__doc__) == ("fails", "Raises what it is given.")


@pytest.mark.usefixtures("worker")
def test_rows_that_fail_half_way_say_so_first() -> None:
    rows = fails_later(Refused("do this"))
    assert next(rows) == 1
    assert HIDE not in os.environ
    with pytest.raises(Refused):
        next(rows)
    assert os.environ[HIDE]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("error", [Bug("ours"), ZeroDivisionError("somewhere")])
def test_an_error_that_needs_its_traceback_keeps_it(error: Exception) -> None:
    with pytest.raises(type(error)):
        fails(error)
    assert HIDE not in os.environ


def test_a_process_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(Refused):
        fails(Refused("do this"))
    assert HIDE not in os.environ
