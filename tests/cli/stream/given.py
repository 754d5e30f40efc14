"""What a command said, and the stream that it left."""

from __future__ import annotations

import asyncio

from typer.testing import Result

from headwater.buffer.stream import Stream, open_stream
from headwater.store import open_store

COLUMNS = {"id": "int64 not null", "name": "string"}


def opened(url: str, name: str = "orders") -> Stream:
    async def run() -> Stream:
        async with open_store(url) as store:
            return await open_stream(store, name)

    return asyncio.run(run())


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(result: Result, status: int = 2) -> str:
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.stderr
    return result.stderr
