"""The copies of a replica: which one counts, who reads it, and the state stored beside it.

    replica.json   {"crc32":"…","kept":{"copy":1,"diverged_lsn":null,"format":2,"kind":"log",…}}

Always holds:

- a term is stored before anything of its leader is applied or acknowledged, so an overtaken leader
  is refused after a restart as well;
- one rename switches from one copy to the next: opening the folder finds the old one or the new
  one, each of them complete;
- a state file that cannot be read, or that is missing beside a copy, is an error: with term 0 the
  replica would accept overtaken leaders;
- a copy stays open while it is read, even if another one replaced it; after a copy is closed,
  nothing of it is removed, because the folder may be in use again.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from headwater.core import runtime
from headwater.core.disk import Disk
from headwater.core.errors import (
    Corrupt,
    DiskFailed,
    Fenced,
    HeadwaterError,
    NotFound,
    NotSupported,
    Refused,
    Unavailable,
)
from headwater.log.replica.contract import Diverged, Target, Targets
from headwater.log.spool.folder import SEGMENT, Folder

STATE_FORMAT: Final = 2
_READABLE_FORMATS: Final = (1, STATE_FORMAT)
"""Format 1 had no kind."""
STATE_NAME: Final = "replica.json"


class SavedState(msgspec.Struct, frozen=True):
    term: int = 0
    """Answers of leaders with a lower one are refused."""
    copy: int = 1
    """The number of the copy that counts."""
    diverged_lsn: int | None = None
    """The first LSN under which that copy holds another record than the log."""
    format: int = STATE_FORMAT
    kind: str = ""
    """The kind of the copies, see `Targets.kind`; empty if it was never set."""


class _StateFile(msgspec.Struct, frozen=True):
    crc32: str
    kept: msgspec.Raw


class SavedStateFile:
    """The file, and its folder. Blocks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.folder = Folder(disk, path)

    def copy_path(self, number: int) -> str:
        return posixpath.join(self.folder.path, f"copy-{number}")

    def copy_numbers(self) -> list[int]:
        names = (name for name, is_dir in self.folder.disk.list_dir(self.folder.path) if is_dir)
        parts = (name.partition("-") for name in names)
        return sorted(int(n) for word, _, n in parts if word == "copy" and n.isdigit())

    def read(self) -> SavedState | None:
        path = self.folder.file(STATE_NAME)
        try:
            with self.folder.disk.open(path) as file:
                data = file.read_at(0, file.stat().size_bytes)
        except NotFound:
            if any(map(self._holds_files, self.copy_numbers())):
                raise Corrupt(f"{path} is gone, and copies are there. {_ADVICE}") from None
            return None
        return decode_state(data, path)

    def refuse_log(self) -> None:
        names = self.folder.disk.list_dir(self.folder.path)
        if any(not is_dir and SEGMENT.fullmatch(name) for name, is_dir in names):
            raise Refused(
                f"{self.folder.path} holds a log itself, and a replica would never read it: give "
                "the replica a folder of its own, and keep the log until that has caught up"
            )

    def _holds_files(self, number: int) -> bool:
        names = self.folder.disk.list_dir(self.copy_path(number))
        return any(not is_dir for _, is_dir in names)

    def write(self, state: SavedState) -> None:
        """`DiskFailed` if it is not known whether the state is stored: the disk has to be read
        again. After any other error a restart finds the state before."""
        path = self.folder.file(STATE_NAME)
        with self.folder.replacing(path) as file:
            file.append(encode_state(state))
            file.sync()
        try:
            self.folder.disk.sync_dir(self.folder.path)
        except HeadwaterError as error:
            raise DiskFailed(
                f"{path} was replaced, and the change may not survive a power loss: {error}"
            ) from error


def encode_state(state: SavedState) -> bytes:
    body = msgspec.json.encode(state, order="sorted")
    return msgspec.json.encode(_StateFile(f"{zlib.crc32(body):08x}", msgspec.Raw(body))) + b"\n"


def decode_state(data: bytes, path: str = STATE_NAME) -> SavedState:
    """`Corrupt` if these bytes are not what was written."""
    try:
        file = msgspec.json.decode(data, type=_StateFile)
        if file.crc32 != f"{zlib.crc32(file.kept):08x}":
            raise Corrupt(f"{path} fails its checksum. {_ADVICE}")
        state = msgspec.json.decode(file.kept, type=SavedState)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} is not what a replica writes: {error}. {_ADVICE}") from error
    if state.format not in _READABLE_FORMATS:
        raise NotSupported(
            f"{path} is of format {state.format}; this version reads formats up to {STATE_FORMAT}. "
            "Upgrade Headwater."
        )
    return state


_ADVICE: Final = (
    "Without it, it is not known which leaders are too old for this replica: remove the whole "
    "folder, and let the replica bootstrap"
)


class OpenCopy:
    """A target, its folder, and the number of its readers."""

    def __init__(self, targets: Targets, target: Target, number: int, path: str) -> None:
        self.target = target
        self.number = number
        self.is_gone = False
        """Closed, and its folder may be used again."""
        self._targets = targets
        self._path = path
        self._readers = 0
        self._is_replaced = False
        self._is_closed = False
        self._removing: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Target]:
        """The target; it is not closed before the block is left."""
        self._readers += 1
        try:
            yield self.target
        finally:
            self._readers -= 1
            await self._leave()

    async def replace(self) -> None:
        """Another copy counts: close and remove this one, or leave that to its last reader."""
        self._is_replaced = True
        await self._leave()

    async def close(self) -> None:
        self._is_closed = True
        if self._removing is not None:
            await asyncio.wait((self._removing,))
        if not self.is_gone:
            await self.target.close()

    async def _leave(self) -> None:
        if self._is_closed or not self._is_replaced or self._readers or self.is_gone:
            return
        if self._removing is None or self._removing.done():
            # A task of its own: a cancelled reader would leave a thread that removes files, for
            # which no one could wait.
            self._removing = runtime.spawn(self._remove(), name=f"remove copy {self.number}")
        await asyncio.shield(self._removing)

    async def _remove(self) -> None:
        await self.target.close()
        await self._targets.discard(self._path)
        self.is_gone = True


