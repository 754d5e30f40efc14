"""A server that gives whatever answers a test asks for, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from headwater.core.retry import RetryPolicy
from headwater.store import Store, open_store

NO_WAITS = RetryPolicy(base_s=0.0, throttled_base_s=0.0)
TIME = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True)
class Request:
    method: str
    key: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[["Server", Request], bytes | None]
"""What goes back on the wire; None resets the connection."""


@dataclass
class Server:
    """A tiny S3 whose next answers can be replaced."""

    answers: list[Answer] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    def next(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    def store(self, *, policy: RetryPolicy = NO_WAITS) -> Store:
        endpoint = f"http://127.0.0.1:{self.port}"
        return open_store("s3://bucket", endpoint=endpoint, policy=policy)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = first.split(" ")
        request = Request(method, target.removeprefix("/bucket/"), headers, body)
        self.requests.append(request)
        reply = (self.answers.pop(0) if self.answers else s3)(self, request)
        if reply is None:
            # Closing with nothing to linger for sends a reset instead of an end.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            writer.write(reply)
            await writer.drain()
        writer.close()


def says(status: int, code: str = "", *, headers: str = "", length: int | None = None) -> Answer:
    """A fixed answer."""
    body = f"<Error><Code>{code}</Code><Message>in words</Message></Error>" if code else ""
    size = len(body) if length is None else length

    def answer(_: Server, request: Request) -> bytes:
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-length: {size}\r\nconnection: close\r\n{headers}\r\n"
        )
        return (head + ("" if request.method == "HEAD" else body)).encode()

    return answer


def keeps(code: str) -> Answer:
    """A DELETE goes as DeleteObjects, which succeeds and names the keys that are still there."""
    error = f"<Error><Key>a</Key><Code>{code}</Code><Message>in words</Message></Error>"
    return _xml(f"<DeleteResult>{error}</DeleteResult>")


def lists(*entries: tuple[str, int]) -> Answer:
    """A listing of names and sizes, as they are."""
    contents = "".join(
        f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;1&quot;</ETag><Size>{size}</Size></Contents>"
        for name, size in entries
    )
    truncated = "<IsTruncated>false</IsTruncated>"
    return _xml(f"<ListBucketResult>{truncated}{contents}</ListBucketResult>")


def _xml(body: str) -> Answer:
    size = len(body)
    head = f"HTTP/1.1 200 X\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n"
    return lambda _, __: (head + body).encode()


def resets(_: Server, request: Request) -> None:
    """Not carried out; the connection breaks."""


def s3(server: Server, request: Request) -> bytes:
    """What a well-behaved server does."""
    match request.method:
        case "PUT":
            if request.headers.get("if-none-match") == "*" and request.key in server.objects:
                return says(412, "PreconditionFailed")(server, request) or b""
            server.objects[request.key] = request.body
            return says(200, headers=describes(server, request))(server, request) or b""
        case "GET" | "HEAD" if request.key in server.objects:
            body = server.objects[request.key]
            head = says(200, headers=describes(server, request), length=len(body))
            return (head(server, request) or b"") + (body if request.method == "GET" else b"")
        case _:
            return says(404, "NoSuchKey")(server, request) or b""


def describes(server: Server, request: Request) -> str:
    tag = hash(server.objects[request.key]) & 0xFFFF
    return f'etag: "{tag:x}"\r\nlast-modified: {TIME}\r\n'


def applies_and_then(answer: Answer) -> Answer:
    """Carried out, and answered otherwise."""

    def both(server: Server, request: Request) -> bytes | None:
        s3(server, request)
        return answer(server, request)

    return both


def truncated(server: Server, request: Request) -> bytes:
    """Half of the body, then the end of the connection."""
    return s3(server, request)[:-5]


def run(main: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        async with Server().running() as server:
            await main(server)

    asyncio.run(inside())
