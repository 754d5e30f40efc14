"""One process's part in sharing names: it beats, looks, claims what is free and releases.

    claimant = Claimant(register, user, names)
    await claimant.start()
    ...
    if not claimant.is_current:
        await claimant.ensure_current()
    for name, epoch in claimant.claims.items(): ...

Always holds:

- a claim is relied on without a request for a third of the member's timeout after the *start* of
  a request that showed it. A member whose heartbeat is due writes and does not look: else one that
  can read and not write would rely on its claims while it looks dead to the others. So it relies on
  them for two thirds of its timeout after a heartbeat that landed, and is evicted after three: the
  last third is room for clocks that run at different rates;
- this is an economy and no lock: a process can stop between its check and its act. What a holder
  writes is therefore fenced by the epoch of its claim;
- a name is released in a write that begins after its drain ended, or after `drain_max_s`;
- one request at a time: what this process believes never goes back to an older answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.core.lease import Lease
from headwater.core.retry import retry_pause_s
from headwater.store import claims
from headwater.store.claims import BeatObserver, ClaimState, ClaimTable, Member

_log: Final = logging.getLogger("headwater")
_RETRY_BASE_S: Final = 0.5


class ClaimRegister(Protocol):
    """Where the table is stored: part of the value of a register."""

    async def read(self) -> ClaimState:
        """The present state."""

    async def update(self, change: Callable[[ClaimState], ClaimState]) -> ClaimState:
        """Change the state by a conditional write, and return what this call wrote."""


class ClaimUser(Protocol):
    """What uses the names. The methods that are not coroutines must only compute."""

    def on_claimed(self, claimed: Mapping[str, int]) -> None:
        """These names are this member's, each under this epoch."""

    async def on_release(self, names: frozenset[str]) -> None:
        """Stop using these names, and return once that is done; cancelled when it takes too long.
        They are this member's until then."""

    def on_lost(self, names: frozenset[str]) -> None:
        """These names are not this member's any more: nothing can be written under their epochs.
        Also called for names that were released."""


@dataclass(frozen=True)
class ClaimTiming:
    """How often a member beats and looks."""

    timeout_s: float = 60.0
    """After so long without a heartbeat the others evict the member."""
    heartbeat_s: float = 20.0
    look_s: float = 5.0
    short_look_s: float = 1.0
    """How often a member looks that holds less than its share, …"""
    short_looks_s: float = 60.0
    """… for at most so long."""

    def __post_init__(self) -> None:
        if not 0 < 3 * self.heartbeat_s <= self.timeout_s:
            raise Refused(
                f"a heartbeat every {self.heartbeat_s} s does not fit a timeout of "
                f"{self.timeout_s} s: three heartbeats must"
            )

    @property
    def lease_s(self) -> float:
        """How long a member relies on what a request showed."""
        return self.timeout_s / 3

    @property
    def drain_max_s(self) -> float:
        """How long a drain may take: a lease for those who use the names, one to write the rest."""
        return 2 * self.timeout_s / 3


