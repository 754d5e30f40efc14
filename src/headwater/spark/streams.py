"""A stream by its name; one that is not there is told with those that are, and how to make it."""

from __future__ import annotations

import shlex

from headwater.buffer.stream import Stream, open_stream, stream_names
from headwater.core.errors import NotFound
from headwater.store import Store


async def named_stream(store: Store, name: str, *, writing: bool = False) -> Stream:
    """The stream; opens no consumer."""
    try:
        return await open_stream(store, name, writing=writing)
    except NotFound as error:
        known = ", ".join((await stream_names(store))[:10]) or "none"
        raise NotFound(
            f"there is no stream {name!r} at {store.url} (streams there: {known}). To make it: "
            f"headwater stream create {shlex.quote(store.url)} {name}"
        ) from error
