"""What a forked child must not go on with: whoever holds such things is told, in the child.

PySpark's worker daemon forks. The child gets a copy of every buffer, lock and event loop, and none
of the threads: going on with them would send the parent's records a second time, or wait for ever.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

_told: set[weakref.WeakMethod[Callable[[], None]]] = set()


def tell_in_child(method: Callable[[], None]) -> None:
    """Call this method of some object in every forked child, for as long as the object lives."""
    _listen()
    # One step, and so is taking it away again: threads need no lock, which a child might find held.
    _told.add(weakref.WeakMethod(method, _told.discard))


def _tell() -> None:
    for kept in list(_told):
        method: Any = kept()
        if method is not None:
            method()
    _told.clear()


@functools.cache
def _listen() -> None:
    """Ask once: the interpreter never forgets whom it was to tell."""
    os.register_at_fork(after_in_child=_tell)
