"""The published Rust buffer as a tool: built once on demand, and talked to line by line.

What it understands stands at the top of `rust/src/main.rs`. Every question has a deadline, and no
tool outlives its context manager.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.buffer.layout import v1_prefix
from tests.interop.cache import (
    Unavailable,
    cache_folder,
    install_once,
    require_tool,
    run_installer,
)
from tests.interop.servers import BUCKET, Server

PROJECT = Path(__file__).parent / "rust"
SOURCES = ("Cargo.toml", "src/main.rs")
PACKAGE = "headwater-interop-buffer"
PROGRAM = "buffer-v1"
ANSWER_DEADLINE_S = 60.0
ANSWER_MAX_BYTES = 64 << 20


class RustError(Exception):
    """The library answered with an error: `kind` is its variant."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class ToolDied(Exception):
    """The tool ended without an answer: it panicked or was killed. Its last words follow."""


def build() -> Path:
    """The program; `Unavailable` says why this machine cannot have it."""

    def compile_into(folder: Path) -> None:
        cargo = require_tool("cargo")
        require_tool("cc")
        for name in SOURCES:
            # In a copy: cargo leaves a lock file beside the manifest, and it names a registry.
            copy = folder / "project" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, copy)
        project = folder / "project"
        # Outside the folder that a changed source empties: the hundreds of crates stay compiled.
        target = cache_folder() / "rust-target"
        run_installer([cargo, "fetch"], project, {})
        try:
            run_installer([cargo, "build", "--offline"], project, {"CARGO_TARGET_DIR": str(target)})
        except Unavailable as reason:
            if f"could not compile `{PACKAGE}`" in str(reason):
                raise RuntimeError(f"the tool's own source does not compile: {reason}") from reason
            raise
        shutil.copyfile(target / "debug" / PROGRAM, folder / PROGRAM)
        (folder / PROGRAM).chmod(0o755)

    return install_once("rust-buffer", _fingerprint(), PROGRAM, compile_into)


def _fingerprint() -> str:
    sources = b"\0".join((PROJECT / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(sources).hexdigest()


class Session:
    """One running tool: a question, an answer, and so on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, **request: Any) -> Any:
        """What the tool answers; `RustError` if the library did not like it."""
        await self.send(**request)
        return await self.answer()

    async def send(self, **request: Any) -> None:
        """A question whose answer is fetched later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await self._process.stdin.drain()

    async def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            line = await self._process.stdout.readline()
        if not line:
            raise ToolDied(await self._last_words())
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise RustError(answer["error"], answer["message"])
        return answer

    async def close(self) -> Any:
        """What the tool says at the end; it flushes what it has before."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        said = await self.answer()
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await self._process.wait()
        return said

    def kill(self) -> None:
        """As a crash would end it: nothing is flushed, nothing is acknowledged."""
        if self._process.returncode is None:
            self._process.kill()

    async def _last_words(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            return (await self._process.stderr.read()).decode(errors="replace")


class Producer(Session):
    """The library's producer. It flushes when told to, and when it is closed."""

    async def produce(self, records: Sequence[bytes], metadata: bytes = b"") -> int:
        """One call; gives its ingestion time."""
        answer = await self.ask(**self.call(records, metadata))
        time_ms: int = answer["ingestion_time_ms"]
        return time_ms

    async def flush(self) -> None:
        """One batch of all the calls since the last flush."""
        await self.ask(do="flush")

    @staticmethod
    def call(records: Sequence[bytes], metadata: bytes) -> dict[str, Any]:
        """The request for one call."""
        return {
            "do": "produce",
            "records": [record.hex() for record in records],
            "metadata": metadata.hex(),
        }


@dataclass(frozen=True)
class Consumed:
    """A batch as the library's consumer gave it; `metadata` is (start, ingestion time, payload)."""

    sequence: int
    location: str
    records: tuple[bytes, ...]
    metadata: tuple[tuple[int, int, bytes], ...]


class Consumer(Session):
    """The library's consumer."""

    async def next(self) -> Consumed | None:
        """The next batch, or None if there is none."""
        batch = await self.ask(do="next")
        if batch is None:
            return None
        records = tuple(bytes.fromhex(record) for record in batch["records"])
        items = metadata_of(batch)
        return Consumed(batch["sequence"], batch["location"], records, items)

    async def rest(self) -> list[Consumed]:
        """All the batches that are left."""
        batches: list[Consumed] = []
        while (batch := await self.next()) is not None:
            batches.append(batch)
        return batches

    async def ack(self, sequence: int) -> None:
        """Counted at once, dequeued at a flush or at every hundredth."""
        await self.ask(do="ack", sequence=sequence)

    async def ack_through(self, sequence: int) -> None:
        """Dequeued at once."""
        await self.ask(do="ack_through", sequence=sequence)

    async def flush(self) -> int:
        """Dequeue what was acknowledged; gives how many batches are left."""
        pending: int = (await self.ask(do="flush"))["pending"]
        return pending


class Parser(Session):
    """The library's reader of manifests."""

    async def manifest(self, data: bytes) -> Any:
        """What it holds: epoch, next_sequence, entries."""
        return await self.ask(do="manifest", data=data.hex())


def metadata_of(entry: Mapping[str, Any]) -> tuple[tuple[int, int, bytes], ...]:
    """The metadata items of a batch, a descriptor or an entry."""
    return tuple(
        (item["start_index"], item["ingestion_time_ms"], bytes.fromhex(item["payload"]))
        for item in entry["metadata"]
    )


@dataclass(frozen=True)
class RustBuffer:
    """One buffer of a server's bucket, seen by the library."""

    program: Path
    server: Server
    stream: str
    data_prefix: str = ""
    """Where its producer puts batches, if not beside the manifest."""
    root: str = ""
    """Below which part of the bucket everything stands."""

    @property
    def prefix(self) -> str:
        """The place of the first partition's published queue."""
        return v1_prefix(self.stream, 0)

    @property
    def manifest_key(self) -> str:
        """The manifest stands among the batches, as the library has it by default."""
        return f"{self.prefix}/manifest"

    @asynccontextmanager
    async def producer(self, compression: str = "none") -> AsyncIterator[Producer]:
        """A producer; not closed by leaving, only killed."""
        async with self._running("produce", compression) as process:
            session = Producer(process)
            await session.answer()
            yield session

    @asynccontextmanager
    async def consumer(
        self, last_acked: int | None = None, *, gc_interval_ms: int | None = None
    ) -> AsyncIterator[Consumer]:
        """A consumer, which fences every earlier one; not closed by leaving, only killed.

        With an interval it collects garbage, of any age.
        """
        options = [
            "-" if number is None else str(number) for number in (last_acked, gc_interval_ms)
        ]
        async with self._running("consume", *options) as process:
            session = Consumer(process)
            await session.answer()
            yield session

    @asynccontextmanager
    async def _running(self, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        verb, *rest = command
        bucket = f"{BUCKET}/{self.root}" if self.root else BUCKET
        where = [bucket, self.manifest_key, self.data_prefix or self.prefix]
        async with _process([str(self.program), verb, *where, *rest], self.server.env) as process:
            yield process


@asynccontextmanager
async def parser(program: Path) -> AsyncIterator[Parser]:
    """A reader of manifests; needs no server."""
    async with _process([str(program), "parse"], {}) as process:
        yield Parser(process)


@asynccontextmanager
async def _process(
    command: Sequence[str], env: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    # Somebody's profile or session token would go to the server beside its own credentials.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**outside, **env},
        limit=ANSWER_MAX_BYTES,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
