"""How far a queue is known to have come, beside the queue: `end.json`.

The end of a queue is found by looking for it, and a last chunk that somebody deleted looks as if it
had never been. So whoever creates a chunk says so in a register, which only rises, and whoever
opens the queue reads it first: an end found later that lies below it is a queue that went back.

Nothing waits for these writes and nothing fails with them: a chunk that was created and not yet
written down is only not missed. While many chunks are created, one write a second names the last.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.records import End
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, RolledBack
from headwater.store import Register, Store

# Some stores allow one write of an object a second, and chunks may be created faster than that.
APART_S: Final = 1.0


class Ends:
    """One client's hand on the register."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.register = Register(store, f"{prefix}/end.json", End)
        self.known: End | None = None
        """The furthest end that this client read or wrote down; None before it asked."""
        self._wanted: tuple[Chunk, Counters] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._written_s = -APART_S

    async def read(self) -> End:
        """How far the queue has come at least; asked for once. `NotFound` if that is gone."""
        if self.known is None:
            self.known = (await self.register.read()).value
        return self.known

    def created(self, chunk: Chunk, counters: Counters) -> None:
        """A chunk is there, and counts: say so, beside whatever else goes on."""
        self._wanted = (chunk, counters)
        if self._writing is None:
            self._writing = runtime.spawn(self._write(), name="headwater-end")

    async def close(self) -> None:
        """Write down what was not yet, without waiting for its time."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        await self._write_wanted()

    async def _write(self) -> None:
        try:
            while self._wanted is not None:
                since_s = runtime.monotonic_s() - self._written_s
                await runtime.sleep(max(0.0, APART_S - since_s))
                await self._write_wanted()
        finally:
            self._writing = None

    async def _write_wanted(self) -> None:
        if (wanted := self._wanted) is None:
            return
        chunk, counters = wanted
        try:
            await self._raise(chunk)
        except HeadwaterError:
            counters.ends_unwritten += 1
        self._written_s = runtime.monotonic_s()
        if self._wanted is wanted:
            self._wanted = None

    async def _raise(self, chunk: Chunk) -> None:
        end = End(chunk.number, chunk.first_sequence, chunk.first_lsn)

        def change(now: End | None) -> End:
            if now is None:
                raise RolledBack(f"{self.register.key} is gone")
            return end if now.chunk < end.chunk else now

        self.known = (await self.register.update(change)).value
