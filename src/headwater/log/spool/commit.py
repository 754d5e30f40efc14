"""Group commit: appends that wait while others are written share the next write and its sync.

Always holds: appends are taken and written in the order in which they arrive, and tasks of one
event loop hand theirs in as they called (`CallOrder`); each is settled once. A batch takes an
append wholly or not at all, so a refused append leaves no trace in what is written next. No column
that a caller passed is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.core import portal, runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import LOG_FLUSH_BYTES
from headwater.log.record.group import Group
from headwater.log.spool.codec import GroupFrame, filled, frames_of, join_schemas
from headwater.log.spool.state import wake_future

_CHANGED_NOTHING: Final = (Unavailable, Refused, Conflict, Fenced)
"""What an append is refused with before any of it is written, or after that was cut off again."""


class Appended(NamedTuple):
    """Where an append landed."""

    first_lsn: int
    last_lsn: int


class PendingAppend:
    """One append on its way."""

    def __init__(
        self,
        bodies: list[GroupFrame],
        *,
        term: int,
        first_lsn: int | None,
        timestamp_ms: int,
        give_back: Callable[[list[GroupFrame]], None] = lambda bodies: None,
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
            wake_future(self.heard)


class GroupCommit:
    """The line in which appends wait."""

    def __init__(
        self,
        flush: Callable[[list[PendingAppend]], None],
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
        self._waiting: list[PendingAppend] = []
        self._batch: list[PendingAppend] = []
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

    def append_from_thread(self, ticket: PendingAppend) -> Appended:
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

    def enter_from_task(self, ticket: PendingAppend) -> Awaitable[Appended]:
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

    def _enter(self, ticket: PendingAppend) -> bool:
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

    def _refusal(self, ticket: PendingAppend) -> HeadwaterError | None:
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

    def _lead(self, own: PendingAppend | None) -> None:
        with self._mutex:
            self._appointed = None
        while self._flush_next(own):
            pass

    def _flush_next(self, own: PendingAppend | None) -> bool:
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

    def _flush_whole(self, batch: list[PendingAppend]) -> None:
        try:
            self._flush(batch)
        except _CHANGED_NOTHING as error:
            # It settles each append that it refuses: how far it came with the others is not known.
            raise OutcomeUnknown(
                f"the log broke off: {error!r}. Open it again, and look"
            ) from error

    def _next_batch(self) -> list[PendingAppend]:
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


class WriteBatch:
    """Appends that were given their LSNs and their places, and are not written yet."""

    def __init__(
        self,
        *,
        next_lsn: int,
        size_bytes: int,
        term: int,
        schema: pa.Schema | None,
        begins: bool,
        synced_lsn: int,
        group_bytes: int,
    ) -> None:
        """`schema` is the active segment's; of one that `begins`, a wish."""
        self.next_lsn = next_lsn
        self.size_bytes = size_bytes
        self.term = term
        self.schema = schema
        self.tickets: list[tuple[PendingAppend, Appended]] = []
        self.groups: list[tuple[Group, int]] = []
        self.frames: list[bytearray] = []
        self._begins = begins
        self._synced_lsn = synced_lsn
        self._group_bytes = group_bytes

    @property
    def is_first(self) -> bool:
        """Whether nothing stands in the segment, nor will before what is taken next."""
        return self._begins and not self.tickets

    def fits(self, ticket: PendingAppend) -> bool:
        """Whether an append can go into the segment, with columns of its own or without."""
        return self.schema is None or self.schema_with(ticket) is not None

    def schema_with(self, ticket: PendingAppend) -> pa.Schema | None:
        """What a segment has that holds this append as well; None if there should be none."""
        given = ticket.given
        if given is None:
            return self.schema
        if self.schema is None or ticket.schema == self.schema:
            return self.schema or given
        nbytes = sum(body.records.nbytes for body in ticket.bodies)
        return join_schemas(self.schema, given, rows=ticket.lsns, nbytes=nbytes)

    def take(self, ticket: PendingAppend) -> None:
        """Give each frame its LSNs and its place in the file."""
        schema = self.schema_with(ticket)
        if self.is_first:
            schema = schema or ticket.given
        elif self.schema is not None and schema is None:
            raise Bug(f"an append of {ticket.given} was to go into a segment of {self.schema}")
        bodies = ticket.bodies
        if ticket.given is not None and ticket.schema != schema:
            bodies = self._conformed(bodies, schema)
        first_lsn = self.next_lsn
        for body in bodies:
            group = body.place(
                term=ticket.term,
                first_lsn=self.next_lsn,
                timestamp_ms=ticket.timestamp_ms,
                synced_lsn=self._synced_lsn,
                offset=self.size_bytes,
            )
            self.groups.append((group, self.size_bytes))
            self.frames.append(body.frame)
            self.size_bytes += len(body.frame)
            self.next_lsn = group.last_lsn + 1
        self.tickets.append((ticket, Appended(first_lsn, self.next_lsn - 1)))
        self.term, self.schema = ticket.term, schema

    def _conformed(self, bodies: list[GroupFrame], schema: pa.Schema) -> list[GroupFrame]:
        """The same records with the columns of the segment."""
        try:
            return [part for body in bodies for part in self._parts(body, schema)]
        except MemoryError as error:
            raise Unavailable(
                "there is no memory to give these records the columns of their segment: append "
                f"them again, fewer at a time ({error})"
            ) from error
        except pa.ArrowException as error:
            raise Refused(
                f"these records do not take the columns that others have appended: {error}"
            ) from error

    def _parts(self, body: GroupFrame, schema: pa.Schema) -> list[GroupFrame]:
        if body.given is None:
            return [body]
        records = filled(body.records, schema, given=body.given)
        return frames_of(records, given=body.given, group_bytes=self._group_bytes)
