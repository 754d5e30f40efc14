"""What a leader's jobs may be told: anything else is refused before it does harm."""

from __future__ import annotations

import math
import uuid
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.limits import TIER_SEGMENT_MAX_BYTES
from headwater.tier import TopicIdPartition
from headwater.tier.jobs import Leader, TierConfig, Tiering
from tests.tier.jobs.given import Place, in_time

ORDERS = TopicIdPartition(uuid.UUID(int=5), "orders", 0)
WHOLE = [
    "retention_ms",
    "retention_bytes",
    "delete_delay_ms",
    "local_retention_ms",
    "local_retention_bytes",
    "merge_below_bytes",
    "merge_target_bytes",
    "merge_segments",
    "bytes_per_s",
    "orphan_grace_ms",
]
SECONDS = ["interval_s", "retry_base_s", "retry_cap_s"]


@pytest.mark.parametrize("word", ["on", "keep", "delete"])
def test_tiering_may_be_given_by_its_word(word: str) -> None:
    config = TierConfig(tiering=word)  # type: ignore[arg-type]
    assert config.tiering is Tiering(word)


@pytest.mark.parametrize("word", ["off", "", None, True, 1, "ON "])
def test_a_tiering_that_is_none_is_refused_with_those_there_are(word: Any) -> None:
    with pytest.raises(Refused, match=r"'on', or to stop it 'keep', .* or 'delete'"):
        TierConfig(tiering=word)


def test_a_misspelt_tiering_is_told_what_was_meant() -> None:
    with pytest.raises(Refused, match="did you mean delete"):
        TierConfig(tiering="Deleted")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [1.5, True, "7d", None, math.nan, -2, 1 << 63])
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Refused, match=f"{name} is .*: it must be a whole number"):
        TierConfig(**{name: value})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1, True, "10", None])
def test_what_is_no_time_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Refused, match=f"{name} is .*: it must be a number of seconds above 0"):
        TierConfig(**{name: value})


def test_no_bytes_a_second_are_refused() -> None:
    with pytest.raises(Refused, match="-1 for no limit"):
        TierConfig(bytes_per_s=0)


def test_a_merged_segment_is_not_to_be_larger_than_a_segment_may_be() -> None:
    TierConfig(merge_target_bytes=TIER_SEGMENT_MAX_BYTES)
    with pytest.raises(Refused, match="TIER_SEGMENT_MAX_BYTES"):
        TierConfig(merge_target_bytes=TIER_SEGMENT_MAX_BYTES + 1)


@pytest.mark.parametrize("epoch", [-1, 1 << 31, "1", 1.0, True, None])
def test_an_epoch_that_no_leader_has_is_refused(epoch: Any) -> None:
    with pytest.raises(Refused, match="epoch is"):
        Leader(ORDERS, epoch, 1, committed_lsn=lambda: 0, slot_floor_lsn=lambda: 0)


@pytest.mark.parametrize("broker_id", [1 << 31, "1", None])
def test_a_broker_that_no_event_can_name_is_refused(broker_id: Any) -> None:
    with pytest.raises(Refused, match="broker_id is"):
        Leader(ORDERS, 1, broker_id, committed_lsn=lambda: 0, slot_floor_lsn=lambda: 0)


@pytest.mark.parametrize("name", ["committed_lsn", "slot_floor_lsn"])
def test_an_lsn_where_it_is_to_be_asked_for_is_refused(name: str) -> None:
    asked: dict[str, Any] = {"committed_lsn": lambda: 0, "slot_floor_lsn": lambda: 0, name: 7}
    with pytest.raises(Refused, match=f"{name} is 7: it must be a function"):
        Leader(ORDERS, 1, 1, **asked)


def test_settings_that_are_none_change_nothing() -> None:
    async def main() -> None:
        led = Place().lead(bytes_per_s=500)
        before = led.led.config
        for wrong in ({"bytes_per_s": 5}, None):
            with pytest.raises(Refused, match="TierConfig"):
                led.manager.configure(wrong)  # type: ignore[arg-type]
        assert led.led.config is before

    in_time(main)


def test_another_rate_counts_for_what_is_under_way() -> None:
    async def main() -> None:
        led = Place().lead(bytes_per_s=1)
        rate = led.led.rate
        await rate.take(10**9)
        led.manager.configure(TierConfig())
        began_s = runtime.monotonic_s()
        await rate.take(10**9)
        assert runtime.monotonic_s() == began_s

    in_time(main)
