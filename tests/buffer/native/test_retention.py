"""What a collector of a native queue releases: by age and size, for groups, policies and clocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import pytest

from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.core.errors import Denied
from tests.buffer.native.given import Queue, batch, filled
from tests.store.scripted import virtual

HOUR_MS = 3_600_000
AT_ONCE = Retention(0, grace_ms=0)


async def floor_after(queue: Queue, retention: Retention) -> int:
    """The LSN of the floor after a pass."""
    return (await queue.collector().collect(retention, full=True)).floor_lsn


@virtual
async def test_what_is_past_the_retention_goes_though_no_group_read_it() -> None:
    queue = await Queue().create()
    await queue.fill(3)
    await runtime.sleep(2 * 3600)
    await queue.fill(2, "later")
    report = await queue.collector().collect(Retention(HOUR_MS, grace_ms=0))
    assert (report.batches_expired, report.kept_retained, report.kept_pending) == (3, 2, 0)
    assert report.floor_lsn == 4


@virtual
async def test_what_the_required_group_has_not_processed_stays_at_any_age() -> None:
    queue = await filled(5)
    await runtime.sleep(1e8)
    assert await floor_after(queue, Retention(0, 0, grace_ms=0, below_lsn=1)) == 1
    assert await floor_after(queue, Retention(0, 0, grace_ms=0, below_lsn=4)) == 4
    assert await floor_after(queue, Retention(0, 0, grace_ms=0)) == 6


@virtual
async def test_a_batch_that_the_required_group_has_processed_in_part_stays() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([batch(1, rows=3), batch(2, rows=3)])
    assert await floor_after(queue, Retention(0, grace_ms=0, below_lsn=3)) == 1
    assert await floor_after(queue, Retention(0, grace_ms=0, below_lsn=6)) == 4
    assert await floor_after(queue, Retention(0, grace_ms=0, below_lsn=7)) == 7


@virtual
async def test_a_truncation_passes_what_a_required_group_needs() -> None:
    queue = await filled(5)
    retention = Retention(None, grace_ms=0, below_lsn=1, before_sequence=2)
    assert await floor_after(queue, retention) == 3


# The policy


@virtual
async def test_nothing_goes_under_a_policy_that_was_replaced() -> None:
    queue = await filled(5)
    await queue.chunks.raise_policy(3)
    report = await queue.collector().collect(Retention(0, grace_ms=0, policy=2))
    assert (report.is_outdated, report.floor_lsn) == (True, 1)
    assert await floor_after(queue, Retention(0, grace_ms=0, policy=3)) == 6


@virtual
async def test_a_pass_writes_the_policy_that_it_read_before_it_deletes() -> None:
    queue = await filled(5)
    assert await floor_after(queue, Retention(0, grace_ms=0, policy=2, below_lsn=3)) == 3
    assert (await queue.chunks.floors()).policy == 2
    report = await queue.collector().collect(Retention(0, grace_ms=0, policy=1))
    assert (report.is_outdated, report.floor_lsn) == (True, 3)


@virtual
async def test_a_policy_that_changes_during_a_pass_keeps_the_floor_where_it_is() -> None:
    queue = await filled(5)
    slow = queue.collector()
    fold = "headwater.buffer.queue.native.collector.RetentionPass._fold"

    async def change(*_: object) -> None:
        await queue.chunks.raise_policy(7)

    with mock.patch(fold, change):
        report = await slow.collect(AT_ONCE)
    assert (report.batches_expired, report.floor_lsn) == (0, 1)


@virtual
async def test_the_policy_of_a_queue_only_rises() -> None:
    queue = await filled(1)
    assert (await queue.chunks.raise_policy(4)).policy == 4
    assert (await queue.chunks.raise_policy(2)).policy == 4


# Clocks


class Clocks:
    """A collector whose store and machine have clocks that are set."""

    def __init__(self, queue: Queue) -> None:
        self.store_h = self.machine_h = 0.0
        self._store = queue.store
        with self._set():
            self._collector = queue.collector()

    async def floor_after(self, retention: Retention) -> tuple[int, str]:
        """The LSN of the floor after a pass, and what was in doubt."""
        with self._set():
            report = await self._collector.collect(retention)
        return report.floor_lsn, report.clock_doubt

    @contextlib.contextmanager
    def _set(self) -> Iterator[None]:
        wall_ms = runtime.wall_ms

        async def of_store(_: str) -> int:
            return wall_ms() + int(self.store_h * HOUR_MS)

        def of_machine() -> int:
            return wall_ms() + int(self.machine_h * HOUR_MS)

        with (
            mock.patch.object(self._store, "now_ms", of_store),
            mock.patch.object(runtime, "wall_ms", of_machine),
        ):
            yield


@pytest.mark.parametrize(
    ("store_h", "machine_h", "doubt"),
    [
        (400.0, 0.0, "the store's clock and this machine's differ by 400.0 hours"),
        (400.0, 400.0, "this machine's clock was set by 400.0 hours"),
        (400.0, 399.5, "this machine's clock was set by 399.5 hours"),
        (1.5, 0.8, "the store's clock was set by 1.5 hours"),
        (0.0, -1.5, "differ by 1.5 hours"),
        (0.5, -0.6, "differ by 1.1 hours"),
    ],
)
@virtual
async def test_a_clock_that_was_set_deletes_nothing(
    store_h: float, machine_h: float, doubt: str
) -> None:
    queue = await filled(5)
    clocks = Clocks(queue)
    assert await clocks.floor_after(Retention(24 * HOUR_MS)) == (1, "")
    clocks.store_h, clocks.machine_h = store_h, machine_h
    await runtime.sleep(48 * 3600)  # also what is really past the retention stays
    floor, said = await clocks.floor_after(Retention(24 * HOUR_MS))
    assert floor == 1
    assert doubt in said


@pytest.mark.parametrize("hours", [0.0, 400.0, -400.0])
@virtual
async def test_clocks_that_agree_and_go_on_as_the_process_does_are_believed(hours: float) -> None:
    queue = await filled(5)
    clocks = Clocks(queue)
    clocks.store_h = clocks.machine_h = hours
    clocks = Clocks(queue)
    clocks.store_h = clocks.machine_h = 0.4
    await runtime.sleep(48 * 3600)
    assert await clocks.floor_after(Retention(24 * HOUR_MS)) == (6, "")


@virtual
async def test_while_clocks_are_in_doubt_what_every_group_has_processed_goes_by_age() -> None:
    queue = await filled(5)
    clocks = Clocks(queue)
    clocks.store_h = 400.0
    floor, said = await clocks.floor_after(Retention(HOUR_MS, groups_lsn=3))
    assert (floor, bool(said)) == (3, True)


@virtual
async def test_while_clocks_are_in_doubt_what_is_beyond_the_size_goes() -> None:
    queue = await filled(5)
    clocks = Clocks(queue)
    clocks.store_h = 400.0
    assert (await clocks.floor_after(Retention(HOUR_MS, retention_bytes=20)))[0] == 4


@virtual
async def test_credentials_that_may_not_delete_raise_the_floor_and_say_so() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    await appender.append([await queue.upload(appender, 1)])
    refused = mock.AsyncMock(side_effect=Denied("not yours"))
    with mock.patch.object(queue.store, "delete", refused):
        report = await queue.collector().collect(AT_ONCE)
    assert (report.is_denied, report.failed > 0, report.floor_lsn) == (True, True, 2)
