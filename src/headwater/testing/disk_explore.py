"""Run a body once for every point at which it may crash, and check what each crash leaves.

    def body(disk: FaultyDisk, ack: Callable[[str], None]) -> None:
        put(disk, "/a", b"1")
        ack("/a")

    def check(disk: FaultyDisk, acknowledged: list[str]) -> None:
        for path in acknowledged:
            assert get(disk, path) == b"1"

    explore(body, check)

The body begins on an empty disk and takes the same steps each time. Body and check may be
coroutine functions. A failure has a note that says how to reach the same state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from headwater.core.errors import HeadwaterError
from headwater.testing.disk import Crashed, CrashKind, FaultyDisk

T = TypeVar("T")
BodyResult = Coroutine[Any, Any, None] | None
Body = Callable[[FaultyDisk, Callable[[T], None]], BodyResult]
Check = Callable[[FaultyDisk, list[T]], BodyResult]


@dataclass(frozen=True, slots=True)
class Explored:
    """The numbers of points and states that were tried."""

    points: int
    """Where the body may crash, its end included."""
    runs: int
    states: int


def explore(
    body: Body[T],
    check: Check[T],
    *,
    seed: int = 0,
    states: int = 4,
    errors: Sequence[int] = (),
    crashes: bool = True,
    kinds: Sequence[CrashKind] = tuple(CrashKind),
    make_disk: Callable[..., FaultyDisk] = FaultyDisk,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> Explored:
    """Crash `body` at each of its points and `check` what is left, in several states each.

    With `errors` each call fails once with each of these errnos as well, whatever the body makes of
    that; the crash then comes where the body ends. Without `crashes` it comes nowhere else.
    `make_disk` is `FaultyDisk`, or a partial of it with more options.
    """
    explorer = _Explorer(body, check, seed, states, kinds, run)
    whole = make_disk(seed=seed)
    explorer.run_body(whole, [])
    for point in range(whole.points + 1) if crashes else ():
        disk, acknowledged = make_disk(seed=seed, crash_at=point), list[T]()
        explorer.run_body(disk, acknowledged)
        if not disk.crashed and point < whole.points:
            raise AssertionError(
                f"the body passed {whole.points} points, then {disk.points}: it must take the "
                "same steps each time"
            )
        explorer.check_states(disk, acknowledged, point)
    calls = [i for i, name in enumerate(whole.trail) if name.startswith("before")]
    for point in calls:
        for number in errors:
            disk, acknowledged = make_disk(seed=seed, fail_at={point: number}), list[T]()
            explorer.run_body(disk, acknowledged, may_fail=True)
            explorer.check_states(disk, acknowledged, point)
    return Explored(whole.points + 1, explorer.runs, explorer.states_checked)


@dataclass(slots=True)
class _Explorer:
    body: Body[Any]
    check: Check[Any]
    seed: int
    states: int
    kinds: Sequence[CrashKind]
    run: Callable[[Coroutine[Any, Any, None]], None]
    runs: int = 0
    states_checked: int = 0

    def run_body(
        self, disk: FaultyDisk, acknowledged: list[Any], *, may_fail: bool = False
    ) -> None:
        self.runs += 1
        try:
            self._await(self.body(disk, acknowledged.append))
        except Crashed:
            if not disk.crashed:
                raise
        except HeadwaterError:
            if not may_fail:
                raise

    def check_states(self, disk: FaultyDisk, acknowledged: list[Any], point: int) -> None:
        disk.crash()
        for kind in self.kinds:
            for state in range(self.states if kind is CrashKind.POWER_LOSS else 1):
                random = Random(f"{self.seed}/{point}/{state}")
                after = disk.after_crash(random, kind)
                self.states_checked += 1
                try:
                    self._await(self.check(after, list(acknowledged)))
                except BaseException as error:
                    error.add_note(_how_to_replay(disk, self.seed, point, state, kind))
                    raise

    def _await(self, outcome: BodyResult) -> None:
        if outcome is not None:
            self.run(outcome)


def _how_to_replay(disk: FaultyDisk, seed: int, point: int, state: int, kind: CrashKind) -> str:
    where = disk.trail[point] if point < disk.points else "the end of the body"
    how = f"fail_at={disk.fail_at}" if disk.fail_at else f"crash_at={point}"
    how += "".join(f", {name}=True" for name in ("skip_sync", "journaled") if getattr(disk, name))
    return (
        f"{kind.value} at point {point} ({where}); the same disk: "
        f"FaultyDisk(seed={seed}, {how}), "
        f"then after_crash(Random('{seed}/{point}/{state}'), {kind})"
    )
