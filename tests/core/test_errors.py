"""The tree of errors is the one that is drawn, and every error can travel."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from headwater.core import errors
from headwater.core.errors import (
    Conflict,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Trimmed,
    Unavailable,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HeadwaterError)
]


def drawn_parents() -> dict[str, str | None]:
    """Each name in the drawing, and the name it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ((?:│   |    )*)(├── |└── )?([A-Z]\w+)(?:\s{2,}|$)", line)
        if found:
            depth = len(found[1]) // 4 + bool(found[2])
            del path[depth:]
            parents[found[3]] = path[-1] if path else None
            path.append(found[3])
    return parents


def test_the_classes_are_those_of_the_drawing() -> None:
    drawn = drawn_parents()
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in KINDS}

    assert len(drawn) > 15
    assert drawn == {**real, "HeadwaterError": None}


def test_every_kind_has_one_parent_and_says_what_to_do() -> None:
    for kind in KINDS:
        assert len(kind.__bases__) == 1
        assert kind.__doc__


@pytest.mark.parametrize("other", [Unavailable, Conflict, Refused, NotFound])
def test_an_unknown_outcome_is_caught_as_nothing_else(other: type[HeadwaterError]) -> None:
    assert not issubclass(OutcomeUnknown, other)
    assert not issubclass(other, OutcomeUnknown)
    assert OutcomeUnknown.__bases__ == (HeadwaterError,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_travels(kind: type[HeadwaterError], protocol: int) -> None:
    error = Trimmed("why", floor_lsn=7) if kind is Trimmed else kind("why")

    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "why"


def test_what_was_trimmed_still_knows_its_floor_after_travelling() -> None:
    twin = pickle.loads(pickle.dumps(Trimmed("why", floor_lsn=7)))

    assert twin.floor_lsn == 7
