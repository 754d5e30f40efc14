"""Who may touch a log: one object of one process, until it is closed.

Always holds: what was closed changes nothing any more; a forked child, which has a copy of
everything, is told to open the log itself; and where the lock file is no longer the one that was
locked (something tidied it away, and another process may have come in), nothing more is written.
"""

from __future__ import annotations

import contextlib

from headwater.core.errors import Fenced, NotFound, Refused
from headwater.core.portal import call_in_child
from headwater.log.spool.folder import Folder


class Ownership:
    """The lock of a log's folder, and whether it still means anything."""

    def __init__(self, folder: Folder) -> None:
        """Waits for whoever has it."""
        self._folder = folder
        self._path = folder.file("lock")
        self._forked = False
        self._closed = False
        with contextlib.ExitStack() as held:
            held.enter_context(folder.disk.lock(self._path))
            self._inode = folder.disk.stat(self._path).inode
            self._held = held.pop_all()
        call_in_child(self._begin_in_child)

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy that a child has."""
        return self._forked

    @property
    def is_closed(self) -> bool:
        """Whether whoever opened it is done with it."""
        return self._closed

    def check_open(self) -> None:
        """`Refused` where the log is not this object's any more."""
        self.check_not_forked()
        if self._closed:
            raise Refused(f"{self._folder.path} is closed: open it again")

    def check_not_forked(self) -> None:
        """`Refused` in a child. Takes no lock, and is asked before any is taken: a child might wait
        for ever for one that a thread of its parent held."""
        if self._forked:
            raise Refused(
                f"{self._folder.path} was opened before the process forked, and is its parent's: "
                "open it in the child once the parent has closed it"
            )

    def check_held(self) -> None:
        """`Fenced` where the lock that is held is not the one whoever opens the log takes.

        Asked before and after each write: if it holds afterwards, whoever comes in later finds
        the bytes.
        """
        try:
            held = self._folder.disk.stat(self._path).inode == self._inode
        except NotFound:
            held = False
        if not held:
            raise Fenced(
                f"{self._path} was removed while this log was open, so another process may write "
                "to it. Nothing more is written here: see who else has it, then open it again"
            )

    def end(self) -> bool:
        """Nothing more is done by this object; False if that was so before."""
        ended, self._closed = not self._closed, True
        return ended

    def release(self) -> None:
        """Let the next one in."""
        self._held.close()

    def _begin_in_child(self) -> None:
        self._forked = True
