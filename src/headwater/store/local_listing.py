"""Listing a directory as an object store would, and the changes under way in it.

A folder without objects is not listed, as on any object store. File names that are not valid
keys are left out, because no request could read them.

Always holds: a change is registered before it is visible and removed after it is synced. A
reader that reads a file and then finds no change under way has read only synced data (as far
as this process goes).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from headwater.core.disk import Disk
from headwater.core.errors import BadKey, DiskFailed, HeadwaterError, NotFound
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store.objects import ObjectMeta, Page, check_key


class ChangesUnderWay:
    """The name changes of this process that are not synced yet. At most one change for each path,
    because its writer holds the key's lock."""

    def __init__(self) -> None:
        self._changes: dict[str, _Change] = {}

    @contextlib.contextmanager
    def noted(self, path: str) -> Iterator[None]:
        """Change a name and sync its folder inside. `DiskFailed` says that it may have changed and
        is not safe, which it then never becomes; any other error, that nothing was changed."""
        change = self._changes[path] = _Change()
        try:
            yield
        except HeadwaterError as error:
            if not isinstance(error, DiskFailed):
                del self._changes[path]
            raise
        else:
            del self._changes[path]
        finally:
            change.over.set()

    def wait(self, path: str) -> None:
        """Return once what was read at `path` is safe; `DiskFailed` if it never will be."""
        change = self._changes.get(path)
        if change is None:
            return
        # What was under way when this process was forked is another process's change.
        if change.process == os.getpid():
            change.over.wait()
        if change.over.is_set() and self._changes.get(path) is change:
            raise DiskFailed(
                f"{path}: its last change could not be synced; whether it is safe is unknown"
            )

    def wait_in(self, folder: str) -> None:
        """The same for all names in a folder."""
        for path in tuple(self._changes):
            if os.path.dirname(path) == folder:
                self.wait(path)


class _Change:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.over = threading.Event()


class LocalListing:
    """Lists the files below one directory. Everything here blocks."""

    def __init__(
        self,
        root: str,
        disk: Disk,
        changes: ChangesUnderWay,
        head: Callable[[str], ObjectMeta],
    ) -> None:
        self._root = root
        self._disk = disk
        self._changes = changes
        self._head = head

    def walk(self, folder: str, start_after: str) -> Iterator[ObjectMeta]:
        """Objects below `folder` ("" or "a/b/") in the order of their keys."""
        for key in sorted(self._keys_in(folder)):
            if key.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    yield from self.walk(key, start_after)
            elif key > start_after:
                try:
                    yield self._head(key)
                except NotFound:
                    continue  # deleted since the folder was read

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly below `folder` that hold an object."""
        below = (key for key in self._keys_in(folder) if key.endswith("/"))
        return [key[len(folder) : -1] for key in below if self._holds_object(key)]

    def _holds_object(self, folder: str) -> bool:
        keys = self._keys_in(folder)
        # A file here answers the question without reading the folders, which may be very large.
        if not all(key.endswith("/") for key in keys):
            return True
        return any(self._holds_object(key) for key in keys)

    def _keys_in(self, folder: str) -> list[str]:
        """The keys directly in a folder. "a/b" sorts after "a-b": a folder is ordered
        with the slash that follows it."""
        here = f"{self._root}/{folder.removesuffix('/')}"
        entries = self._disk.list_dir(here)
        self._changes.wait_in(here)
        keys = ((f"{folder}{name}", is_dir) for name, is_dir in entries)
        return [f"{key}/" if is_dir else key for key, is_dir in keys if _is_key(key)]


def next_page(walk: Iterator[ObjectMeta]) -> Page:
    """As much of a walk as makes a page; nothing at its end."""
    page: Page = []
    for meta in walk:
        page.append(meta)
        if len(page) == LIST_PAGE_KEYS:
            break
    return page


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except BadKey:
        return False
    return True
