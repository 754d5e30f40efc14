"""An address, a stream at it, and files to send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.stream import create_stream
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, on


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A directory store with the stream `events`, whose producers do not linger."""
    url = f"file://{tmp_path}/store"
    on(url, lambda store: create_stream(store, "events", linger_ms=1))
    return url


@pytest.fixture
def make(url: str) -> Callable[..., None]:
    """Makes another stream."""

    def run(name: str, **settings: Any) -> None:
        on(url, lambda store: create_stream(store, name, linger_ms=1, **settings))

    return run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes | str], str]:
    """Writes a file to be read."""

    def write(content: bytes | str) -> str:
        path = tmp_path / "input"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def filled(url: str, invoke: Invoke, file: File) -> str:
    """Five records in two batches, one of them no text."""
    for text in (b"k:one\nk:two\nk:three\n", b"k:\xff\xfe\nk:five\n"):
        assert invoke("produce", url, "events", file(text), "--key-separator=:").exit_code == 0
    return url
