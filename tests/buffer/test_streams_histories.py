"""Histories of streams with several partitions, altered and deleted: a sample, and planted bugs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headwater.buffer import layout
from headwater.buffer.stream import Stream, delete
from headwater.buffer.stream.config import StreamConfig, StreamRegister
from headwater.core import runtime
from headwater.store import ObjectMeta, Store
from tests.planted import expect_noticed
from tests.torture.streams_scenarios import SCENARIOS, altering_history, partitions_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 100

_appender, _queue_consumer, _collector = Stream.appender, Stream.queue_consumer, Stream.collector


def appends_to_the_first(self: Stream, partition: int, *args: Any) -> Any:
    """Every partition's records go to the first."""
    return _appender(self, 0, *args)


def takes_from_the_first(self: Stream, partition: int) -> Any:
    """Every partition's consumer reads and acknowledges the first."""
    return _queue_consumer(self, 0)


def collects_the_first(self: Stream, partition: int) -> Any:
    """Every partition's collector works on the first."""
    return _collector(self, 0)


async def deletes_by_name(store: Store, config: StreamConfig) -> AsyncIterator[ObjectMeta]:
    """Takes whatever stands under the name for the deleted stream's."""
    async for meta in store.list(layout.stream_prefix(config.name)):
        if meta.key != layout.stream_key(config.name):
            yield meta


async def alters_blindly(
    self: StreamRegister, stream_id: str, change: Callable[[StreamConfig], StreamConfig]
) -> StreamConfig:
    """Writes what it made of what it read, whatever is there by then."""
    altered = change(await self.read_live(writing=True))
    await runtime.sleep(1.0)
    return await self.update(lambda _: altered)


PARTITIONS: dict[str, Replacement] = {
    "appended-to-the-first": (Stream, "appender", appends_to_the_first),
    "taken-from-the-first": (Stream, "queue_consumer", takes_from_the_first),
    "collected-in-the-first": (Stream, "collector", collects_the_first),
}
ALTERING: dict[str, Replacement] = {
    "deleted-by-name": (delete, "_objects_of", deletes_by_name),
    "altered-blindly": (StreamRegister, "update_live", alters_blindly),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PARTITIONS)
def test_a_bug_among_partitions_is_caught(bug: str) -> None:
    _expect_caught(partitions_history, PARTITIONS[bug])


@pytest.mark.planted
@pytest.mark.parametrize("bug", ALTERING)
def test_a_bug_of_whoever_alters_is_caught(bug: str) -> None:
    _expect_caught(altering_history, ALTERING[bug])


def test_the_same_seed_gives_the_same_history() -> None:
    for history in (partitions_history, altering_history):
        assert history(5) == history(5)
        assert history(5) != history(6)


def _expect_caught(history: Callable[..., str], bug: Replacement) -> None:
    expect_noticed(lambda seed: history(seed, bug), within=HISTORIES_TO_CATCH_A_BUG)
