"""A disk in memory that promises what POSIX promises, and no more.

`FaultyDisk` is a `Disk` for tests. It can stop at any of its *points* (before and after each
call that changes something) and then say what a power loss, or the kill of the process, may
have left. It can fail: errors of a sync, after which the bytes are taken for clean and are
lost; errors of reads and writes; a full disk that takes a part of what it was given. And it
can lie (`skip_sync`), which any test of durability must notice. `explore`, beside it, runs a
body once for each point and checks what is left.

Always holds: the same seed and the same calls give the same errors, points and states; once
`Crashed` was raised, every further call raises it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, NoReturn

from headwater.core import runtime
from headwater.core.disk import Buffer, Disk, DiskFile, FileStat, raise_for_sync
from headwater.core.errors import Bug
from headwater.testing.disk_state import FileNode, FolderNode, Node, Tree, fail

# The kernel stamps files with the time of its last tick, not with the time of the call.
MTIME_TICK_NS: Final = 4_000_000

_SWARM_RATES: Final = (0.0, 0.0, 0.0, 0.01, 0.05, 0.3)
# With these errors a folder is not opened and not synced, and no change in it is lost.
_FAILS_TO_OPEN: Final = (errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EPERM)
_TAKES_SPACE: Final = ("append", "create", "link", "make_dir", "rename")


class Crashed(BaseException):
    """The machine or the process has crashed. Not an `Exception`, so that no code continues."""


class CrashKind(Enum):
    """What a crash loses: the process, or also what the disk had not synced."""

    POWER_LOSS = "power loss"
    """Whatever was not synced may be lost, torn or out of order."""
    PROCESS_KILL = "process kill"
    """The kernel lives: all that was written is there, and is no safer than before."""


@dataclass(frozen=True, slots=True)
class DiskFaultRates:
    """How likely each call fails with each error."""

    append_io: float = 0.0
    read_io: float = 0.0
    sync_io: float = 0.0
    sync_dir_io: float = 0.0
    no_space: float = 0.0

    @classmethod
    def draw(cls, random: Random) -> DiskFaultRates:
        """Rates of one history; many of them are zero, so that faults are also met alone."""
        return cls(*(random.choice(_SWARM_RATES) for _ in cls.__slots__))


class FaultyDisk(Disk):
    """A disk in memory that crashes, fails and loses what was not synced. Only "/" is there."""

    def __init__(
        self,
        *,
        seed: int = 0,
        crash_at: int | None = None,
        fail_at: Mapping[int, int] | None = None,
        rates: DiskFaultRates | None = None,
        space_bytes: int | None = None,
        skip_sync: bool = False,
        journaled: bool = False,
        clock_ns: Callable[[], int] = runtime.wall_ns,
    ) -> None:
        """`crash_at` is a point; `fail_at` gives the errno with which the call at a point fails."""
        self.seed = seed
        self.crash_at = crash_at
        self.fail_at = dict(fail_at or {})
        self.rates = rates or DiskFaultRates()
        self.space_bytes = space_bytes
        self.skip_sync = skip_sync
        self.journaled = journaled
        self.trail: list[str] = []
        """The name of each point passed: `trail[crash_at]` is where the disk stopped."""
        self.crashed = False
        self._clock_ns = clock_ns
        self._random = Random(seed)
        self._tree = Tree(mtime_ns=self._now_ns(), journaled=journaled)
        self._mutex = threading.RLock()
        self._locks: dict[int, _Lock] = {}
        self._fail_next: dict[str, list[int]] = {}

    @classmethod
    def swarm(
        cls,
        seed: int,
        *,
        crash_at: int | None = None,
        clock_ns: Callable[[], int] = runtime.wall_ns,
    ) -> FaultyDisk:
        """A disk whose rates of faults and free space are drawn from the seed."""
        random = Random(seed)
        rates = DiskFaultRates.draw(random)
        space_bytes = random.choice((None, None, None, 1 << random.randrange(8, 24)))
        journaled = random.random() < 0.5
        return cls(
            seed=seed,
            crash_at=crash_at,
            rates=rates,
            space_bytes=space_bytes,
            journaled=journaled,
            clock_ns=clock_ns,
        )

    @property
    def points(self) -> int:
        return len(self.trail)

    def crash(self) -> None:
        self.crashed = True

    def fail_next(self, operation: str, number: int, *, times: int = 1) -> None:
        """Let the next calls of `append`, `read_at`, `sync`, `rename`, … fail with this errno."""
        self._fail_next.setdefault(operation, []).extend([number] * times)

    def after_crash(self, random: Random, kind: CrashKind = CrashKind.POWER_LOSS) -> FaultyDisk:
        """A new disk without faults, in one of the states that a crash here may leave."""
        with self._mutex:
            disk = FaultyDisk(
                seed=random.getrandbits(32), journaled=self.journaled, clock_ns=self._clock_ns
            )
            disk.space_bytes = self.space_bytes
            if kind is CrashKind.POWER_LOSS:
                disk._tree = self._tree.after_power_loss(random)
            else:
                disk._tree = self._tree.after_process_kill(random)
            return disk

    def create(self, path: str) -> DiskFile:
        with self._mutex:
            self._begin("create", path)
            folder, name = self._tree.slot(path)
            if name in folder.live:
                fail(errno.EEXIST, path)
            node = self._add_file(folder, name)
            self._end("create", path)
            return FaultyFile(self, node, path, write=True)

    def open(self, path: str, *, write: bool = False) -> DiskFile:
        with self._mutex:
            self._check_alive()
            if number := self._fault("open"):
                fail(number, path)
            # A folder opens as well; only to read it is refused.
            node = self._tree.file(path) if write else self._tree.node(path)
            return FaultyFile(self, node, path, write=write)

    def stat(self, path: str) -> FileStat:
        with self._mutex:
            self._check_alive()
            return _stat(self._tree.node(path))

    def list_dir(self, path: str) -> list[tuple[str, bool]]:
        with self._mutex:
            self._check_alive()
            node = self._tree.find(path)
            if not isinstance(node, FolderNode):
                return []
            entries = [(name, isinstance(child, FolderNode)) for name, child in node.live.items()]
            self._random.shuffle(entries)
            return entries

    def make_dir(self, path: str) -> bool:
        with self._mutex:
            self._begin("make_dir", path)
            if self._tree.find(path) is not None:
                return False
            folder, name = self._tree.slot(path)
            number = self._tree.take_number()
            self._tree.set_name(folder, name, FolderNode(number, self._now_ns()))
            self._end("make_dir", path)
            return True

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            what = f"{source} to {target}"
            self._begin("rename", what)
            moved, replaced = self._tree.file(source), self._tree.find(target)
            if isinstance(replaced, FolderNode):
                fail(errno.EISDIR, target)
            # Two names of one file: the system leaves both.
            if moved is not replaced:
                self._tree.move_name(self._tree.slot(source), self._tree.slot(target))
            self._end("rename", what)

    def link(self, source: str, target: str) -> bool:
        with self._mutex:
            what = f"{source} to {target}"
            self._begin("link", what)
            node = self._tree.file(source)
            folder, name = self._tree.slot(target)
            if name in folder.live:
                return False
            self._tree.set_name(folder, name, node)
            self._end("link", what)
            return True

    def unlink(self, path: str) -> bool:
        with self._mutex:
            self._begin("unlink", path)
            node = self._tree.find(path)
            if not isinstance(node, FileNode):
                return False
            self._tree.set_name(*self._tree.slot(path), None)
            self._end("unlink", path)
            return True

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            number = self._point("sync_dir", path)
            folder = self._tree.node(path)
            if isinstance(folder, FileNode):
                fail(errno.ENOTDIR, path)
            if number in _FAILS_TO_OPEN:
                fail(number, path)
            if number is not None:
                self._tree.fail_sync(folder)
                _fail_sync(number, path)
            if not self.skip_sync:
                self._tree.make_safe(folder)
            self._end("sync_dir", path)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        lock = self._take_lock(path)
        try:
            self._check_alive()
            yield
        finally:
            with self._mutex:
                self._tree.drop_handle(lock.node)
            lock.owner = None
            lock.mutex.release()

    def _take_lock(self, path: str) -> _Lock:
        while True:
            with self._mutex:
                self._begin("lock", path)
                node = self._tree.find(path)
                if node is None:
                    node = self._add_file(*self._tree.slot(path))
                    self._end("lock", path)
                # As the system's locks: of the file, not of its name.
                lock = self._locks.setdefault(id(node), _Lock(node))
                if lock.owner == threading.get_ident():
                    raise Bug(f"{path} is locked by this thread already, which would never get it")
            lock.mutex.acquire()
            with self._mutex:
                if self.crashed or self._tree.find(path) is node:
                    lock.owner = threading.get_ident()
                    self._tree.add_handle(node)
                    return lock
            lock.mutex.release()

    def file_system(self, path: str) -> str:
        with self._mutex:
            self._check_alive()
            self._tree.node(path)
            return "faulty"

    def _check_alive(self) -> None:
        if self.crashed:
            raise Crashed("the process that used this disk is gone")

    def _begin(self, operation: str, what: str) -> None:
        """The point before a call; if the call is to fail, it fails without an effect."""
        number = self._point(operation, what)
        if number is not None:
            fail(number, what)

    def _point(self, operation: str, what: str) -> int | None:
        self._check_alive()
        self._pass(f"before {operation} {what}")
        return self.fail_at.get(self.points - 1) or self._fault(operation)

    def _end(self, operation: str, what: str) -> None:
        self._pass(f"after {operation} {what}")

    def _pass(self, name: str) -> None:
        self.trail.append(name)
        if self.points - 1 == self.crash_at:
            self.crashed = True
            raise Crashed(f"point {self.crash_at}: {name}")

    def _fault(self, operation: str) -> int | None:
        if planned := self._fail_next.get(operation):
            return planned.pop(0)
        io_rates = {
            "append": self.rates.append_io,
            "read_at": self.rates.read_io,
            "sync": self.rates.sync_io,
            "sync_dir": self.rates.sync_dir_io,
        }
        if self._happens(io_rates.get(operation, 0.0)):
            return errno.EIO
        if operation in _TAKES_SPACE and self._happens(self.rates.no_space):
            return errno.ENOSPC
        return None

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

    def _free_bytes(self, wanted_bytes: int) -> int:
        """How many of the wanted bytes fit."""
        if self.space_bytes is None:
            return wanted_bytes
        used_bytes = sum(len(node.live) for node in self._tree.files())
        return max(0, min(wanted_bytes, self.space_bytes - used_bytes))

    def _add_file(self, folder: FolderNode, name: str) -> FileNode:
        node = FileNode(self._tree.take_number(), self._now_ns())
        self._tree.set_name(folder, name, node)
        return node

    def _now_ns(self) -> int:
        return self._clock_ns() // MTIME_TICK_NS * MTIME_TICK_NS


class FaultyFile(DiskFile):
    """An open file of a `FaultyDisk`. It outlives its name, as on any disk."""

    def __init__(self, disk: FaultyDisk, node: Node, path: str, *, write: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._write = write
        self._closed = False
        disk._tree.add_handle(node)

    def append(self, data: Buffer) -> None:
        disk, data = self._disk, bytes(memoryview(data).cast("B"))
        with disk._mutex:
            number = disk._point("append", f"{self._path}, {len(data)} bytes")
            node = self._check_file(write=True)
            if number is not None:
                # A part is written, never all of it.
                done = disk._random.randrange(len(data)) if data else 0
            else:
                done = disk._free_bytes(len(data))
                number = errno.ENOSPC if done < len(data) else None
            if number is None and disk.points == disk.crash_at and disk._random.random() < 0.5:
                # A process that is killed while it writes leaves a part as well.
                done = disk._random.randint(0, len(data))
            node.append(data[:done])
            node.mtime_ns = disk._now_ns()
            if number is not None:
                fail(number, self._path)
            disk._end("append", f"{self._path}, {len(data)} bytes")

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk._mutex:
            self._disk._check_alive()
            node = self._check_file()
            if number := self._disk._fault("read_at"):
                fail(number, self._path)
            if offset < 0 or length < 0:
                fail(errno.EINVAL, self._path)
            return bytes(node.live[offset : offset + length])

    def truncate(self, size_bytes: int) -> None:
        with self._disk._mutex:
            self._disk._begin("truncate", f"{self._path} to {size_bytes} bytes")
            node = self._check_file(write=True)
            if size_bytes < 0:
                fail(errno.EINVAL, self._path)
            node.cut(size_bytes)
            node.mtime_ns = self._disk._now_ns()
            self._disk._end("truncate", f"{self._path} to {size_bytes} bytes")

    def sync(self) -> None:
        with self._disk._mutex:
            number = self._disk._point("sync", self._path)
            node = self._check_file()
            if number is not None:
                node.fail_sync()
                _fail_sync(number, self._path)
            if not self._disk.skip_sync:
                node.make_safe()
            self._disk._end("sync", self._path)

    def stat(self) -> FileStat:
        with self._disk._mutex:
            self._disk._check_alive()
            self._check_open()
            return _stat(self._node)

    def set_mtime_ns(self, mtime_ns: int) -> None:
        with self._disk._mutex:
            self._disk._check_alive()
            self._check_open()
            self._node.mtime_ns = mtime_ns

    def close(self) -> None:
        # Allowed after a crash as well: it changes nothing on the disk.
        with self._disk._mutex:
            if not self._closed:
                self._closed = True
                self._disk._tree.drop_handle(self._node)

    def _check_open(self, *, write: bool = False) -> None:
        if self._closed or (write and not self._write):
            fail(errno.EBADF, self._path)

    def _check_file(self, *, write: bool = False) -> FileNode:
        self._check_open(write=write)
        if isinstance(self._node, FolderNode):
            fail(errno.EISDIR, self._path)
        return self._node


class _Lock:
    """The lock of one file: held by one thread, and by none of a process that is gone."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.mutex = threading.Lock()
        self.owner: int | None = None


def _stat(node: Node) -> FileStat:
    if isinstance(node, FolderNode):
        return FileStat(0, node.mtime_ns, node.number, True)
    return FileStat(len(node.live), node.mtime_ns, node.number, False)


def _fail_sync(number: int, path: str) -> NoReturn:
    raise_for_sync(OSError(number, os.strerror(number)), path)
