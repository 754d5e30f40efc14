"""Runs several jobs at once and returns their results in the order of the jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from headwater.core import runtime
from headwater.core.errors import HeadwaterError

T = TypeVar("T")
J = TypeVar("J")


async def in_order(
    jobs: AsyncIterator[J], work: Callable[[J], Awaitable[T]], *, parallel: int, name: str
) -> AsyncGenerator[T, None]:
    """What `work` makes of each job, up to `parallel` of them under way.

    The first error ends it, when all before it were handed out; whoever leaves ends the rest.
    """

    async def one(job: J) -> T:
        return await work(job)

    under_way: deque[asyncio.Task[T]] = deque()
    more, failed = True, None
    try:
        while more or under_way:
            while more and len(under_way) < parallel:
                try:
                    job = await anext(jobs)
                except StopAsyncIteration:
                    more = False
                except HeadwaterError as error:
                    more, failed = False, error
                else:
                    under_way.append(runtime.spawn(one(job), name=name))
            if under_way:
                yield await under_way[0]
                under_way.popleft()
        if failed is not None:
            raise failed
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
