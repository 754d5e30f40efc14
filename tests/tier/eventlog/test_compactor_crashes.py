"""Compactors that crash, and writes whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    OutcomeUnknown,
)
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.testing import Simulation, simulate
from headwater.tier.eventlog import (
    Compactor,
)
from tests.store.scripted import Scripted, fails, lands_then, virtual
from tests.tier.eventlog.stored_given import (
    GRACE_S,
    damage,
    floor_of,
    followed,
    opened,
    publish_events,
    replayed,
    snapshots_there,
)


class Crash(Exception):
    """The process ends here."""


class CrashingBackend(MemoryBackend):
    """A store whose client dies at its n-th write, before or after it is carried out."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.dies_at = 0
        self.dies_after = False
        self.is_counting = False
        self.writes = 0

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await self._write(lambda: super(CrashingBackend, self).put(key, data, condition))
        assert isinstance(version, Version)
        return version

    async def delete(self, key: str) -> None:
        await self._write(lambda: super(CrashingBackend, self).delete(key))

    async def _write(self, apply: Callable[[], Awaitable[Any]]) -> Any:
        self.writes += self.is_counting
        dies = self.is_counting and self.writes == self.dies_at
        if dies and not self.dies_after:
            raise Crash
        done = await apply()
        if dies:
            raise Crash
        return done


async def _crash_once(dies_at: int, dies_after: bool) -> bool:
    """Compact, delete, compact: with a death on the way. Whether it came to that."""
    backend = CrashingBackend()
    log = await opened(backend)
    published = await publish_events(log, 6)
    backend.dies_at, backend.dies_after = dies_at, dies_after

    async def tend() -> None:
        compactor = Compactor(await opened(backend))
        await compactor.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        await compactor.compact(0, every_events=1)

    async def check() -> None:
        assert (await followed(await opened(backend))).dumps == replayed(published)

    crashed = False
    for number in range(3):
        backend.is_counting = True
        try:
            await tend()
        except Crash:
            crashed = True
        backend.is_counting = False
        await check()
        published += await publish_events(log, 2, first=6 + 2 * number)
    for _ in range(2):  # one floor is waited for after the other
        await tend()
    await check()
    left = [key for key in backend._objects if key.startswith("metadata/0/")]
    assert len(left) == 2, f"a floor and its snapshot, and nothing that nobody needs: {left}"
    return crashed


@pytest.mark.parametrize("dies_after", [False, True])
def test_a_crash_at_any_write_leaves_a_log_that_reads_as_before(dies_after: bool) -> None:
    async def main(_: Simulation) -> None:
        dies_at = 1
        while await _crash_once(dies_at, dies_after):
            dies_at += 1
        assert dies_at > 20, "a snapshot, two moves of the floor, and every deletion"

    simulate(main, stall_max_s=0)


@virtual
async def test_a_floor_whose_move_was_not_answered_is_found_where_it_is() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    published = await publish_events(log, 6)
    backend.next("put_if_unchanged", lands_then(OutcomeUnknown("reset")))
    assert (await Compactor(log).compact(0, every_events=1)).floor == 6
    assert (await followed(await opened(backend))).dumps == replayed(published)


@virtual
async def test_a_snapshot_that_may_not_be_there_moves_no_floor() -> None:
    backend = Scripted()
    log = await opened(backend, attempts=1)
    await publish_events(log, 6)
    backend.next("put", fails(OutcomeUnknown("reset")))
    with pytest.raises(OutcomeUnknown):
        await Compactor(log).compact(0, every_events=1)
    assert (await floor_of(log)).floor == 0


@virtual
async def test_a_snapshot_that_does_not_read_back_moves_no_floor() -> None:
    backend = Scripted()
    log = await opened(backend)
    await publish_events(log, 6)

    async def damaged(apply: Callable[[], Awaitable[Any]]) -> Any:
        version = await apply()
        await damage(backend, (await snapshots_there(backend))[0])
        return version

    backend.next("put", damaged)
    with pytest.raises(Corrupt, match="snapshot"):
        await Compactor(log).compact(0, every_events=1)
    assert (await floor_of(log)).floor == 0
