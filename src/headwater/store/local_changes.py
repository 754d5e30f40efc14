"""Names that this process is changing: nobody here is told of one before its folder is synced.

Always holds: a change is noted before it can be seen and forgotten after it is safe. So whoever
read something and *then* finds no change noted has seen nothing that is not safe (as far as
this process goes).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from headwater.core.errors import DiskFailed, HeadwaterError


class ChangesUnderWay:
    """At most one change a path: whoever makes it holds the key's lock."""

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
