"""What a replica has: the copy that counts, and what it keeps beside it.

Always holds: what is said here is on disk before anybody acts on it; between two copies there is
one moment at which the one stops counting and the other begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from headwater.core import runtime
from headwater.core.errors import DiskFailed, Fenced, HeadwaterError, Unavailable
from headwater.log.replica.errors import Diverged
from headwater.log.replica.held_copy import HeldCopy
from headwater.log.replica.kept import Kept, KeptFile
from headwater.log.replica.target import Target, Targets


class Holdings:
    """The copies of one replica, and its fence."""

    def __init__(self, files: KeptFile, targets: Targets, kept: Kept, copy: HeldCopy) -> None:
        """Use `Holdings.load`."""
        self.copy = copy
        self._files = files
        self._targets = targets
        self._kept = kept
        self._replaced: HeldCopy | None = None
        self._keeping = asyncio.Lock()
        """An answer to a pull ahead may bring a newer term while something else is kept."""

    @classmethod
    async def load(cls, files: KeptFile, targets: Targets) -> Holdings:
        """What was left here; leftovers of a copy that was never finished are removed."""
        found = await runtime.run_blocking(files.read)
        if found is None:
            await runtime.run_blocking(files.refuse_log)
        kept = (found or Kept()).of_kind(targets.kind, files.folder.path)
        # Again, also where it is there: whoever wrote it may have died before it was safe.
        await runtime.run_blocking(files.write, kept)
        for number in await runtime.run_blocking(files.copy_numbers):
            if number != kept.copy:
                await targets.discard(files.copy_path(number))
        path = files.copy_path(kept.copy)
        target = await targets.open(path)
        return cls(files, targets, kept, HeldCopy(targets, target, kept.copy, path))

    @property
    def target(self) -> Target:
        """The copy that counts."""
        return self.copy.target

    @property
    def term(self) -> int:
        """The highest that was heard of."""
        return self._kept.term

    @property
    def diverged_lsn(self) -> int | None:
        """The first LSN under which the copy holds another record than the log."""
        return self._kept.diverged_lsn

    async def heed(self, term: int) -> bool:
        """Refuse an older leader; keep a newer one's term before anything of it counts.

        Whether it is a newer one.
        """
        if term > self._kept.term:
            async with self._keeping:
                if term > self._kept.term:
                    await self._keep(term=term)
                    return True
        if term < self._kept.term:
            raise Fenced(
                f"an answer of term {term} came from a leader that was overtaken: this replica has "
                f"heard of term {self._kept.term}"
            )
        return False

    async def close(self) -> None:
        """Give the copies back."""
        try:
            if self._replaced is not None:
                await self._replaced.close()
        finally:
            await self.copy.close()

    def check_sound(self, name: str) -> None:
        """Raise `Diverged` if the copy holds another record than the log."""
        lsn = self._kept.diverged_lsn
        if lsn is not None:
            raise Diverged(
                f"replica {name!r} holds another record under LSN {lsn} than the log: find out "
                "which is right, then let it rebootstrap",
                lsn=lsn,
            )

    async def mark_diverged(self, lsn: int) -> None:
        """Say for good that the copy is not one."""
        async with self._keeping:
            await self._keep(diverged_lsn=lsn)

    async def replace(
        self,
        begin: Callable[[str], Awaitable[Target]],
        fill: Callable[[Target], Awaitable[None]],
        counts: Callable[[], None],
    ) -> None:
        """Make a second copy, and let it take the place of the first, which is read meanwhile.

        `counts` is called at the moment at which it does: what is said of the first one must not
        be said of it.
        """
        if self._replaced is not None:
            # Again: whoever was to remove it may have been stopped in the middle of it.
            await self._replaced.replace()
            if not self._replaced.is_gone:
                raise Unavailable("the copy before this one is still read: the next waits for it")
        number = 3 - self.copy.number
        path = self._files.copy_path(number)
        target = await begin(path)
        fresh = HeldCopy(self._targets, target, number, path)
        try:
            await fill(target)
            if self.diverged_lsn is not None:
                # Other replicas may count on some of these: they stay until the fresh copy's own,
                # which reaches further than any of the log's, is safe. And they are gone before the
                # fresh copy counts: from then on nobody would know that they are not to be used.
                await self._targets.drop_distrusted()
        except BaseException:
            await fresh.replace()
            raise
        await self._swap(fresh, counts)

    async def _swap(self, fresh: HeldCopy, counts: Callable[[], None]) -> None:
        try:
            async with self._keeping:
                await self._keep(copy=fresh.number, diverged_lsn=None)
        except BaseException as error:
            if self._kept.copy == fresh.number:
                # It counts, though whoever waited for it was stopped meanwhile.
                self._take(fresh, counts)
            elif isinstance(error, HeadwaterError) and not isinstance(error, DiskFailed):
                await fresh.replace()
            else:
                # Which of the two counts is known when the disk is read again: both stay.
                await fresh.target.close()
            raise
        await self._take(fresh, counts).replace()

    def _take(self, fresh: HeldCopy, counts: Callable[[], None]) -> HeldCopy:
        replaced, self._replaced, self.copy = self.copy, self.copy, fresh
        counts()
        return replaced

    async def _keep(self, **changes: int | None) -> None:
        """Return, or be cancelled, only when it is known whether this is kept. One at a time."""
        kept = msgspec.structs.replace(self._kept, **changes)
        writing = runtime.spawn(runtime.run_blocking(self._files.write, kept), name="keep")
        try:
            await asyncio.shield(writing)
        finally:
            await asyncio.wait((writing,))
            if not writing.cancelled() and writing.exception() is None:
                self._kept = kept