class Claimant:
    """A member of one table. One event loop."""

    def __init__(
        self,
        register: ClaimRegister,
        user: ClaimUser,
        names: Iterable[str],
        *,
        host: str = "",
        timing: ClaimTiming | None = None,
    ) -> None:
        self.member = runtime.new_ulid()
        self.timing = timing or ClaimTiming()
        self.claims: dict[str, int] = {}
        """The names that this member holds as far as it knows, and the epochs of the claims."""
        self.table = ClaimTable()
        """The table as of the last look."""
        self.last_error: HeadwaterError | None = None
        """Why the last request failed; None after one that succeeded."""
        self._register = register
        self._user = user
        self._names = frozenset(names)
        self._host = host
        self._observer = BeatObserver()
        self._beats = 0
        self._looked: Lease | None = None
        self._beat: Lease | None = None
        self._short_since_s: float | None = None
        """Since when it has held less than its share."""
        self._drains: dict[str, int] = {}
        """Names that are being drained, and the epochs of their claims."""
        self._drained: dict[str, int] = {}
        """Names that are to be released, or whose release may have landed."""
        self._drain_tasks: set[asyncio.Task[None]] = set()
        self._requesting = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._wakes = runtime.Waiters()
        self._is_woken = False
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def __repr__(self) -> str:
        return f"<member {self.member} with {sorted(self.claims, key=claims.name_order)}>"

    @property
    def is_running(self) -> bool:
        """Whether it takes part."""
        return self._task is not None

    @property
    def is_current(self) -> bool:
        """Whether `claims` can be relied on without a request."""
        return self._looked is not None and self._looked.is_within(self.timing.lease_s)

    @property
    def names(self) -> frozenset[str]:
        """All names that are shared."""
        return self._names

    def set_names(self, names: Iterable[str]) -> None:
        """Share these names from now on."""
        self._names = frozenset(names)
        self.wake()

    async def start(self) -> None:
        """Join, claim what is free, and take part from now on; raises the first request's error."""
        if self._task is not None:
            return
        async with self._changing, self._requesting:
            if self._is_over:
                raise Refused(f"member {self.member} has left for good")
            if self._task is None:
                await self._write()
                self._task = runtime.spawn(self._run(), name=f"member {self.member}")

    async def ensure_current(self) -> None:
        """Look, unless `claims` can be relied on. Joins if this member takes no part."""
        while True:
            await self.start()
            if self.is_current:
                return
            async with self._requesting:
                # Meanwhile it may have left: a request would let it join without its loop.
                if self._task is not None and not self.is_current:
                    await self._request()
            # A request that took longer than a lease shows nothing to rely on.

    def wake(self) -> None:
        """Look, and do what is to be done, now."""
        self._is_woken = True
        self._wakes.notify()

    async def leave(self, *, for_good: bool = False) -> None:
        """Drain and release everything, and take part no more. `start` joins again, unless it left
        for good."""
        self._is_over = self._is_over or for_good
        async with self._changing:
            await self.stop()
            if self.claims:
                await self._drain(dict(self.claims))
            async with self._requesting:
                self._lose_all()
                await self._register.update(
                    lambda now: ClaimState(now.epoch, claims.leave(now.table, self.member))
                )

    async def stop(self) -> None:
        """End the requests. The claims stay until the others evict this member."""
        tasks = [*self._drain_tasks, *([] if self._task is None else [self._task])]
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # The loop

    async def _run(self) -> None:
        failures = 0
        while True:
            self._is_woken = False
            try:
                async with self._requesting:
                    await self._request()
                failures = 0
            except (Unavailable, OutcomeUnknown) as error:
                failures += 1
                self.last_error = error
            except HeadwaterError as error:
                # Another attempt would fail in the same way: the next `start` raises what is wrong.
                self.last_error, self._task = error, None
                self._lose_all()
                return
            pause_s = self._pause_s(failures)
            await self._wakes.wait(lambda: self._is_woken, timeout_s=pause_s)

    def _pause_s(self, failures: int) -> float:
        timing = self.timing
        if failures:
            return retry_pause_s(failures, base_s=_RETRY_BASE_S, cap_s=timing.look_s)
        now_s = runtime.monotonic_s()
        if self._short_since_s is not None and now_s - self._short_since_s < timing.short_looks_s:
            return min(timing.short_look_s, timing.look_s)
        return min(timing.look_s, timing.heartbeat_s)

    async def _request(self) -> None:
        """Look, and write if something is to be written or a heartbeat is due."""
        if not self._has_to_write():
            lease = Lease()
            self._see(await self._register.read(), lease)
        if self._has_to_write():
            await self._write()

    def _has_to_write(self) -> bool:
        return bool(
            self._beat is None
            or not self._beat.is_within(self.timing.heartbeat_s)
            or self.member not in self.table.members
            or self._drained
            or self._observer.dead(self.table)
            or claims.claimable(self.table, self.member, self._names)
        )

    async def _write(self) -> None:
        """One write for everything: beat or join, evict, release, claim."""
        self._beats += 1
        drained, dead = dict(self._drained), self._observer.dead(self.table)
        dead.pop(self.member, None)
        # From here on the release may land at any time.
        self._lose(frozenset(name for name in drained if self.claims.get(name) == drained[name]))
        lease = Lease()
        state = await self._register.update(lambda now: self._change(now, drained, dead))
        self._beat = lease
        self._see(state, lease)

    def _change(
        self, now: ClaimState, drained: Mapping[str, int], dead: Mapping[str, int]
    ) -> ClaimState:
        table, seen_ms = now.table, runtime.wall_ms()
        if self.member in table.members:
            table = claims.beat(table, self.member, beats=self._beats, seen_ms=seen_ms)
        else:
            record = Member(self._beats, self.timing.timeout_s, 0, self._host, seen_ms)
            table = claims.join(table, self.member, record)
        table = claims.release(table, self.member, drained)
        return self._claim_free(ClaimState(now.epoch, claims.evict(table, dead)))

    def _claim_free(self, state: ClaimState) -> ClaimState:
        """Claim what this member should, all under one new epoch."""
        names = claims.claimable(state.table, self.member, self._names)
        if not names:
            return state
        epoch = state.epoch + 1
        return ClaimState(epoch, claims.claim(state.table, self.member, names, epoch))

    # What a request showed

    def _see(self, state: ClaimState, lease: Lease) -> None:
        """Take over what a request that started at `lease` showed."""
        self._observer.observe(state.table)
        self.table, self.last_error = state.table, None
        held = state.table.held_by(self.member)
        self._drained = {n: e for n, e in self._drained.items() if held.get(n) == e}
        # A release that may still land is not a claim to rely on.
        held = {name: epoch for name, epoch in held.items() if name not in self._drained}
        self._lose(frozenset(n for n, e in self.claims.items() if held.get(n) != e))
        claimed = {n: e for n, e in held.items() if n not in self.claims}
        self.claims, self._looked = held, lease
        if claimed:
            self._user.on_claimed(claimed)
        self._begin_drains()
        if not claims.missing(self.table, self.member, self._names):
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = runtime.monotonic_s()

    def _lose_all(self) -> None:
        self._looked = self._beat = None
        self._lose(frozenset(self.claims))

    def _lose(self, names: frozenset[str]) -> None:
        if names:
            self.claims = {n: e for n, e in self.claims.items() if n not in names}
            self._user.on_lost(names)

    # Draining

    def _begin_drains(self) -> None:
        """Begin to drain what this member holds above its quota."""
        over = claims.surplus(self.table, self.member, self._names)
        self._drains = {n: e for n, e in self._drains.items() if self.claims.get(n) == e}
        leaving = len(self._drains) + len(self._drained)
        begun = [name for name in over if name in self.claims and name not in self._drains]
        begun = begun[: max(0, len(over) - leaving)]
        if begun:
            draining = {name: self.claims[name] for name in begun}
            self._drains |= draining
            task = runtime.spawn(self._drain_to_release(draining), name=f"drain {sorted(begun)}")
            self._drain_tasks.add(task)
            task.add_done_callback(self._drain_tasks.discard)

    async def _drain_to_release(self, draining: dict[str, int]) -> None:
        await self._drain(draining)
        for name, epoch in draining.items():
            self._drains.pop(name, None)
            if self.claims.get(name) == epoch:
                self._drained[name] = epoch
        self.wake()

    async def _drain(self, draining: Mapping[str, int]) -> None:
        """Wait until the user has stopped using these names, but not for longer than it may."""
        try:
            async with asyncio.timeout(self.timing.drain_max_s):
                await self._user.on_release(frozenset(draining))
        except (HeadwaterError, TimeoutError) as error:
            # What was not acknowledged is delivered again; the others do not wait for it.
            _log.warning("%s were released undrained: %r", sorted(draining), error)
