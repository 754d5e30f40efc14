"""What is said to whoever still uses a stream that was deleted.

A queue that vanishes under its users looks like damage, and is to be repaired; that of a deleted
stream is not. Only the stream's register tells the two apart, so it is looked at once such an error
is there, and never before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headwater.buffer.stream.handle import Stream
from headwater.buffer.stream.register import StreamRegister
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused, Trimmed

# `Refused` by a published v1 queue that belongs to a later stream: its layout has no place for ids.
_MAY_TELL: Final = (Damaged, NotFound, Refused)


@asynccontextmanager
async def telling_of_deletion(stream: Stream) -> AsyncIterator[None]:
    """Raises, in the place of an error that says that a queue is gone, why it is."""
    try:
        yield
    except _MAY_TELL as error:
        told = await told_of_deletion(stream, error)
        if told is error:
            raise
        raise told from error


async def told_of_deletion(stream: Stream, error: HeadwaterError) -> HeadwaterError:
    """`NotFound` if the error comes of the stream's deletion; otherwise the error itself."""
    if not isinstance(error, _MAY_TELL) or isinstance(error, Trimmed):
        return error
    try:
        config = await StreamRegister(stream.store, stream.name).read(writing=False)
    except HeadwaterError:
        # Nothing is known of a deletion, so the error stands as it is.
        return error
    if config.is_live and config.id == stream.id:
        return error
    again = "" if config.id == stream.id else ", and another one was made under its name"
    return NotFound(
        f"stream {stream.name!r} (id {stream.id}) was deleted{again} while it was in use: stop, or "
        "open it again if it is there again"
    )
