"""The stores of this process, opened once for each address: Spark's workers serve many tasks.

All of them are used through the portal of the process (`core.portal.shared`), because a store
serves one event loop. A forked child has none of them: their connections stayed with the parent.
"""

from __future__ import annotations

import os
import threading

from headwater.store import Store, open_store

_open: dict[str, Store] = {}
_opening = threading.Lock()


def store_at(url: str) -> Store:
    """The store at an address. Contacts nothing: the first request does."""
    with _opening:
        store = _open.get(url)
        if store is None:
            store = _open[url] = open_store(url)
        return store


def _begin_in_child() -> None:
    # Another thread of the parent may have held the lock, and is not there to let it go.
    global _open, _opening
    _open, _opening = {}, threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)
