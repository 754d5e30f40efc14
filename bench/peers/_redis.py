"""Redis Streams: one stream, written through pipelines, in two durability settings."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from bench.peers._peer import (
    EACH,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consume,
    Peer,
    Produce,
    Records,
    joined,
    tabled,
)
from tests.interop.cache import Unavailable, require_tool
from tests.interop.process import HOST, Process, free_port

STREAM = "records"
FIELD = "v"
READ_RECORDS = 10_000
POLL_S = 0.05


class Redis(Peer):
    """One server process of the system's, with an append-only file and no snapshots."""

    sync: ClassVar[str]
    # One at a time waits for a reply, and with it for a sync, before the next: all would take an
    # hour, and in pipelines many minutes.
    shares: ClassVar[dict[str, float]] = {EACH: 0.005, LISTS: 0.1}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._process: Process | None = None
        self._client: Any = None

    def start(self) -> None:
        try:
            library: Any = importlib.import_module("redis")
        except ImportError as error:
            raise Unavailable(f"{error}: install requirements/peers.txt") from error
        try:
            server = require_tool("redis-server")
        except Unavailable as missing:
            raise Unavailable(f"{missing} (Debian and Ubuntu: the package redis-server)") from None
        port = free_port()
        command = [server, "--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "yes"]
        # A rewrite of the file in the middle of a round would be measured with it.
        command += ["--appendfsync", self.sync, "--auto-aof-rewrite-percentage", "0"]
        self._process = Process(command, {}, self.folder, self.folder / "server.log")
        self._client = library.Redis(HOST, port)
        self._process.wait_until(self._is_ready)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()

    def server_pids(self) -> Sequence[int]:
        return () if self._process is None else (self._process.pid,)

    def empty(self) -> None:
        self._client.flushall()
        self._client.bgrewriteaof()
        while self._client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(POLL_S)

    def producing(self) -> dict[str, Produce]:
        return {EACH: self._each, LISTS: self._lists}

    def consuming(self) -> dict[str, Consume]:
        return {TO_BYTES: self._to_bytes, TO_ARROW: self._to_arrow}

    def _is_ready(self) -> bool:
        try:
            return bool(self._client.ping())
        except OSError:
            return False
        except Exception as error:  # the library's own kinds, which are known only once imported
            if type(error).__name__ in ("ConnectionError", "BusyLoadingError"):
                return False
            raise

    def _each(self, records: Records) -> Callable[[], None]:
        def run() -> None:
            for value in records.values:
                self._client.xadd(STREAM, {FIELD: value})

        return run

    def _lists(self, records: Records) -> Callable[[], None]:
        pipeline = self._client.pipeline(transaction=False)

        def run() -> None:
            for values in records.lists:
                for value in values:
                    pipeline.xadd(STREAM, {FIELD: value})
                pipeline.execute()

        return run

    def _pages(self, count: int) -> Iterator[list[bytes]]:
        name, after, left = FIELD.encode(), "-", count
        while left > 0:
            found = self._client.xrange(STREAM, min=after, count=min(READ_RECORDS, left))
            if not found:
                break
            yield [fields[name] for _, fields in found]
            left -= len(found)
            after = f"({found[-1][0].decode()}"

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        return lambda: joined(self._pages(count))

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        return lambda: tabled(self._pages(count))


class RedisAlways(Redis):
    """Synced before every reply."""

    name = "Redis, fsync always"
    promise = "power loss: appendfsync=always, an fsync before the replies of each pipeline"
    sync = "always"


class RedisEverySecond(Redis):
    """Redis's own default for an append-only file."""

    name = "Redis, everysec"
    promise = "process crash; a power loss takes a second of acknowledged records (everysec)"
    sync = "everysec"