class ReplicaCopies:
    """The copies of one replica, and its fence."""

    def __init__(
        self, files: SavedStateFile, targets: Targets, state: SavedState, copy: OpenCopy
    ) -> None:
        """Use `ReplicaCopies.load`."""
        self.copy = copy
        self._files = files
        self._targets = targets
        self._state = state
        self._replaced: OpenCopy | None = None
        self._saving = asyncio.Lock()
        """Held while the state is stored: the answer to a prefetch may bring a newer term."""

    @classmethod
    async def load(cls, files: SavedStateFile, targets: Targets) -> ReplicaCopies:
        """Open what the folder holds, and remove copies that were never finished."""
        stored = await runtime.run_blocking(files.read)
        if stored is None:
            await runtime.run_blocking(files.refuse_log)
        state = stored or SavedState()
        if state.kind not in ("", targets.kind):
            raise Refused(
                f"the replica in {files.folder.path} is of kind {state.kind!r}, and not "
                f"{targets.kind!r}: open it with targets of that kind, or use another folder"
            )
        state = msgspec.structs.replace(state, kind=targets.kind, format=STATE_FORMAT)
        # Also if it exists: the process that wrote it may have died before it was durable.
        await runtime.run_blocking(files.write, state)
        for number in await runtime.run_blocking(files.copy_numbers):
            if number != state.copy:
                await targets.discard(files.copy_path(number))
        path = files.copy_path(state.copy)
        target = await targets.open(path)
        return cls(files, targets, state, OpenCopy(targets, target, state.copy, path))

    @property
    def target(self) -> Target:
        return self.copy.target

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def diverged_lsn(self) -> int | None:
        return self._state.diverged_lsn

    async def check_term(self, term: int) -> bool:
        """Refuse an older leader; store a newer leader's term. Returns whether it is newer."""
        if term > self._state.term:
            async with self._saving:
                if term > self._state.term:
                    await self._save(term=term)
                    return True
        if term < self._state.term:
            raise Fenced(
                f"an answer of term {term} came from a leader that was overtaken: this replica "
                f"knows of term {self._state.term}"
            )
        return False

    async def close(self) -> None:
        try:
            if self._replaced is not None:
                await self._replaced.close()
        finally:
            await self.copy.close()

    def check_sound(self, name: str) -> None:
        lsn = self._state.diverged_lsn
        if lsn is not None:
            raise Diverged(
                f"replica {name!r} holds another record under LSN {lsn} than the log: find out "
                "which is right, then let it rebootstrap",
                lsn=lsn,
            )

    async def mark_diverged(self, lsn: int) -> None:
        async with self._saving:
            await self._save(diverged_lsn=lsn)

    async def replace(
        self,
        begin: Callable[[str], Awaitable[Target]],
        fill: Callable[[Target], Awaitable[None]],
        counts: Callable[[], None],
    ) -> None:
        """Make a second copy, then replace the first by it; `counts` is called at that moment."""
        if self._replaced is not None:
            # Again: an earlier removal may have been cancelled in the middle.
            await self._replaced.replace()
            if not self._replaced.is_gone:
                raise Unavailable(
                    "the previous copy is still being read: the next one waits until it is closed"
                )
        number = 3 - self.copy.number
        path = self._files.copy_path(number)
        target = await begin(path)
        fresh = OpenCopy(self._targets, target, number, path)
        try:
            await fill(target)
            if self.diverged_lsn is not None:
                # Only now, because other replicas may rely on some of these images until the fresh
                # copy's own, which reaches further, is durable. And before the fresh copy counts:
                # after that it would not be known which images are distrusted.
                await self._targets.drop_distrusted()
        except BaseException:
            await fresh.replace()
            raise
        await self._swap(fresh, counts)

    async def _swap(self, fresh: OpenCopy, counts: Callable[[], None]) -> None:
        try:
            async with self._saving:
                await self._save(copy=fresh.number, diverged_lsn=None)
        except BaseException as error:
            if self._state.copy == fresh.number:
                # It counts, although its caller was cancelled meanwhile.
                self._take(fresh, counts)
            elif isinstance(error, HeadwaterError) and not isinstance(error, DiskFailed):
                await fresh.replace()
            else:
                # Which of the two counts is known when the disk is read again: both stay.
                await fresh.target.close()
            raise
        await self._take(fresh, counts).replace()

    def _take(self, fresh: OpenCopy, counts: Callable[[], None]) -> OpenCopy:
        replaced, self._replaced, self.copy = self.copy, self.copy, fresh
        counts()
        return replaced

    async def _save(self, **changes: int | None) -> None:
        """Return, or be cancelled, only when it is known whether this is stored. One at a time."""
        state = msgspec.structs.replace(self._state, **changes)
        writing = runtime.spawn(runtime.run_blocking(self._files.write, state), name="save state")
        try:
            await asyncio.shield(writing)
        finally:
            await asyncio.wait((writing,))
            if not writing.cancelled() and writing.exception() is None:
                self._state = state
