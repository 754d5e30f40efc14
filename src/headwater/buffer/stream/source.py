"""Where a stream is to be found, as people say it: at an address, in a store, or here it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from headwater.buffer.stream.handle import Stream
from headwater.store import Store, open_store


class Source(NamedTuple):
    """A store or a stream, and what has to be closed afterwards."""

    found: Store | Stream
    owned: Store | None
    """The store, if it was opened here: nobody else has it."""


@asynccontextmanager
async def opening(source: str | Store | Stream) -> AsyncIterator[Source]:
    """Opens an address, and closes it again if what follows does not work out."""
    if not isinstance(source, str):
        yield Source(source, None)
        return
    store = open_store(source)
    try:
        yield Source(store, store)
    except BaseException:
        await store.close()
        raise
