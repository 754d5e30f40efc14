"""A directory as an object store: durable, atomic, with both conditional writes.

An object is a plain file at its key's path, so that any tool can read it. A write goes to an
unfinished file under `.headwater/tmp`, which is synced and then gets its name in one step; the
folder is synced before the write returns. So no reader, and no crash, ever shows a part of an
object, and a write that returned survives a power loss.

Always holds:

- a key's content changes only while its lock is held; a new key is also created by a hard link,
  which the kernel refuses if any other program took the name;
- every replacement has a later modification time than the file that it replaces, so a version
  (time, inode, size) never comes back while the key exists. The kernel's own times tick every few
  milliseconds and inodes are reused at once: without this, two writes could have one version;
- no answer depends on a name that was not synced. A refused condition and an absent object are
  reported after a sync as well, because an earlier attempt may have changed the name. A read in
  this process of a name that this process is changing waits for its sync;
- after a failed sync, and after any failure once a name was changed, nothing more is written
  through this object and that name is no longer read: what the disk stored is unknown, and a
  second sync would not show it.

A folder is synced after the name is visible. On a file system with an ordered journal (ext4, XFS,
Btrfs, APFS) data that another process writes because of a visible name never become durable before
that name. Network file systems promise neither that nor the locks, and are refused.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import PurePath
from typing import Final

from headwater.core import runtime
from headwater.core.disk import Disk, DiskFile, FileStat, OsDisk
from headwater.core.errors import (
    Denied,
    DiskFailed,
    HeadwaterError,
    NotFound,
    NotSupported,
    Unavailable,
)
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store.backend import Backend, Condition, IfAbsent, PreconditionFailed
from headwater.store.objects import (
    RESERVED_SEGMENT,
    Buffer,
    ByteRange,
    Names,
    Object,
    ObjectMeta,
    Page,
    Parts,
    Version,
    is_key,
)

LOCK_STRIPES: Final = 256
# An unfinished file this old belongs to a process that was killed. If its writer still runs,
# naming the file fails and the write starts again.
ABANDONED_AFTER_MS: Final = 24 * 60 * 60 * 1000

NETWORK_FILE_SYSTEMS: Final = frozenset(
    "9p afpfs afs beegfs ceph cifs coda davfs drvfs fhgfs glusterfs gpfs lustre ncpfs nfs nfs4 "
    "ocfs2 orangefs prl_fs smb3 smbfs vboxsf virtiofs vmhgfs webdav".split()
)


class ChangesUnderWay:
    """The name changes of this process that are not synced yet, each from before it is visible. A
    reader that reads a file and then finds no change under way has read only synced data. A path
    has at most one change, because its writer holds the key's lock."""

    def __init__(self) -> None:
        self._over: dict[str, tuple[int, threading.Event]] = {}
        """By path: the process that changes it, and whether the change is over."""

    @contextlib.contextmanager
    def noted(self, path: str) -> Iterator[None]:
        """Change a name and sync its folder inside. `DiskFailed` says that it may have changed and
        is not safe, which it then never becomes; any other error, that nothing was changed."""
        over = threading.Event()
        self._over[path] = os.getpid(), over
        try:
            yield
            del self._over[path]
        except HeadwaterError as error:
            if not isinstance(error, DiskFailed):
                del self._over[path]
            raise
        finally:
            over.set()

    def wait(self, path: str) -> None:
        """Return once what was read at `path` is safe; `DiskFailed` if it never will be."""
        change = self._over.get(path)
        if change is None:
            return
        process, over = change
        # What was under way when this process was forked is another process's change.
        if process == os.getpid():
            over.wait()
        if over.is_set() and self._over.get(path) is change:
            raise DiskFailed(
                f"{path}: its last change could not be synced; whether it is safe is unknown"
            )

    def wait_in(self, folder: str) -> None:
        """The same for all names in a folder."""
        for path in tuple(self._over):
            if os.path.dirname(path) == folder:
                self.wait(path)


