"""Deleting many objects, some at a time."""

from __future__ import annotations

import asyncio

from headwater.buffer.queue.contract import Collected
from headwater.core import limits
from headwater.core.errors import HeadwaterError
from headwater.store import Store


async def delete_all(store: Store, keys: list[str], report: Collected) -> int:
    """Delete some at a time; how many went. What fails is counted, and met again."""
    gone = 0
    for first in range(0, len(keys), limits.GC_PARALLEL):
        group = keys[first : first + limits.GC_PARALLEL]
        for outcome in await asyncio.gather(
            *(store.delete(key) for key in group), return_exceptions=True
        ):
            if isinstance(outcome, HeadwaterError):
                report.failed += 1
            elif outcome is not None:
                raise outcome
            else:
                gone += 1
    return gone
