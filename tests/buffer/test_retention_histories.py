"""Histories of retention, required groups and policies: a sample, and proof that they can fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer import collection
from headwater.buffer.group import register
from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.queue.retention import Retention, RetentionRule
from headwater.buffer.stream import Stream, open_stream, streams
from headwater.buffer.stream.config import StreamConfig
from headwater.core import runtime
from headwater.store import Store
from tests.planted import expect_noticed
from tests.torture.retention_scenarios import SCENARIOS, retention_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 150
FIRST: dict[str, int] = {}
"""Where not to begin at 0, only to be done sooner."""


def holds_nothing_back(self: RetentionRule, sequence: int, end_lsn: int) -> bool:
    """Lets go what a required group has not processed."""
    return False


def past_by_its_own_clock(self: RetentionRule, appended_ms: int, end_lsn: int) -> bool:
    """Believes its own clock, and not the store's."""
    retention_ms = self._retention.retention_ms
    return retention_ms is not None and appended_ms <= runtime.wall_ms() - retention_ms


async def takes_any_policy(
    self: NativeCollector, retention: Retention, *, full: bool = False
) -> Collected:
    """Raises the floor under whichever policy the queue has, and not the one it decided under."""
    now = await self._chunks.floors()
    retention = msgspec.structs.replace(retention, policy=max(now.policy, retention.policy))
    return await _collect(self, retention, full=full)


_collect = NativeCollector.collect


async def tells_no_queue(store: Store, config: StreamConfig) -> StreamConfig:
    """Returns from an alteration before the queues know of it."""
    return config


async def tells_nobody(stream: Stream, group: str) -> None:
    """Returns from a reset without a word."""


async def reads_the_position_first(stream: Stream, partition: int) -> Retention:
    """Reads where the group is, and then the settings and their policy."""
    before = (await open_stream(stream.store, stream.name)).config.required_group
    lsn = None if before is None else await _position_of(stream, partition, before)
    await runtime.sleep(runtime.random().random() * 60)
    retention = await _retention_of(stream, partition)
    now = (await open_stream(stream.store, stream.name)).config
    if now.required_group == before and lsn is not None:
        retention = msgspec.structs.replace(retention, below_lsn=lsn)
    return retention


_position_of, _retention_of = collection._position_of, collection.retention_of


PLANTED: dict[str, Replacement] = {
    "floor-past-a-required-group": (RetentionRule, "is_held", holds_nothing_back),
    "floor-under-an-old-policy": (NativeCollector, "collect", takes_any_policy),
    "alteration-tells-no-queue": (streams, "announce_policy", tells_no_queue),
    "reset-without-a-policy": (register, "renew_policy_for", tells_nobody),
    "position-before-the-policy": (collection, "retention_of", reads_the_position_first),
    "clocks-are-believed": (RetentionRule, "is_past", past_by_its_own_clock),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: retention_history(seed, PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=FIRST.get(bug, 0),
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert retention_history(5) == retention_history(5)
