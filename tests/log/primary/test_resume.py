"""How a replica that comes back goes on."""

from __future__ import annotations

import pytest

from headwater.core.errors import Refused
from headwater.log.primary.slot import (
    FullRebootstrap,
    InvalidationCause,
    PartialResync,
    Slot,
    plan_bootstrap,
    plan_resume,
)

REMOVED = FullRebootstrap(InvalidationCause.WAL_REMOVED)
AT_500 = Slot("a", 1, 500, 500, 5, 5)


@pytest.mark.parametrize("oldest_lsn", [1, 400, 501])
def test_what_the_log_still_has_is_gone_on_with(oldest_lsn: int) -> None:
    assert plan_resume(AT_500, None, oldest_lsn=oldest_lsn, current_lsn=2000) == PartialResync(500)
    assert plan_resume(AT_500, 500, oldest_lsn=oldest_lsn, current_lsn=2000) == PartialResync(500)


def test_one_record_too_few_is_too_few() -> None:
    assert plan_resume(AT_500, None, oldest_lsn=502, current_lsn=2000) == REMOVED


def test_an_empty_log_that_begins_above_the_slot_is_no_partial_resync() -> None:
    # The leader lost its disk; its log is empty, and will begin at 1,001.
    assert plan_resume(AT_500, None, oldest_lsn=1001, current_lsn=2000) == REMOVED
    assert plan_resume(AT_500, 500, oldest_lsn=1001, current_lsn=2000) == REMOVED


def test_a_replica_that_went_on_after_its_slot_was_stored_goes_on_from_where_it_is() -> None:
    assert plan_resume(AT_500, 520, oldest_lsn=520, current_lsn=2000) == PartialResync(520)


def test_what_no_leader_has_compared_and_none_can_is_not_gone_on_with() -> None:
    assert plan_resume(AT_500, 500, oldest_lsn=501, current_lsn=2000) == PartialResync(500)
    assert plan_resume(AT_500, 520, oldest_lsn=521, current_lsn=2000) == REMOVED
    assert plan_resume(None, 520, oldest_lsn=521, current_lsn=2000) == REMOVED


def test_nobody_goes_on_beyond_the_end_of_the_log() -> None:
    assert plan_resume(AT_500, 520, oldest_lsn=1, current_lsn=300) == PartialResync(300)
    assert plan_resume(AT_500, None, oldest_lsn=1, current_lsn=300) == PartialResync(300)


def test_a_replica_that_lost_what_it_acknowledged_is_sent_it_again_or_made_anew() -> None:
    assert plan_resume(AT_500, 450, oldest_lsn=451, current_lsn=2000) == PartialResync(450)
    assert plan_resume(AT_500, 450, oldest_lsn=452, current_lsn=2000) == REMOVED, (
        "not from the slot: that is a gap"
    )


def test_an_empty_replica_begins_at_the_beginning_or_not_at_all() -> None:
    assert plan_resume(None, 0, oldest_lsn=1, current_lsn=2000) == PartialResync(0)
    assert plan_resume(None, 0, oldest_lsn=2, current_lsn=2000) == REMOVED
    assert plan_resume(None, None, oldest_lsn=2, current_lsn=2000) == REMOVED


def test_a_slot_that_was_given_up_says_why() -> None:
    lost = AT_500.invalidated(InvalidationCause.IDLE_TIMEOUT, 9)
    assert plan_resume(lost, 500, oldest_lsn=1, current_lsn=2000) == FullRebootstrap(
        InvalidationCause.IDLE_TIMEOUT
    )


def test_a_bootstrap_that_was_not_completed_is_begun_again() -> None:
    begun = Slot("a", 1, 500, 500, 5, 5, bootstrapping=True)
    again = FullRebootstrap(InvalidationCause.NOT_BOOTSTRAPPED)
    assert plan_resume(begun, None, oldest_lsn=1, current_lsn=2000) == again
    assert plan_resume(begun, 900, oldest_lsn=1, current_lsn=2000) == again, (
        "what it has is what was to be replaced"
    )
    assert plan_resume(
        begun.bootstrapped(510), None, oldest_lsn=1, current_lsn=2000
    ) == PartialResync(510)


def test_a_bootstrap_begins_from_an_image_that_the_log_continues() -> None:
    assert plan_bootstrap(40, oldest_lsn=41, current_lsn=90) == 40
    assert plan_bootstrap(40, oldest_lsn=1, current_lsn=90) == 40


def test_a_bootstrap_without_an_image_takes_the_whole_log() -> None:
    assert plan_bootstrap(None, oldest_lsn=1, current_lsn=90) == 0


def test_a_bootstrap_from_neither_is_refused_and_says_why() -> None:
    with pytest.raises(Refused, match="begins at LSN 2"):
        plan_bootstrap(None, oldest_lsn=2, current_lsn=90)
    with pytest.raises(Refused, match="records 41 to 50 are in neither"):
        plan_bootstrap(40, oldest_lsn=51, current_lsn=90)
