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


class CommitWaiter:
    """Those who wait, by policy and LSN."""

    def __init__(self, replicated_lsn: ReplicatedLsn) -> None:
        self._replicated_lsn = replicated_lsn
        self._waiting: dict[CommitPolicy, list[tuple[int, int, asyncio.Future[None]]]] = {}
        self._turn = itertools.count()
        self._ending: Callable[[], HeadwaterError] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def wait(self, lsn: int, policy: CommitPolicy, *, timeout_s: float) -> bool:
        """Whether the record was replicated in time."""
        if self._replicated_lsn(policy) >= lsn:
            return True
        if self._ending is not None:
            raise self._ending()
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(policy, [])
        entry = (lsn, next(self._turn), reached)
        heapq.heappush(line, entry)
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError:
            self._leave(policy, entry)
            # The last acknowledgement may have come in the same moment as the time-out.
            return self._replicated_lsn(policy) >= lsn
        except asyncio.CancelledError:
            self._leave(policy, entry)
            raise
        return True

    def evaluate(self) -> None:
        """Look again: somebody acknowledged, registered, left or lost something."""
        for policy in list(self._waiting):
            line = self._waiting[policy]
            lsn = self._replicated_lsn(policy)
            while line and line[0][0] <= lsn:
                reached = heapq.heappop(line)[2]
                if not reached.done():
                    reached.set_result(None)
            if not line:
                del self._waiting[policy]

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        """Nothing more is replicated: tell everybody who waits, and who will."""
        self._ending = error
        for line in self._waiting.values():
            for _, _, reached in line:
                if not reached.done():
                    reached.set_exception(error())
        self._waiting.clear()

    def _leave(self, policy: CommitPolicy, entry: tuple[int, int, asyncio.Future[None]]) -> None:
        line = self._waiting.get(policy, [])
        if entry in line:
            line.remove(entry)
            heapq.heapify(line)
        if not line:
            self._waiting.pop(policy, None)
