"""Garbage collection beside a consumer: regular, contained, and gone when its owner is."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.consumer.ownership import Sweeper
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from tests.buffer.consumer.fakes import FakeCollector, FakeQueue
from tests.store.scripted import virtual


class Owner:
    """Somebody who has a sweeper."""


def passes(collector: FakeCollector) -> Callable[[], Awaitable[Collected]]:
    """Passes of a collector, one at each call."""
    return lambda: collector.collect(Retention(1000))


def sweeper_of(queue: FakeQueue, metrics: ConsumerMetrics | None = None) -> Sweeper:
    return Sweeper(passes(FakeCollector(queue)), metrics or ConsumerMetrics(), interval_s=300)


@virtual
async def test_a_pass_runs_every_interval_and_is_counted() -> None:
    queue, metrics, owner = FakeQueue(), ConsumerMetrics(), Owner()
    sweeper = sweeper_of(queue, metrics)
    sweeper.start(owner)
    await runtime.sleep(299)
    assert queue.asked == []
    await runtime.sleep(602)
    assert queue.asked == ["collect"] * 3
    assert (metrics.gc_files_deleted, metrics.gc_files_failed) == (12, 9)
    assert metrics.gc_duration_seconds.count == 3
    await sweeper.close()


@virtual
async def test_a_pass_that_was_cut_short_is_followed_by_another_at_once() -> None:
    class Behind(FakeCollector):
        async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
            done = await super().collect(retention, full=full)
            done.is_cut_short = len(self.queue.asked) < 3
            return done

    queue, owner = FakeQueue(), Owner()
    sweeper = Sweeper(passes(Behind(queue)), ConsumerMetrics(), interval_s=300)
    sweeper.start(owner)
    await runtime.sleep(301)
    assert queue.asked == ["collect"] * 3
    await runtime.sleep(300)
    assert queue.asked == ["collect"] * 4
    await sweeper.close()


@virtual
async def test_of_passes_that_fail_one_after_the_other_the_first_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, owner = FakeQueue(), Owner()
    sweeper = sweeper_of(queue)
    sweeper.start(owner)
    queue.fail("collect", Unavailable("down"), Unavailable("still"))
    await runtime.sleep(901)
    queue.fail("collect", Unavailable("again"))
    await runtime.sleep(300)
    told = [record.getMessage() for record in caplog.records]
    assert [one.rpartition(": ")[2] for one in told] == ["down", "again"]
    assert "tried again every 300 s: Unavailable" in told[0]
    await sweeper.close()


@virtual
async def test_a_failing_pass_is_counted_and_the_next_one_runs() -> None:
    queue, metrics, owner = FakeQueue(), ConsumerMetrics(), Owner()
    sweeper = sweeper_of(queue, metrics)
    sweeper.start(owner)
    queue.fail("collect", Unavailable("down"), KeyError("a bug"))
    await runtime.sleep(901)
    assert metrics.gc_passes_failed == 2
    assert metrics.gc_last_error == "KeyError: 'a bug'"
    assert metrics.gc_files_deleted == 4
    await sweeper.close()


@virtual
async def test_what_several_passes_could_not_do_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hindered(FakeCollector):
        async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
            done = await super().collect(retention, full=full)
            done.is_denied = len(self.queue.asked) != 3
            hours = len(self.queue.asked)
            done.clock_doubt = f"the store's clock and this machine's differ by {hours}.0 hours"
            return done

    queue, owner = FakeQueue(), Owner()
    sweeper = Sweeper(passes(Hindered(queue)), ConsumerMetrics(), interval_s=300)
    sweeper.start(owner)
    await runtime.sleep(1201)
    told = [record.getMessage() for record in caplog.records]
    assert ["may not delete" in one for one in told] == [False, True, True]
    assert told[0].startswith("the store's clock and this machine's differ: only what every group")
    await sweeper.close()


@virtual
async def test_it_ends_with_its_owner() -> None:
    queue, owner = FakeQueue(), Owner()
    sweeper = sweeper_of(queue)
    sweeper.start(owner)
    await runtime.sleep(301)
    del owner
    gc.collect()
    await runtime.sleep(3000)
    assert queue.asked == ["collect"]
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "garbage collection"]


@virtual
async def test_closing_ends_a_pass_that_is_under_way() -> None:
    class Endless(FakeCollector):
        ended = False

        async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
            try:
                await runtime.sleep(1e6)
            finally:
                self.ended = True
            return Collected()

    collector, owner = Endless(FakeQueue()), Owner()
    sweeper = Sweeper(passes(collector), ConsumerMetrics(), interval_s=300)
    sweeper.start(owner)
    await runtime.sleep(400)
    await sweeper.close()
    assert collector.ended


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="gc_interval_s"):
        Sweeper(passes(FakeCollector(FakeQueue())), ConsumerMetrics(), interval_s=0)
