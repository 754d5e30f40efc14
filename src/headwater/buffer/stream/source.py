"""Where a stream is to be found, as people say it: at an address, in a store, or here it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from headwater.buffer.stream.handle import Stream
from headwater.core.errors import Refused
from headwater.store import Store, open_store


class Found(NamedTuple):
    """A store or a stream, and what has to be closed afterwards."""

    source: Store | Stream
    owned: Store | None
    """The store, if it was opened here: nobody else has it."""


@asynccontextmanager
async def opening(source: str | Store | Stream) -> AsyncIterator[Found]:
    """Opens an address, and closes it again if what follows does not work out."""
    if not isinstance(source, str):
        yield Found(source, None)
        return
    store = open_store(source)
    try:
        yield Found(store, store)
    except BaseException:
        await store.close()
        raise


@asynccontextmanager
async def visiting(source: str | Store) -> AsyncIterator[Store]:
    """The store, for one thing that is asked of it: an address is opened and closed again."""
    if not isinstance(source, str):
        yield source
        return
    async with open_store(source) as store:
        if store.url.startswith("memory:"):
            raise Refused(
                "what is in memory goes when its store is closed, here at once: open it first, as "
                f"in headwater.open_store({source!r}), and hand that in"
            )
        yield store


def kept(source: str | Store, stream: Stream) -> Stream:
    """A stream that was found while visiting, to go on with.

    That of an address gets a store of its own, which holds nothing before it is used.
    """
    return Stream(open_store(source), stream.config) if isinstance(source, str) else stream
