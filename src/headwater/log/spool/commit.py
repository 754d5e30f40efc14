"""Group commit: appends that wait while others are written share the next write and its sync.

Whoever finds nobody writing leads: it takes all that waits, and writes it. A thread that leads
hands over to one of those who came meanwhile, once its own append is done; tasks of an event loop
never lead themselves, a thread does it for them. So nobody works for others for ever, and a
cancelled task, or a loop that ends, leaves nothing undone.

Always holds: appends are taken and written in the order in which they were handed in, and tasks of
one event loop hand theirs in as they called (`CallOrder`); each is settled once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from headwater.core import portal, runtime
from headwater.core.errors import (
    Conflict,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import LOG_FLUSH_BYTES
from headwater.log.spool.body import Body
from headwater.log.spool.wake import wake

_CHANGED_NOTHING: Final = (Unavailable, Refused, Conflict, Fenced)
"""What an append is refused with before any of it is written, or after that was cut off again."""


class Appended(NamedTuple):
    """Where an append landed."""

    first_lsn: int
    last_lsn: int


class Ticket:
    """One append on its way."""

    def __init__(
        self,
        bodies: list[Body],
        *,
        term: int,
        first_lsn: int | None,
        timestamp_ms: int,
        give_back: Callable[[list[Body]], None] = lambda bodies: None,
    ) -> None:
        """`give_back` gets the frames of an append that changed nothing."""
        self.bodies = bodies
        self._give_back = give_back
        self.term = term
        self.first_lsn = first_lsn
        self.timestamp_ms = timestamp_ms
        self.size_bytes = sum(len(body.frame) for body in bodies)
        self.lsns = sum(body.lsns for body in bodies)
        records = next((body for body in bodies if body.given is not None), None)
        self.given = None if records is None else records.given
        """The columns that whoever appends gave; None where there are no records."""
        self.schema = None if records is None else records.records.schema
        """The columns that its frames have: as given, or with nulls beside them."""
        self.is_settled = False
        self.turn: threading.Event | None = None
        """Set, for a thread, when its append is settled or when it is to lead."""
        self.heard: asyncio.Future[None] | None = None
        """Resolved, for a task, when its append is settled."""
        self._appended: Appended | None = None
        self._error: BaseException | None = None

    def settle(self, appended: Appended) -> None:
        """It is done."""
        self._end(appended, None)

    def fail(self, error: BaseException) -> None:
        """It is refused, or nobody knows."""
        self._end(None, error)

    def result(self) -> Appended:
        """Where it landed, or why it did not."""
        if self._error is not None:
            raise self._error
        assert self._appended is not None
        return self._appended

    def _end(self, appended: Appended | None, error: BaseException | None) -> None:
        if self.is_settled:
            return
        self._appended, self._error, self.is_settled = appended, error, True
        if isinstance(error, _CHANGED_NOTHING):
            self._give_back(self.bodies)
        if self.turn is not None:
            self.turn.set()
        if self.heard is not None:
            wake(self.heard)


class Committer:
    """The line in which appends wait."""

    def __init__(
        self,
        flush: Callable[[list[Ticket]], None],
        *,
        queue_bytes: int,
        on_broken: Callable[[HeadwaterError], None] = lambda error: None,
    ) -> None:
        """`on_broken` is told of a flush that broke off in a way it never should."""
        self._flush = flush
        self._queue_bytes = queue_bytes
        self._on_broken = on_broken
        self._mutex = threading.Lock()
        self._flushing = threading.Lock()
        """Held from taking a batch until it is written: two may lead for a moment, in order."""
        self._waiting: list[Ticket] = []
        self._batch: list[Ticket] = []
        self._waiting_bytes = 0
        self._led = False
        self._appointed: asyncio.AbstractEventLoop | None = None
        """The loop that was asked for somebody who leads, until there is one."""
        self._closed: str | None = None

    def close(self, why: str) -> None:
        """Take no more; returns when what waits is written."""
        with self._mutex:
            self._closed = why
        with portal.signals_deferred():
            self._lead(None)

    def append_from_thread(self, ticket: Ticket) -> Appended:
        """Wait until it is settled, and write for others if it comes to that.

        Ctrl-C ends the waiting and not the writing: the log is everybody's.
        """
        turn = ticket.turn = threading.Event()
        try:
            with portal.signals_deferred():
                if self._enter(ticket):
                    self._lead(ticket)
            while not ticket.is_settled:
                turn.wait()
                with portal.signals_deferred():
                    if not ticket.is_settled:
                        turn.clear()
                        self._lead(ticket)
        except BaseException:
            # Interrupted: nobody may appoint this thread any more, and if somebody just has, the
            # others wait for it. It leads as long as it would have, and no longer.
            with portal.signals_deferred():
                with self._mutex:
                    ticket.turn = None
                if turn.is_set() and not ticket.is_settled:
                    self._lead(ticket)
            raise
        return ticket.result()

    def enter_from_task(self, ticket: Ticket) -> Awaitable[Appended]:
        """Get in line at once; what is returned waits until it is settled.

        To be cancelled ends the waiting, not the append.
        """
        heard = ticket.heard = asyncio.get_running_loop().create_future()
        with portal.signals_deferred():
            if self._enter(ticket):
                self._lead_beside()

        async def settled() -> Appended:
            await heard
            return ticket.result()

        return settled()

    def _enter(self, ticket: Ticket) -> bool:
        """Get in line; True if nobody leads."""
        with self._mutex:
            refusal = self._refusal(ticket)
            if refusal is not None:
                ticket.fail(refusal)
                raise refusal
            self._waiting.append(ticket)
            self._waiting_bytes += ticket.size_bytes
            # A loop that was closed will never begin what it was asked for.
            gone = self._appointed is not None and self._appointed.is_closed()
            leads, self._led = gone or not self._led, True
            return leads

    def _refusal(self, ticket: Ticket) -> HeadwaterError | None:
        if self._closed is not None:
            return Refused(self._closed)
        if self._waiting and self._waiting_bytes + ticket.size_bytes > self._queue_bytes:
            return Unavailable(
                f"{self._waiting_bytes:,} bytes wait to be written to the log already "
                f"(queue_bytes is {self._queue_bytes:,}): the disk does not keep up"
            )
        return None

    def _lead_beside(self) -> None:
        """Let a thread lead, for tasks of the loop that runs here."""
        begun = False

        def lead() -> None:
            # The loop's own thread comes here as well, where it cannot have another.
            nonlocal begun
            with portal.signals_deferred():
                begun = True
                self._lead(None)

        def lead_if_nobody_has(_: asyncio.Task[None]) -> None:
            # Cancelled before a thread took it up, or before it even ran: those in line wait for
            # somebody.
            if not begun:
                lead()

        with portal.signals_deferred():
            with self._mutex:
                self._appointed = asyncio.get_running_loop()
            flushing = runtime.spawn(runtime.run_blocking(lead), name="log flush")
            flushing.add_done_callback(lead_if_nobody_has)

    def _lead(self, own: Ticket | None) -> None:
        with self._mutex:
            self._appointed = None
        while self._flush_next(own):
            pass

    def _flush_next(self, own: Ticket | None) -> bool:
        """Write what waits; False once nothing does, or another leads."""
        with self._flushing:
            try:
                batch = self._next_batch()
                if batch:
                    self._flush_whole(batch)
                is_done = own is not None and own.is_settled
                return bool(batch) and not (is_done and self._handed_over())
            except BaseException as error:
                # Before another leader takes a batch: that one would be failed in place of this
                # one, while it is written, and this one would wait for ever.
                self._abandon(error)
                raise

    def _flush_whole(self, batch: list[Ticket]) -> None:
        try:
            self._flush(batch)
        except _CHANGED_NOTHING as error:
            # It settles each append that it refuses: how far it came with the others is not known.
            raise OutcomeUnknown(
                f"the log broke off: {error!r}. Open it again, and look"
            ) from error

    def _next_batch(self) -> list[Ticket]:
        """What is written next; with nothing in line nobody leads any more."""
        with self._mutex:
            size_bytes = count = 0
            for ticket in self._waiting:
                size_bytes += ticket.size_bytes
                if count and size_bytes > LOG_FLUSH_BYTES:
                    break
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._waiting_bytes -= sum(ticket.size_bytes for ticket in batch)
            self._batch = batch
            self._led = bool(batch)
            return batch

    def _handed_over(self) -> bool:
        with self._mutex:
            for ticket in self._waiting:
                if ticket.turn is not None:
                    ticket.turn.set()
                    return True
            loops = [ticket.heard.get_loop() for ticket in self._waiting if ticket.heard]
            for loop in loops:
                try:
                    loop.call_soon_threadsafe(self._lead_beside)
                except RuntimeError:
                    continue  # it was closed, and nobody waits there
                self._appointed = loop
                return True
        return False

    def _abandon(self, error: BaseException) -> None:
        """A flush broke off in a way it never should: nobody may wait for ever."""
        if isinstance(error, HeadwaterError):
            told = error
        else:
            # Not what interrupted this thread: that is not for those who only wait for it.
            told = OutcomeUnknown(f"the log broke off: {error!r}. Open it again, and look")
        with self._mutex:
            left, self._waiting = [*self._batch, *self._waiting], []
            self._waiting_bytes, self._led = 0, False
            self._closed = f"the log broke off: {error!r}. Open it again"
        self._on_broken(told)
        for ticket in left:
            ticket.fail(told)


class CallOrder:
    """The order in which tasks called, for those whose records are encoded on a thread first.

    Without it a small append would overtake a large one that was handed in before it. Each event
    loop has an order of its own: nothing says which of two threads called first.
    """

    def __init__(self) -> None:
        self._last: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        """By loop: the last call that has not entered yet, if there is one."""

    def is_free(self) -> bool:
        """Whether every earlier call of this loop has entered."""
        return asyncio.get_running_loop() not in self._last

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Holds a place behind all earlier calls; what it gives waits until they have entered.

        Leaving the block lets the next one enter, but never before the ones in front of both: a
        call that is cancelled while it waits only gives up its own place.
        """
        loop = asyncio.get_running_loop()
        before, mine = self._last.get(loop), loop.create_future()
        self._last[loop] = mine

        def leave(_: object = None) -> None:
            mine.set_result(None)
            if self._last.get(loop) is mine:
                del self._last[loop]

        async def come() -> None:
            if before is not None:
                await asyncio.wait((before,))

        try:
            yield come
        finally:
            if before is None or before.done():
                leave()
            else:
                before.add_done_callback(leave)
