"""Runs several jobs at once and returns their results in the order of the jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from headwater.core import runtime
from headwater.core.errors import HeadwaterError

J = TypeVar("J")
T = TypeVar("T")


async def in_order(
    jobs: AsyncIterator[J] | Iterable[J],
    work: Callable[[J], Coroutine[Any, Any, T]],
    *,
    parallel: int,
    name: str,
) -> AsyncGenerator[T, None]:
    """The results of `work` for each job, in the order of the jobs, with up to `parallel` at once.

    The first error is raised after the results of all jobs before it. Closing the generator cancels
    the jobs that still run.
    """

    source = jobs if isinstance(jobs, AsyncIterator) else _aiter(jobs)
    running: deque[asyncio.Task[T]] = deque()
    has_more, failed = True, None
    try:
        while has_more or running:
            while has_more and len(running) < parallel:
                try:
                    job = await anext(source)
                except StopAsyncIteration:
                    has_more = False
                except HeadwaterError as error:
                    has_more, failed = False, error
                else:
                    running.append(runtime.spawn(work(job), name=name))
            if running:
                yield await running[0]
                running.popleft()
        if failed is not None:
            raise failed
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _aiter(jobs: Iterable[J]) -> AsyncGenerator[J, None]:
    for job in jobs:
        yield job
