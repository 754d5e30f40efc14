"""What stands below a directory, as an object store would list it.

Folders are nobody's objects: one that holds no object is not there, as it would not be anywhere
else. Names that are no keys are left out; nobody could get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headwater.core.disk import Disk
from headwater.core.errors import BadKey, NotFound
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store.keys import check_key
from headwater.store.local_changes import ChangesUnderWay
from headwater.store.objects import ObjectMeta, Page


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
        # A file at hand saves the way into the folders beside it, which may hold very many.
        if not all(key.endswith("/") for key in keys):
            return True
        return any(self._holds_object(key) for key in keys)

    def _keys_in(self, folder: str) -> list[str]:
        """What stands directly in a folder. "a/b" sorts after "a-b": a folder takes its place
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
