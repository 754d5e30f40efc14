"""Writers that wait until a record is replicated.

Whether a policy is met is always computed anew from the registry, never counted up: an
acknowledgement of a replica that has left, or lost its data, then counts no more, without anybody
having to take it back.

Always holds: whoever waits is answered: by the policy, the time-out, or what ended the leader.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from headwater.core.errors import HeadwaterError
from headwater.log.primary.commit_policy import CommitPolicy

ReplicatedLsn = Callable[[CommitPolicy], int]
Entry = tuple[int, int, asyncio.Future[None]]
"""An LSN, who came first, and whom to tell."""


class _Line:
    """Those who wait under one policy, the lowest LSN first.

    Who gives up stays in it, cancelled, until those are the most: when replicas die, writers give
    up by the thousand at once, and each would have to be looked for among all the others.
    """

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def enter(self, entry: Entry) -> None:
        heapq.heappush(self._heap, entry)

    def gave_up(self) -> None:
        """One of them was cancelled."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def reached(self, lsn: int) -> None:
        """Tell everybody who waits for this one, or one below it."""
        while self._heap and self._heap[0][0] <= lsn:
            waiting = heapq.heappop(self._heap)[2]
            if waiting.cancelled():
                self._cancelled -= 1
            else:
                waiting.set_result(None)

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        for _, _, waiting in self._heap:
            if not waiting.done():
                waiting.set_exception(error())


class CommitWaiter:
    """Those who wait, by policy and LSN."""

    def __init__(self, replicated_lsn: ReplicatedLsn) -> None:
        self._replicated_lsn = replicated_lsn
        self._waiting: dict[CommitPolicy, _Line] = {}
        self._turn = itertools.count()
        self._ending: Callable[[], HeadwaterError] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def wait(self, lsn: int, policy: CommitPolicy, *, timeout_s: float) -> bool:
        """Whether the record was replicated in time."""
        if self._ending is not None:
            # Also under a policy that would be met: an overtaken leader's log is nobody's any more.
            raise self._ending()
        if self._replicated_lsn(policy) >= lsn:
            return True
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(policy, _Line())
        line.enter((lsn, next(self._turn), reached))
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError:
            # The last acknowledgement may have come in the same moment as the time-out.
            return self._replicated_lsn(policy) >= lsn
        finally:
            if reached.cancelled():
                line.gave_up()
            if not line and self._waiting.get(policy) is line:
                del self._waiting[policy]
        return True

    def evaluate(self) -> None:
        """Look again: somebody acknowledged, registered, left or lost something."""
        for policy, line in self._waiting.items():
            line.reached(self._replicated_lsn(policy))

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        """Nothing more is replicated: tell everybody who waits, and who will."""
        self._ending = error
        for line in self._waiting.values():
            line.end(error)
        self._waiting.clear()
