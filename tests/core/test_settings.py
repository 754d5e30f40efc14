"""Settings: names with suggestions, and values with units and bounds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from headwater.core.errors import Refused
from headwater.core.settings import (
    SettingNames,
    check_above_zero,
    closest,
    did_you_mean,
    is_forever,
    parse_choice,
    parse_duration_ms,
    parse_flag,
    parse_size_bytes,
    parse_whole_number,
    seconds,
    whole_number,
)

NAMES = SettingNames(
    "a producer",
    ["linger_ms", "batch_bytes", "partitioner"],
    aliases={"batch.size": "batch_bytes"},
    refused={"bootstrap.servers": "there are no brokers"},
    fixed={"acks": (("all", "-1"), "records are accepted once they are durable")},
)


def test_the_closest_name_keeps_its_spelling_and_case_does_not_count() -> None:
    assert closest("GROUPID", ["groupId", "startingOffsets"]) == "groupId"
    assert closest("startingOffset", ["groupId", "startingOffsets"]) == "startingOffsets"
    assert closest("xyz", ["groupId"]) is None
    assert closest(7, ["groupId"]) is None


def test_without_a_close_name_all_are_listed() -> None:
    assert did_you_mean("regoin", ["region", "profile"]) == "; did you mean region?"
    assert did_you_mean("zzz", ["region", "profile"]) == "; known: profile, region"
    assert did_you_mean("zzz", []) == "; known: none"


def test_settings_are_found_under_our_name_and_under_kafkas() -> None:
    given = {"linger.ms": 5, "batch.size": 10, "partitioner": "key", "acks": "ALL"}
    assert NAMES.resolve(given) == {
        "linger_ms": ("linger.ms", 5),
        "batch_bytes": ("batch.size", 10),
        "partitioner": ("partitioner", "key"),
    }
    assert NAMES.resolve({}) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lingerms": 5}, "lingerms is not a setting of a producer; did you mean linger_ms?"),
        ({"linger.m": 5}, "did you mean linger.ms?"),
        ({"xyz": 5}, "xyz is not a setting of a producer; known: batch_bytes, linger_ms, part"),
        ({"bootstrap.servers": "a:1"}, "bootstrap.servers is not a setting of a producer: there"),
        ({"acks": 1}, "acks is always all, not 1: records are accepted once they are durable"),
        (
            {"batch.size": 1, "batch_bytes": 1},
            "batch.size and batch_bytes are the same setting: give one of them",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_the_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as raised:
        NAMES.resolve(given)
    assert message in str(raised.value)


def test_whole_numbers_may_be_numpys_and_never_bools() -> None:
    number = whole_number("lsn", numpy.int64(7))
    assert (number, type(number)) == (7, int)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(Refused, match=r"lsn is .*: it must be a whole number$"):
            whole_number("lsn", wrong)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"at_least": 1, "at_most": 1000}, "n is -5: it must be a whole number from 1 to 1,000"),
        ({"at_least": 0}, "n is -5: it must be a whole number, 0 or more"),
        ({"at_most": -6}, "n is -5: it must be a whole number, -6 or less"),
    ],
)
def test_bounds_are_checked_and_named(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(Refused) as raised:
        whole_number("n", -5, **bounds)
    assert str(raised.value) == message
    for edge in bounds.values():
        assert whole_number("n", edge, **bounds) == edge


def test_whole_numbers_may_be_text_where_configurations_are() -> None:
    assert [parse_whole_number("n", given) for given in ("1,000", " 1_000 ", 1e3)] == [1000] * 3
    for wrong in ("-1", "1.5", "1k", "", 1.5, True, None):
        with pytest.raises(Refused):
            parse_whole_number("n", wrong, at_least=0)


def test_seconds_are_finite_and_above_zero() -> None:
    assert (seconds("interval_s", 1), seconds("interval_s", 0.5)) == (1, 0.5)
    for wrong in (0, -1, float("inf"), float("nan"), True, "1"):
        with pytest.raises(Refused, match=r"interval_s is .*: it must be a number of"):
            seconds("interval_s", wrong)


def test_attributes_above_zero_are_checked_together() -> None:
    check_above_zero(SimpleNamespace(a=1, b=0.5, c=0), "a", "b")
    for wrong in (0, float("nan"), True, "1", None):
        with pytest.raises(Refused, match=r"^b is .*: it must be above 0$"):
            check_above_zero(SimpleNamespace(a=1, b=wrong), "a", "b")


@pytest.mark.parametrize(
    ("parse", "given", "expected"),
    [
        (parse_duration_ms, 500, 500),
        (parse_duration_ms, "500", 500),
        (parse_duration_ms, "7d", 7 * 86_400_000),
        (parse_duration_ms, "1.5 h", 5_400_000),
        (parse_duration_ms, timedelta(seconds=2), 2000),
        (parse_size_bytes, 8.0, 8),
        (parse_size_bytes, "8MiB", 8 << 20),
        (parse_size_bytes, "1_000 KB", 1_000_000),
    ],
)
def test_amounts_have_units(
    parse: Callable[[str, object], int], given: object, expected: int
) -> None:
    assert parse("amount", given) == expected


@pytest.mark.parametrize("given", ["0.1ms", "7 parsecs", "-1", "d", "", True, None, 1.5])
def test_a_wrong_amount_is_refused_with_the_accepted_forms(given: object) -> None:
    with pytest.raises(Refused, match=f"linger={given}: expected 7d, 12h, 30min, 10s or 500ms"):
        parse_duration_ms("linger", given)


def test_a_limit_is_switched_off_by_none_minus_one_or_a_word() -> None:
    assert all(map(is_forever, (None, -1, "-1", "Forever", " unlimited ")))
    assert not any(map(is_forever, (0, 1, True, "1", "never")))


def test_a_choice_ignores_case_and_suggests_the_closest_word() -> None:
    assert parse_choice("format", " NATIVE ", ["native", "v1"]) == "native"
    with pytest.raises(Refused) as raised:
        parse_choice("format", "nativ", ["native", "v1"])
    assert str(raised.value) == (
        "format is 'nativ' (did you mean native?): it must be native or v1"
    )


def test_flags_are_bools_or_their_words() -> None:
    assert [parse_flag("x", given) for given in (True, "yes", "TRUE", "1")] == [True] * 4
    assert [parse_flag("x", given) for given in (False, "no", "False", 0)] == [False] * 4
    with pytest.raises(Refused, match="x is 'maybe': it must be true or false"):
        parse_flag("x", "maybe")
