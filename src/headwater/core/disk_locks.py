"""File locks, held by one thread of one process of this machine.

Always holds: `path` named the locked file when the lock was taken; a process that ended holds no
lock, even if it had forked. Errors are the operating system's own.
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
    """The descriptors of the locks that this process holds or waits for.

    A forked child gets copies, and a copy would keep the lock even after the parent ended: the
    child closes them first of all.
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
        with self._mutex:  # no fork between opening and adding
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
    """The lock of the file at `path`, which is created if absent. Waits for the present holder."""

    def __init__(self, path: str) -> None:
        self._process = os.getpid()
        # A new descriptor each time: a lock belongs to the open file, so two threads that share a
        # descriptor would both get the lock.
        while True:
            self._descriptor = _descriptors.open(path)
            try:
                if self._wait_and_verify(path):
                    return
            except (OSError, InUse):
                _descriptors.close(self._descriptor)
                raise
            _descriptors.close(self._descriptor)

    def release(self) -> None:
        # In a child forked meanwhile the descriptor is closed, and its number may be reused.
        if os.getpid() == self._process:
            # A child may still have its copy for a moment: unlocking does not wait for it. If
            # unlocking fails, closing releases as well.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            _descriptors.close(self._descriptor)

    def _wait(self, path: str) -> None:
        # Polled instead of waited for: nothing could end the wait for a process that is stopped,
        # and the waiting threads are needed for other work.
        deadline_s = time.monotonic() + LOCK_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise InUse(
                        f"{path}: another thread or process has held this lock for "
                        f"{LOCK_WAIT_S:.0f} s; is it stopped? (fuser or lsof name it)"
                    ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    def _wait_and_verify(self, path: str) -> bool:
        """Wait for the lock; whether it is the lock of the file that `path` names now. The opened
        file may have been removed meanwhile, and the next caller would lock another one."""
        self._wait(path)
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except FileNotFoundError:
            return False
