"""Streams that the commands of records work on, and what is in them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from headwater import blocking
from headwater.store import Store, open_store

File = Callable[[bytes | str], str]
Make = Callable[..., None]


def on(url: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    """Run something on the store of a test."""

    async def run() -> Any:
        async with open_store(url) as store:
            return await work(store)

    return asyncio.run(run())


def lines(url: str, stream: str = "events", **options: Any) -> list[dict[str, Any]]:
    """What a reader finds."""
    found: list[dict[str, Any]] = blocking.read(url, stream, **options).to_table().to_pylist()
    return found


def values(url: str, stream: str = "events") -> list[bytes]:
    return [row["_value"] for row in lines(url, stream)]


def start(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headwater.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **pipes,
    )
