"""What stays open from one commit of a query to the next, in the process that Spark commits in.

Spark makes a writer anew for every commit, mostly in the same process. Opening a partition's queue
takes some fifteen requests, appending to one that is open takes one. What is kept here is only ever
a shorter way: `Appending` looks itself whether anybody committed meanwhile, and a process that has
nothing opens.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from headwater.buffer.stream import Stream
from headwater.buffer.transaction import Appending, CommitAttempt

KEPT_MAX: Final = 16
"""Queries of one process whose partitions stay open."""


class Kept(NamedTuple):
    """Of one query, for one stream as it is configured."""

    stream: Stream
    appending: Appending


_kept: dict[tuple[str, str, str], Kept] = {}


def take(stream: Stream, attempt: CommitAttempt) -> Appending:
    """The query's own, for one commit; nobody else has it meanwhile."""
    found = _kept.pop(_key(stream, attempt), None)
    # Another configuration may have more partitions.
    if found is None or found.stream.config != stream.config:
        return Appending(stream, attempt.application)
    return found.appending


async def keep(stream: Stream, attempt: CommitAttempt, appending: Appending) -> None:
    """Leave it for the query's next commit."""
    _kept[_key(stream, attempt)] = Kept(stream, appending)
    while len(_kept) > KEPT_MAX:
        await _kept.pop(next(iter(_kept))).appending.close()


def forget() -> None:
    """Keep nothing: as in a new process."""
    _kept.clear()


def _key(stream: Stream, attempt: CommitAttempt) -> tuple[str, str, str]:
    return stream.store.url, stream.id, attempt.application


# The connections stayed with the parent.
os.register_at_fork(after_in_child=forget)
