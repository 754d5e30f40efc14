"""Where a command's event loop starts: the one place of this room that does it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in an event loop of its own."""
    return asyncio.run(work)  # noqa: TID251  a command is where an event loop starts
