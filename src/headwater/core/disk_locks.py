"""Locks of files, held by one thread of one process of this machine.

Always holds: while a lock is held, `path` named the locked file when it was taken; a process
that is gone holds nothing, whatever it forked. Errors are the operating system's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import Final

from headwater.core.errors import InUse
from headwater.core.limits import LOCK_WAIT_S

_FIRST_PAUSE_S: Final = 0.0002
_LAST_PAUSE_S: Final = 0.01


class _Descriptors:
    """Those of the locks that this process holds or waits for.

    A forked child gets copies of them, and with a copy it would keep a lock for which it does
    nothing, even after its parent is gone: it closes them as its first act.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: set[int] = set()
        os.register_at_fork(
            before=self._mutex.acquire,
            after_in_parent=self._mutex.release,
            after_in_child=self._begin_in_child,
        )

    def open(self, path: str) -> int:
        with self._mutex:  # no fork in between
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._mutex:
            self._open.discard(descriptor)
            os.close(descriptor)

    def _begin_in_child(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
        self._mutex.release()


_descriptors = _Descriptors()


class HeldLock:
    """The lock of the file that `path` names, made if it is not there; waits for whoever has it."""

    def __init__(self, path: str) -> None:
        self._process = os.getpid()
        # Opened anew each time: a lock belongs to the open file, so a descriptor shared by two
        # threads would let both in.
        while True:
            self._descriptor = _descriptors.open(path)
            try:
                if self._take(path):
                    return
            except (OSError, InUse):
                _descriptors.close(self._descriptor)
                raise
            _descriptors.close(self._descriptor)

    def release(self) -> None:
        """Let the next one in."""
        # In a child forked meanwhile the descriptor is closed, and its number may be another's.
        if os.getpid() == self._process:
            # A child may have its copy for a moment yet: releasing does not wait for it. Should it
            # fail, closing releases too, and what was done under the lock stays done.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            _descriptors.close(self._descriptor)

    def _wait(self, path: str) -> None:
        # Asked for again and again instead of waited for: nothing could end the wait for a process
        # that is stopped, and the waiting threads would be missed by everybody else.
        deadline_s = time.monotonic() + LOCK_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise InUse(
                        f"{path}: somebody else, here or in another process, has held this lock "
                        f"for {LOCK_WAIT_S:.0f} s; is it stopped? (fuser or lsof name it)"
                    ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    def _take(self, path: str) -> bool:
        """Whether the lock is that of the named file: the one that was opened may have been
        removed while we waited, and whoever comes next would lock another."""
        self._wait(path)
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except FileNotFoundError:
            return False
