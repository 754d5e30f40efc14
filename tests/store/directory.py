"""A directory as a store, and what is found in it."""

from __future__ import annotations

import os
from pathlib import Path

from headwater.store import LocalBackend, MemoryBackend
from headwater.store.objects import RESERVED_SEGMENT


def backend_at(path: Path) -> LocalBackend:
    return LocalBackend(str(path))


async def keys(
    backend: LocalBackend | MemoryBackend, prefix: str = "", after: str = ""
) -> list[str]:
    return [meta.key async for page in backend.list(prefix, after) for meta in page]


def unfinished(root: Path) -> list[str]:
    return os.listdir(root / RESERVED_SEGMENT / "tmp")