class LocalBackend(Backend):
    """A directory as an object store."""

    scheme = "file"
    is_local = True

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self._root = root.rstrip("/") or "/"
        self._disk = disk or OsDisk()
        self._tmp = f"{self._root}/{RESERVED_SEGMENT}/tmp"
        self._locks = f"{self._root}/{RESERVED_SEGMENT}/locks"
        self._safe_folders: set[str] = set()
        self._ready = False
        self._failed: DiskFailed | None = None
        self._changes = ChangesUnderWay()
        self._refuse_network_file_system()

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        return await runtime.run_blocking(self._get, key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        return await runtime.run_blocking(self._head, key)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        return await runtime.run_blocking(self._put, key, data, condition)

    async def put_parts(self, key: str, parts: Parts) -> Version:
        return await runtime.run_blocking(self._put, key, parts, None)

    async def delete(self, key: str) -> None:
        await runtime.run_blocking(self._delete, key)

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        walk, page = self._walk(prefix, start_after), Page()
        while page := await runtime.run_blocking(list, islice(walk, LIST_PAGE_KEYS)):
            yield page

    async def folders(self, prefix: str) -> Names:
        return await runtime.run_blocking(self._folders, prefix)

    # The methods below block; the runtime runs them on threads.

    def _get(self, key: str, byte_range: ByteRange | None) -> Object:
        path = self._path(key)
        try:
            with self._disk.open(path) as file:
                meta = _meta(key, file.stat())
                start, end = (byte_range or ByteRange(0, meta.size_bytes)).resolve(meta.size_bytes)
                return Object(meta, file.read_at(start, max(0, end - start)))
        finally:
            self._changes.wait(path)

    def _head(self, key: str) -> ObjectMeta:
        path = self._path(key)
        try:
            return _meta(key, self._disk.stat(path))
        finally:
            self._changes.wait(path)

    def _walk(self, folder: str, start_after: str) -> Iterator[ObjectMeta]:
        """Objects below `folder` ("" or "a/b/") in the order of their keys."""
        for key in sorted(self._keys_in(folder)):
            if key.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    yield from self._walk(key, start_after)
            elif key > start_after:
                # It may have been deleted since the folder was read.
                with contextlib.suppress(NotFound):
                    yield self._head(key)

    def _folders(self, folder: str) -> Names:
        below = (key for key in self._keys_in(folder) if key.endswith("/"))
        return [key[len(folder) : -1] for key in below if self._holds_object(key)]

    def _holds_object(self, folder: str) -> bool:
        keys = self._keys_in(folder)
        # A file here answers the question without reading the folders, which may be very large.
        has_file = not all(key.endswith("/") for key in keys)
        return has_file or any(self._holds_object(key) for key in keys)

    def _keys_in(self, folder: str) -> Names:
        """The keys directly in a folder, without names that no request could read. "a/b" sorts
        after "a-b": a folder is ordered with the slash that follows it."""
        here = f"{self._root}/{folder.removesuffix('/')}"
        entries = self._disk.list_dir(here)
        self._changes.wait_in(here)
        keys = ((f"{folder}{name}", is_dir) for name, is_dir in entries)
        return [f"{key}/" if is_dir else key for key, is_dir in keys if is_key(key)]

    def _put(self, key: str, data: Buffer | Parts, condition: Condition) -> Version:
        with self._begin_again_if_gone():
            self._prepare()
            path = f"{self._tmp}/{runtime.new_ulid()}"
            file = self._disk.create(path)
            try:
                for part in data if isinstance(data, Parts) else (data,):
                    file.append(part)
                    del part  # the next part may reuse its memory
                return self._finish(key, path, file, condition)
            finally:
                self._discard(path, file)

    def _discard(self, path: str, file: DiskFile) -> None:
        # The write is decided already. Files that stay behind are removed later.
        with contextlib.suppress(HeadwaterError):
            file.close()
        with contextlib.suppress(HeadwaterError):
            self._disk.unlink(path)

    def clock_ms(self) -> int:
        # Not an object's time: a replacement never has an earlier time than the replaced object.
        # After the clock was set back by a day, such an object would be a day ahead.
        return runtime.wall_ms()

    def _delete(self, key: str) -> None:
        path = self._path(key)
        with self._begin_again_if_gone():
            self._prepare()
            with self._disk.lock(self._lock_path(key)):
                if not self._change(path, lambda: self._disk.unlink(path)):
                    # Without a folder there is no object; Headwater removes no folders.
                    with contextlib.suppress(NotFound):
                        self._sync_folder(os.path.dirname(path))

    def _finish(self, key: str, staged: str, file: DiskFile, condition: Condition) -> Version:
        """Sync a staged file and give it its name, if the condition holds."""
        mtime_ns = self._stamp(file, runtime.wall_ns())
        self._guard_sync(file.sync)
        target = self._path(key)
        folder = os.path.dirname(target)
        self._make_folder(folder, key)

        def set_name() -> bool:
            if isinstance(condition, IfAbsent):
                return self._disk.link(staged, target)
            self._disk.rename(staged, target)
            return True

        with self._disk.lock(self._lock_path(key)):
            replaced = self._stat_object(target, key)
            allowed = _allows(condition, replaced)
            if allowed and replaced is not None and replaced.mtime_ns >= mtime_ns:
                self._stamp(file, replaced.mtime_ns + 1)
                self._guard_sync(file.sync)
            version = _version(file.stat())
            if allowed and self._change(target, set_name):
                return version
            self._sync_folder(folder)
        raise PreconditionFailed(f"{key} exists or is not at the expected version", compared=True)

    def _change(self, path: str, act: Callable[[], bool]) -> bool:
        """Add or remove a name. This process reads it only after its folder is synced."""
        self._refuse_if_failed()
        try:
            with self._changes.noted(path):
                done = act()
                if done:
                    self._sync_change(os.path.dirname(path))
        except DiskFailed as error:
            self._failed = self._failed or error
            raise
        return done

    @contextlib.contextmanager
    def _begin_again_if_gone(self) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            # Another program removed a folder or the staged file: start again.
            self._safe_folders.clear()
            self._ready = False
            raise Unavailable(f"{error}; the directory was changed from outside") from error

    def _stamp(self, file: DiskFile, mtime_ns: int) -> int:
        file.set_mtime_ns(mtime_ns)
        stored_ns = file.stat().mtime_ns
        if stored_ns != mtime_ns:
            raise NotSupported(
                f"the file system below {self._root} rounds modification times "
                f"({mtime_ns} ns became {stored_ns} ns); conditional writes need nanoseconds, "
                "which ext4, XFS, Btrfs, ZFS, tmpfs and APFS store"
            )
        return mtime_ns

    def _stat_object(self, path: str, key: str) -> FileStat | None:
        try:
            stat = self._disk.stat(path)
        except NotFound:
            return None
        if stat.is_dir:
            raise _both(key, key)
        return stat

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _lock_path(self, key: str) -> str:
        return f"{self._locks}/{zlib.crc32(key.encode()) % LOCK_STRIPES:02x}"

    def _guard_sync(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except DiskFailed as error:
            self._failed = error
            raise
        # The disk reports lost bytes once: another thread may have got the error for our bytes.
        self._refuse_if_failed()

    def _sync_folder(self, path: str) -> None:
        self._guard_sync(lambda: self._disk.sync_dir(path))

    def _sync_change(self, path: str) -> None:
        """Sync a folder after a name in it was changed. Any failure is final: a second attempt
        would find the changed name and report it as safe."""
        try:
            self._sync_folder(path)
        except DiskFailed:
            raise
        except HeadwaterError as error:
            self._failed = DiskFailed(f"{path}: a name was changed and not synced ({error})")
            raise self._failed from error

    def _refuse_if_failed(self) -> None:
        if self._failed is not None:
            raise DiskFailed(
                f"an earlier sync below {self._root} failed and nothing more is written to it; "
                f"check the disk, then open the store again ({self._failed})"
            )

    def _prepare(self) -> None:
        self._refuse_if_failed()
        if not self._ready:
            self._refuse_nested_root()
            self._make_folder(self._tmp)
            self._make_folder(self._locks)
            self._remove_abandoned_files()
            self._ready = True

    def _refuse_nested_root(self) -> None:
        """Locks belong to a root: writers of one file through two roots would not exclude each
        other."""
        for above in [*PurePath(self._root).parents][:-1]:
            if self._is_folder(f"{above}/{RESERVED_SEGMENT}/locks"):
                raise NotSupported(
                    f"{self._root} is inside the local store {above}. Open that one and use keys "
                    f"that begin with {str(PurePath(self._root).relative_to(above))!r}, or use "
                    "another directory."
                )

    def _make_folder(self, path: str, key: str | None = None) -> None:
        """Create a folder and its parents, and sync each name in its parent."""
        if path in self._safe_folders:
            return
        above = os.path.dirname(path)
        if above != path:
            created, missing = False, not self._is_folder(path)
            if missing:
                self._make_folder(above, key)
                created = self._disk.make_dir(path)
                if not created and not self._is_folder(path):
                    if key is not None:
                        raise _both(path.removeprefix(self._root + "/"), key)
                    raise NotSupported(
                        f"{path} is not a directory, so {self._root} cannot hold a store"
                    )
            self._sync_folder_name(path, above, created=created, missing=missing)
        self._safe_folders.add(path)

    def _sync_folder_name(self, path: str, above: str, *, created: bool, missing: bool) -> None:
        below_root = path.startswith(self._root + "/")
        if created and not below_root:
            # A second attempt would take the folder for the user's own, which needs no sync.
            self._sync_change(above)
        elif missing or below_root or path == self._root:
            # Also if another process created it: it may not have synced it yet.
            try:
                self._sync_folder(above)
            except Denied:
                # The parent of an existing root may be unreadable for this user.
                if missing or below_root:
                    raise

    def _is_folder(self, path: str) -> bool:
        try:
            return self._disk.stat(path).is_dir
        except NotFound:
            return False

    def _remove_abandoned_files(self) -> None:
        oldest_ns = (runtime.wall_ms() - ABANDONED_AFTER_MS) * 1_000_000
        for name, _ in self._disk.list_dir(self._tmp):
            path = f"{self._tmp}/{name}"
            with contextlib.suppress(NotFound):  # finished or swept by another process
                if self._disk.stat(path).mtime_ns < oldest_ns:
                    self._disk.unlink(path)

    def _refuse_network_file_system(self) -> None:
        existing = self._root
        while not self._is_folder(existing) and os.path.dirname(existing) != existing:
            existing = os.path.dirname(existing)
        kind = self._disk.file_system(existing)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
            raise NotSupported(
                f"{self._root} is on a network or user-space file system ({kind}), where neither "
                "locks nor syncs are reliable. Use a local disk (under WSL: a path inside the "
                "Linux file system, not /mnt/c), or an object store: s3://, gs://, az://."
            )


def _allows(condition: Condition, present: FileStat | None) -> bool:
    if condition is None:
        return True
    if isinstance(condition, IfAbsent):
        return present is None
    return present is not None and _version(present) == condition


def _both(object_key: str, key: str) -> NotSupported:
    return NotSupported(
        f"{object_key} cannot be an object and a folder at once in a local store (writing {key})"
    )


def _version(stat: FileStat) -> Version:
    return Version(e_tag=f"{stat.mtime_ns:x}-{stat.inode:x}-{stat.size_bytes:x}")


def _meta(key: str, stat: FileStat) -> ObjectMeta:
    if stat.is_dir:
        raise NotFound(f"{key} does not exist")
    return ObjectMeta(key, stat.size_bytes, _version(stat), stat.mtime_ns // 1_000_000)
