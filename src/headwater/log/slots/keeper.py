"""Writes the book of slots to the store: at a bounded rate, and at once where somebody waits.

    keeper = await SlotKeeper.open(register, leader_epoch=7)
    keeper.book.advance("standby", applied_lsn=120, durable_lsn=100)
    await keeper.settle()          # or leave it to keeper.start(), which writes every few seconds

Always holds:

- one write at a time, at least SLOT_WRITE_GAP_S apart; whoever waits shares it with all others;
- a store that is away for a while delays writes, and nothing is freed meanwhile;
- a newer leader, or a table that is damaged, ends the keeper: it writes nothing more, and says so
  to everybody who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import Bug, Damaged, Fenced, HeadwaterError
from headwater.log.slots.book import SlotBook
from headwater.log.slots.slot_register import SlotRegister

_log: Final = logging.getLogger("headwater")


class SlotKeeper:
    """The slots of one partition, in the hands of its leader."""

    def __init__(self, register: SlotRegister, book: SlotBook, *, write_interval_s: float) -> None:
        """Use `SlotKeeper.open`."""
        self.book = book
        self.failure: HeadwaterError | None = None
        """What ended it: a newer leader, or damage."""
        self.writes = 0
        self.writes_failed = 0
        """Writes that failed, or whose outcome is unknown: they are done again."""
        self.on_dropped: Callable[[list[str]], None] = lambda names: None
        """Called with the names of slots that somebody else dropped."""
        self.on_failure: Callable[[HeadwaterError], None] = lambda failure: None
        self._register = register
        self._write_interval_s = write_interval_s
        self._written = book.changes
        self._last_write_s = runtime.monotonic_s()
        self._attempts = 0
        self._failed: tuple[int, HeadwaterError] | None = None
        """The attempt that failed last, and why."""
        self._writing = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        register: SlotRegister,
        *,
        leader_epoch: int,
        must_exist: bool = False,
        write_interval_s: float = limits.SLOT_WRITE_INTERVAL_S,
    ) -> SlotKeeper:
        """Take the slots over under this epoch; `Fenced` if a later leader has.

        Slots that are there and cannot be read raise what is wrong with them. There is then nobody
        who could let the log be pruned.
        """
        stored = await register.stamp(leader_epoch, must_exist=must_exist)
        return cls(register, SlotBook(stored), write_interval_s=write_interval_s)

    @property
    def is_settled(self) -> bool:
        """Whether everything that is worth it is stored."""
        return self._written >= self.book.changes

    def check(self) -> None:
        """Raise what ended the keeper, if something did."""
        if self.failure is not None:
            raise _again(self.failure)

    def start(self) -> None:
        """Write what changed, every few seconds, until `close`."""
        if self._running is None:
            self._running = runtime.spawn(self._run(), name="headwater-slots")

    async def close(self) -> None:
        """Write what is left to write, and end. An error is that of `settle`."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait((running,))
        if self.failure is None:
            await self.settle()

    async def settle(self) -> None:
        """Return once everything that was changed until now is stored.

        Raises what the store says; nothing is lost by that, and a later call tries again.
        """
        self.check()
        wanted, arrived = self.book.changes, self._attempts
        while self._written < wanted:
            async with self._writing:
                if self._failed is not None and self._failed[0] > arrived:
                    # Everybody who waited for that write is told of it: were each to try by itself,
                    # the last of many would wait for as many time-outs.
                    raise _again(self._failed[1])
                if self._written < wanted:
                    await self._write()
        self.check()

    async def refresh(self) -> None:
        """Look what is stored, also if there is nothing to write.

        A slot that somebody dropped holds the log until the leader hears of it, and where nothing
        moves there is no write by which it would.
        """
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        self.check()
        wait_s = self._last_write_s + limits.SLOT_WRITE_GAP_S - runtime.monotonic_s()
        if wait_s > 0:
            await runtime.sleep(wait_s)
        self._attempts += 1
        changes, sent = self.book.changes, self.book.table()
        self.book.sending(sent)
        try:
            found = await self._register.write(sent)
        except HeadwaterError as error:
            self.writes_failed += 1
            self._failed = (self._attempts, error)
            if isinstance(error, Fenced | Damaged | Bug):
                self.failure = error
                _log.error("slots are not written any more, and nothing is pruned: %s", error)
                self.on_failure(error)
            raise
        finally:
            self._last_write_s = runtime.monotonic_s()
        self.writes += 1
        self._written = max(self._written, changes)
        dropped = self.book.stored(sent, found)
        if dropped:
            self.on_dropped(dropped)

    async def _run(self) -> None:
        while self.failure is None:
            await runtime.sleep(self._write_interval_s)
            try:
                # What can pass is tried again at the next turn; what cannot is in `failure`.
                with contextlib.suppress(HeadwaterError):
                    await (self.refresh() if self._is_old() else self.settle())
            except Exception:
                # Were this to end, nothing would be stored any more, and so nothing pruned.
                self.writes_failed += 1
                _log.exception("slots were not written, and will be")

    def _is_old(self) -> bool:
        return runtime.monotonic_s() - self._last_write_s >= limits.SLOT_LOOK_S


def _again(error: HeadwaterError) -> HeadwaterError:
    """An error of one's own for each who is told: a raised one gathers its raiser's frames."""
    copy = type(error)(str(error))
    copy.__cause__ = error
    return copy
