"""What slots may hold, and the words for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.core.errors import Refused
from headwater.log import RetentionLimits
from headwater.log.primary.slot import (
    InvalidationCause,
    Slot,
    SlotLag,
    SlotStatus,
    exceeded_limit,
    retention_floor,
    slot_status,
)

SMALL = RetentionLimits(max_lag_lsn=10, max_lag_bytes=1000, max_lag_s=60, idle_timeout_s=30)
AT_EVERY_LIMIT = SlotLag(10, 1000, 60, 30)


def slot(name: str, lsn: int) -> Slot:
    return Slot(name, 1, lsn, lsn, 5, 5)


def test_at_a_limit_is_within_it() -> None:
    assert exceeded_limit(AT_EVERY_LIMIT, SMALL) is None


@pytest.mark.parametrize(
    ("beyond", "cause"),
    [
        ({"lsn": 11}, InvalidationCause.HORIZON),
        ({"bytes": 1001}, InvalidationCause.HORIZON),
        ({"seconds": 61.0}, InvalidationCause.HORIZON),
        ({"idle_s": 31.0}, InvalidationCause.IDLE_TIMEOUT),
    ],
)
def test_each_limit_gives_a_slot_up(beyond: dict[str, Any], cause: InvalidationCause) -> None:
    assert exceeded_limit(AT_EVERY_LIMIT._replace(**beyond), SMALL) is cause


def test_no_limit_is_said_by_none() -> None:
    unlimited = RetentionLimits(None, None, None, None)
    assert exceeded_limit(SlotLag(1 << 60, 1 << 60, 1e12, 1e12), unlimited) is None


@pytest.mark.parametrize("name", ["max_lag_lsn", "max_lag_bytes", "max_lag_s", "idle_timeout_s"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} is 0"):
        RetentionLimits(**{name: 0})


def test_the_floor_is_the_slowest_slot_that_is_valid() -> None:
    lost = slot("lost", 1).invalidated(InvalidationCause.HORIZON, 9)
    assert retention_floor([slot("a", 7), slot("b", 4), lost]) == 4
    assert retention_floor([lost]) is None
    assert retention_floor([]) is None


def test_status_in_the_words_of_postgresql() -> None:
    at_20 = slot("a", 20)

    def status(one: Slot = at_20, lag: SlotLag = AT_EVERY_LIMIT, **log: int) -> SlotStatus:
        return slot_status(one, lag, SMALL, **{"oldest_lsn": 21, "archived_lsn": 20, **log})

    assert status() is SlotStatus.RESERVED
    assert status(archived_lsn=21) is SlotStatus.EXTENDED, "kept for the slot alone"
    assert status(lag=AT_EVERY_LIMIT._replace(lsn=11)) is SlotStatus.UNRESERVED
    assert status(oldest_lsn=22) is SlotStatus.LOST, "what it needs is gone"
    assert status(at_20.invalidated(InvalidationCause.HORIZON, 9)) is SlotStatus.LOST
    assert [word.value for word in SlotStatus] == ["reserved", "extended", "unreserved", "lost"]


def test_a_slot_that_was_given_up_does_not_move_and_keeps_its_first_cause() -> None:
    lost = slot("a", 5).invalidated(InvalidationCause.IDLE_TIMEOUT, 9)
    assert lost.advanced(applied_lsn=9, durable_lsn=9) == lost
    assert lost.invalidated(InvalidationCause.HORIZON, 10) == lost


def test_an_acknowledgement_never_moves_a_slot_back() -> None:
    moved = slot("a", 5).advanced(applied_lsn=9, durable_lsn=7)
    assert (moved.restart_lsn, moved.confirmed_lsn) == (7, 9)
    assert moved.advanced(applied_lsn=3, durable_lsn=2) == moved
    assert moved.seen(1) == moved
    durable_alone = moved.advanced(applied_lsn=0, durable_lsn=12)
    assert durable_alone.confirmed_lsn == 12, "what is on disk has been applied"


def test_an_acknowledgement_moves_no_slot_that_is_kept_for_a_bootstrap() -> None:
    kept = msgspec.structs.replace(slot("a", 5), bootstrapping=True)
    assert kept.advanced(applied_lsn=9, durable_lsn=9) == kept
    assert kept.bootstrapped(7) == slot("a", 7)


def test_a_default_is_left_out_of_what_is_stored() -> None:
    assert b"bootstrapping" not in msgspec.json.encode(slot("a", 1))
