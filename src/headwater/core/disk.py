"""The disk calls whose order decides what a crash leaves.

Durable files go through a `Disk`, so that the same code runs on the operating system's disk and on
a simulated one that loses, tears and reorders everything that was not synced.

A caller may rely on this, and on nothing more:

- bytes are safe once `sync` of that file returned;
- a name (created, linked, renamed, removed) is safe once `sync_dir` of its folder returned;
- `rename` and `link` happen wholly or not at all, for readers and across a crash;
- after `sync` or `sync_dir` raised, nothing is known about data written since the last call that
  returned. The kernel may have marked the pages clean: a second sync proves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat as _stat
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from headwater.core.disk_locks import HeldLock
from headwater.core.errors import (
    AlreadyExists,
    Bug,
    Denied,
    DiskFailed,
    HeadwaterError,
    LimitExceeded,
    NoSpace,
    NotFound,
    NotSupported,
    Unavailable,
)

Buffer = bytes | bytearray | memoryview
"""Types of data that can be written."""

# Linux writes at most this many bytes a call; more is silently cut.
_WRITE_MAX_BYTES: Final = 0x7FFF_F000
# How /proc/self/mountinfo escapes blanks and backslashes; other bytes are not escaped.
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


class FileStat(NamedTuple):
    """Identifies the content of a file: every replacement changes at least one of these."""

    size_bytes: int
    mtime_ns: int
    inode: int
    is_dir: bool


class DiskFile(ABC):
    """An open file: appended to at its end, read at any offset."""

    @abstractmethod
    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end. When it raises, a part may have been written."""

    @abstractmethod
    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes`."""

    @abstractmethod
    def sync(self) -> None:
        """Return once everything appended is on stable storage."""

    def sync_data(self) -> None:
        """As `sync`, for the bytes and the size, without the file's times."""
        self.sync()

    @abstractmethod
    def stat(self) -> FileStat:
        """Size, modification time and inode."""

    @abstractmethod
    def set_mtime_ns(self, mtime_ns: int) -> None:
        """Set the modification time."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. Syncs nothing."""

    def __enter__(self) -> DiskFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Disk(ABC):
    """Names, files and locks under absolute paths."""

    @abstractmethod
    def create(self, path: str) -> DiskFile:
        """A new, empty file; fails if the name is taken."""

    @abstractmethod
    def open(self, path: str, *, write: bool = False) -> DiskFile:
        """An existing file."""

    @abstractmethod
    def stat(self, path: str) -> FileStat:
        """The file or folder at `path`; NotFound if there is none."""

    @abstractmethod
    def list_dir(self, path: str) -> list[tuple[str, bool]]:
        """The (name, is a folder) pairs in a folder, in no order; empty if there is no folder."""

    @abstractmethod
    def make_dir(self, path: str) -> bool:
        """Create one folder; False if it existed."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Move a file to `target`, replacing a file there."""

    @abstractmethod
    def link(self, source: str, target: str) -> bool:
        """Give a file a second name; False if that name is taken."""

    @abstractmethod
    def unlink(self, path: str) -> bool:
        """Remove a file's name; False if there was no file."""

    @abstractmethod
    def sync_dir(self, path: str) -> None:
        """Return once the names in a folder are on stable storage."""

    @abstractmethod
    def lock(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold the lock file at `path`, exclusively among threads and processes of this machine."""

    @abstractmethod
    def file_system(self, path: str) -> str:
        """The type of the file system that holds `path`, as the system names it."""


class OsFile(DiskFile):
    """A file of the operating system. A cancelled caller may close it while one of its calls still
    runs on a thread: the last user closes the descriptor, so that no call reaches another file that
    gets the same number."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self._mutex = threading.Lock()
        self._closed = False
        self._users = 1
        """The calls that run, and one more until the file is closed."""
        # One append at a time: the system may take the bytes of one in several parts.
        self._appending = threading.Lock()

    def append(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with self._appending, self._using() as descriptor:
            while len(view) > 0:
                view = view[os.write(descriptor, view[:_WRITE_MAX_BYTES]) :]

    def read_at(self, offset: int, length: int) -> bytes:
        with self._using() as descriptor:
            data = os.pread(descriptor, length, offset)
            if len(data) in (0, length):
                return data
            parts, done = [data], len(data)
            while done < length and (data := os.pread(descriptor, length - done, offset + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)

    def truncate(self, size_bytes: int) -> None:
        with self._using() as descriptor:
            os.ftruncate(descriptor, size_bytes)

    def sync(self) -> None:
        with self._using() as descriptor:
            _sync(descriptor, self._path)

    def sync_data(self) -> None:
        with self._using() as descriptor:
            _sync(descriptor, self._path, data_only=True)

    def stat(self) -> FileStat:
        with self._using() as descriptor:
            return _file_stat(os.fstat(descriptor))

    def set_mtime_ns(self, mtime_ns: int) -> None:
        with self._using() as descriptor:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))

    def close(self) -> None:
        with self._mutex:
            was_closed, self._closed = self._closed, True
        if not was_closed:
            self._end_use()

    @contextlib.contextmanager
    def _using(self) -> Iterator[int]:
        """The descriptor, which is not closed meanwhile."""
        with self._mutex:
            if self._closed:
                raise_for(OSError(errno.EBADF, os.strerror(errno.EBADF)), self._path)
            self._users += 1
        try:
            yield self._descriptor
        except OSError as error:
            raise_for(error, self._path)
        finally:
            self._end_use()

    def _end_use(self) -> None:
        with self._mutex:
            self._users -= 1
            is_last = not self._users
        if is_last:
            with _SystemErrors(self._path):
                os.close(self._descriptor)


class OsDisk(Disk):
    """The operating system's disk, on Linux and macOS."""

    def create(self, path: str) -> DiskFile:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def open(self, path: str, *, write: bool = False) -> DiskFile:
        return self._open(path, os.O_RDWR | os.O_APPEND if write else os.O_RDONLY)

    def _open(self, path: str, flags: int) -> DiskFile:
        with _SystemErrors(path):
            return OsFile(os.open(path, flags | os.O_CLOEXEC, 0o644), path)

    def stat(self, path: str) -> FileStat:
        with _SystemErrors(path):
            return _file_stat(os.stat(path))

    def list_dir(self, path: str) -> list[tuple[str, bool]]:
        with _SystemErrors(path):
            try:
                with os.scandir(path) as entries:
                    return [(entry.name, entry.is_dir()) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                return []

    def make_dir(self, path: str) -> bool:
        with _SystemErrors(path), contextlib.suppress(FileExistsError):
            os.mkdir(path)
            return True
        return False

    def rename(self, source: str, target: str) -> None:
        with _SystemErrors(target):
            os.rename(source, target)

    def link(self, source: str, target: str) -> bool:
        with _SystemErrors(target), contextlib.suppress(FileExistsError):
            os.link(source, target)
            return True
        return False

    def unlink(self, path: str) -> bool:
        with _SystemErrors(path):
            try:
                os.unlink(path)
                return True
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return False
            except PermissionError:
                # macOS says this of a folder.
                if os.path.isdir(path):
                    return False
                raise

    def sync_dir(self, path: str) -> None:
        with _SystemErrors(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(descriptor, path)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        with _SystemErrors(path):
            lock = HeldLock(path)
        try:
            yield
        finally:
            lock.release()

    def file_system(self, path: str) -> str:
        return _macos_file_system(path) if sys.platform == "darwin" else _linux_file_system(path)


class _SystemErrors:
    """Turns the errors of the operating system into ours. A generator would take longer."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise_for(error, self._path)


def raise_for(error: OSError, path: str) -> NoReturn:
    """Raise the Headwater error for an operating system's error."""
    kind, advice = _meaning(error.errno)
    raise kind(f"{path}: {os.strerror(error.errno or 0)}{advice}") from error


def raise_for_sync(error: OSError, path: str) -> NoReturn:
    """Raise `DiskFailed` for a failed sync, also on a full disk: its pages are dropped as well."""
    raise DiskFailed(
        f"{path}: sync failed ({os.strerror(error.errno or 0)}); whether the bytes are safe "
        "is unknown and a second try would prove nothing"
    ) from error


def _meaning(number: int | None) -> tuple[type[HeadwaterError], str]:
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            return NotFound, ""
        case errno.EACCES | errno.EPERM:
            return Denied, "; give this user read and write access to the folder"
        case errno.EROFS:
            return Denied, "; the file system is mounted read-only"
        case errno.ENOSPC | errno.EDQUOT:
            return NoSpace, "; free some space"
        case errno.EEXIST:
            return AlreadyExists, ""
        case errno.EFBIG:
            return LimitExceeded, "; raise the limit of a file's size (ulimit -f)"
        case errno.EXDEV:
            return NotSupported, "; both names must lie on one file system"
        case errno.EBADF | errno.EINVAL:
            return Bug, "; a file was used after it was closed, or not in the mode it was opened in"
        case errno.EMFILE | errno.ENFILE:
            return Unavailable, "; raise the limit of open files (ulimit -n)"
        case errno.EISDIR | errno.ENAMETOOLONG | errno.ELOOP:
            return NotSupported, ""
        case errno.EMLINK | errno.EOPNOTSUPP | errno.ENOSYS:
            return NotSupported, "; the file system lacks hard links"
        case errno.EIO:
            return DiskFailed, "; the disk reports an error, see the kernel's log"
        case _:
            return Unavailable, ""


def _sync(descriptor: int, path: str, *, data_only: bool = False) -> None:
    try:
        if sys.platform == "darwin":
            # fsync on macOS leaves the bytes in the drive's own cache.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif data_only:
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)
    except OSError as error:
        raise_for_sync(error, path)


def _file_stat(found: os.stat_result) -> FileStat:
    return FileStat(found.st_size, found.st_mtime_ns, found.st_ino, _stat.S_ISDIR(found.st_mode))


def _linux_file_system(path: str) -> str:
    """The type of the mount that `path` lies under."""
    with _SystemErrors(path):
        device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    real = os.fsencode(os.path.realpath(path))
    best, kind = (False, -1), "unknown"
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            fields, _, after = line.partition(b" - ")
            columns = fields.split(b" ")
            point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), columns[4])
            under = real == point or real.startswith(point.rstrip(b"/") + b"/")
            # The device decides, for a mount may hide another's longer path. Some file systems
            # give their files a device of their own; the longest path is then the best guess.
            rank = (columns[2] == wanted, len(point))
            if under and rank >= best:
                best, kind = rank, after.split(b" ")[0].decode()
    return kind


def _macos_file_system(path: str) -> str:
    listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True).stdout
    real = os.path.realpath(path)
    best, kind = -1, "unknown"
    for line in listing.splitlines():
        # "//user@host/share on /Volumes/share (smbfs, nodev)"
        point, _, options = line.partition(" on ")[2].rpartition(" (")
        under = real == point or real.startswith(point.rstrip("/") + "/")
        if under and len(point) > best:
            best, kind = len(point), options.rstrip(")").split(",")[0]
    return kind
