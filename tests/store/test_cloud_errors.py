"""What a server's answer means: answers no well-behaved server gives, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.core.backoff import RetryPolicy
from headwater.core.errors import (
    AlreadyExists,
    BadUrl,
    Denied,
    HeadwaterError,
    NoSpace,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.store import (
    IF_ABSENT,
    Backend,
    ByteRange,
    PreconditionFailed,
    Store,
    Version,
    open_store,
)
from headwater.store.backend import Unreachable

NO_WAITS = RetryPolicy(base_s=0.0, throttled_base_s=0.0)
TIME = "Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# The server


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
            return says(200, headers=_described(server, request))(server, request) or b""
        case "GET" | "HEAD" if request.key in server.objects:
            body = server.objects[request.key]
            head = says(200, headers=_described(server, request), length=len(body))
            return (head(server, request) or b"") + (body if request.method == "GET" else b"")
        case _:
            return says(404, "NoSuchKey")(server, request) or b""


def _described(server: Server, request: Request) -> str:
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


# One attempt

CALLS: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "create": lambda backend: backend.put("a", b"data", IF_ABSENT),
    "replace": lambda backend: backend.put("a", b"data", Version('"etag"')),
    "put": lambda backend: backend.put("a", b"data"),
    "delete": lambda backend: backend.delete("a"),
    "get": lambda backend: backend.get("a"),
    "head": lambda backend: backend.head("a"),
    "list": lambda backend: anext(backend.list("", "")),
}
CONDITIONAL = ("create", "replace")
WRITES = (*CONDITIONAL, "put")
READS = ("get", "head", "list")
ALL = (*WRITES, *READS)

Case = tuple[str, Answer, tuple[str, ...], type[HeadwaterError], str]
CASES: list[Case] = [
    ("404", says(404, "NoSuchKey"), ("get", "head"), NotFound, "a does not exist in s3://bucket"),
    ("404 on a condition", says(404, "NoSuchKey"), ("replace",), NotFound, "does not exist"),
    ("no bucket", says(404, "NoSuchBucket"), (*WRITES, "get", "list"), Refused, "create it"),
    ("412", says(412, "PreconditionFailed"), CONDITIONAL, PreconditionFailed, "412"),
    ("409", says(409, "ConditionalRequestConflict"), CONDITIONAL, PreconditionFailed, "409"),
    ("401", says(401, "Unauthorized"), ALL, Denied, "which ones are in use"),
    ("403", says(403, "AccessDenied"), ALL, Denied, "what they are allowed to do"),
    ("expired", says(400, "ExpiredToken"), (*WRITES, "get", "list"), Denied, "ExpiredToken"),
    ("400", says(400, "InvalidArgument"), (*WRITES, "get", "list"), Refused, "in words"),
    ("501", says(501, "NotImplemented"), (*WRITES, "get", "list"), Refused, "NotImplemented"),
    ("429", says(429, "TooManyRequests"), ALL, Throttled, "429"),
    ("503", says(503, "SlowDown"), ALL, Throttled, "503"),
    ("507", says(507, "InsufficientStorage"), WRITES, NoSpace, "507"),
    ("500 on a write", says(500, "InternalError"), WRITES, OutcomeUnknown, "500"),
    ("500 on a read", says(500, "InternalError"), READS, Unavailable, "500"),
    ("408 on a write", says(408, "RequestTimeout"), WRITES, OutcomeUnknown, "408"),
    ("reset on a write", resets, WRITES, OutcomeUnknown, "a: "),
    ("reset on a read", resets, READS, Unavailable, ""),
    # The code decides before the status.
    ("slow body", says(400, "RequestTimeout"), WRITES, OutcomeUnknown, "400 RequestTimeout"),
    ("slow read", says(400, "RequestTimeout"), ("get", "list"), Unavailable, "RequestTimeout"),
    ("short body", says(400, "IncompleteBody"), WRITES, OutcomeUnknown, "IncompleteBody"),
    ("garbled body", says(400, "BadDigest"), WRITES, OutcomeUnknown, "BadDigest"),
    ("odd 400", says(400, "InternalError"), WRITES, OutcomeUnknown, "InternalError"),
    ("odd 403", says(403, "SlowDown"), (*WRITES, "get", "list"), Throttled, "SlowDown"),
    ("500 busy", says(500, "ServiceUnavailable"), (*WRITES, "get"), Throttled, "500"),
    ("clock", says(403, "RequestTimeTooSkewed"), (*WRITES, "get", "list"), Denied, "the clock of"),
    ("kept", keeps("AccessDenied"), ("delete",), Denied, "what they are allowed to do"),
    ("kept for now", keeps("SlowDown"), ("delete",), Throttled, "SlowDown"),
    ("kept, broken", keeps("InternalError"), ("delete",), OutcomeUnknown, "InternalError"),
    ("kept, busy", keeps("OperationAborted"), ("delete",), Unavailable, "OperationAborted"),
    ("delete 409", says(409, "OperationAborted"), ("delete",), PreconditionFailed, "409"),
    ("foreign name", lists(("a//b", 1)), ("list",), Refused, "whose name is not a key"),
    ("redirect", says(301), ALL, Refused, "set region="),
    ("no etag", says(200), WRITES, OutcomeUnknown, "a: "),
]
EACH = [
    pytest.param(answer, call, kind, advice, id=f"{name}-{call}")
    for name, answer, calls, kind, advice in CASES
    for call in calls
]


@pytest.mark.parametrize(("answer", "call", "kind", "advice"), EACH)
def test_each_answer_means_one_thing(
    answer: Answer, call: str, kind: type[HeadwaterError], advice: str
) -> None:
    async def main(server: Server) -> None:
        server.next(answer)
        backend = server.store()._backend
        with pytest.raises(HeadwaterError) as raised:
            await CALLS[call](backend)
        assert type(raised.value) is kind
        assert advice in str(raised.value)
        assert "Debug source" not in str(raised.value), "no wall of text"
        assert len(server.requests) == 1, "a backend never repeats"

    run(main)


def test_what_was_never_sent_is_said_to_be_unreachable() -> None:
    async def main(server: Server) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            server.port = closed.getsockname()[1]
        backend = server.store()._backend
        for call in ALL:
            with pytest.raises(Unreachable, match="cannot connect to s3://bucket"):
                await CALLS[call](backend)

    run(main)


def test_a_truncated_body_is_not_a_short_object() -> None:
    async def main(server: Server) -> None:
        server.objects["a"] = b"0123456789"
        server.next(truncated)
        with pytest.raises(Unavailable):
            await server.store()._backend.get("a")
        server.next(truncated)
        assert (await server.store().get("a")).data == b"0123456789"

    run(main)


def test_no_credentials_says_how_to_give_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")

    async def main(server: Server) -> None:
        for call in ALL:
            with pytest.raises(Denied, match=r"AWS_ACCESS_KEY_ID.*profile=.*anonymous=true"):
                await CALLS[call](server.store()._backend)
        assert server.requests == []

    run(main)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_what_the_credential_service_answers_is_not_the_stores_answer(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """An object is not absent, nor deleted, because a machine has no role."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    class Service(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_PUT = answer

        def log_message(self, *_: object) -> None:
            return

    async def main(server: Server) -> None:
        for call in ALL:
            with pytest.raises(Denied, match="no credentials"):
                await CALLS[call](server.store()._backend)
        assert server.requests == []

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{service.server_port}")
        run(main)
        service.shutdown()


def test_half_of_the_credentials_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Denied, match="AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket")


def test_an_unencrypted_connection_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    async def main(server: Server) -> None:
        with pytest.raises((Unreachable, BadUrl)):
            await CALLS["head"](open_store("s3://bucket")._backend)

    run(main)


def test_a_refused_suffix_is_read_exactly() -> None:
    """Some servers refuse the last bytes; the object may be larger than what was asked for."""

    async def main(server: Server) -> None:
        server.objects["a"] = b"0123456789"
        server.next(says(416, "InvalidRange"), s3, ranged)
        found = await server.store()._backend.get("a", ByteRange(-3))
        assert (found.data, found.meta.size_bytes) == (b"789", 10)
        assert server.requests[-1].headers["range"] == "bytes=7-9"

    run(main)


def ranged(server: Server, request: Request) -> bytes:
    """A server that gives a part."""
    body = server.objects[request.key]
    first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
    part = body[first : last + 1]
    described = f"content-range: bytes {first}-{last}/{len(body)}\r\n{_described(server, request)}"
    return (says(206, headers=described, length=len(part))(server, request) or b"") + part


# Folders' markers: `a/` is listed as `a`

MARKED: dict[str, tuple[list[tuple[str, int]], list[str], int]] = {
    "behind what sorts before the slash": (
        [("p/a-b", 1), ("p/a/", 0), ("p/a/x", 1)],
        ["p/a-b", "p/a/x"],
        0,
    ),
    "beside an object of the same name": ([("p/a", 0), ("p/a/", 0), ("p/b", 1)], ["p/a", "p/b"], 0),
    "of an empty folder, behind": ([("p/a.b", 1), ("p/a/", 0), ("p/b", 1)], ["p/a.b", "p/b"], 0),
    "in order, with something below": ([("p/a/", 0), ("p/a/x", 1)], ["p/a/x"], 1),
    "in each other": ([("p/a/", 0), ("p/a/b/", 0), ("p/a/b/c", 1)], ["p/a/b/c"], 2),
    "of the folder that is listed": ([("p/", 0), ("p/a", 1)], ["p/a"], 0),
    "none: an empty object": ([("p/a", 0), ("p/a-b", 1), ("p/b", 0)], ["p/a", "p/a-b", "p/b"], 0),
    "none: an empty object alone": ([("p/a", 0)], ["p/a"], 0),
    "none: an empty object with a folder": (
        [("p/real", 0), ("p/real/x", 1)],
        ["p/real", "p/real/x"],
        1,
    ),
}


@pytest.mark.parametrize("name", MARKED)
def test_a_folders_marker_is_no_object(name: str) -> None:
    entries, keys, heads = MARKED[name]

    async def main(server: Server) -> None:
        server.objects["p/real"] = b""
        server.next(lists(*entries))
        assert [meta.key async for meta in server.store().list("p")] == keys
        assert [request.method for request in server.requests] == ["GET"] + ["HEAD"] * heads

    run(main)


@pytest.mark.parametrize(
    "entries",
    [
        [("p/a-b", 1), ("p/a", 0), ("p/a-c", 1)],
        [("p/a-b", 1), ("p/a", 1)],
        [("p/b", 1), ("p/a", 0)],
    ],
)
def test_what_no_marker_explains_is_out_of_order(entries: list[tuple[str, int]]) -> None:
    async def main(server: Server) -> None:
        server.next(lists(*entries))
        with pytest.raises(NotSupported, match="in the order of keys"):
            assert [meta async for meta in server.store().list("p")]

    run(main)


# Through the store


def test_a_write_that_landed_and_whose_response_was_lost_is_found_by_looking() -> None:
    async def main(server: Server) -> None:
        server.next(applies_and_then(resets))
        version = await server.store().put_if_absent("a", b"mine", token=b"mine")
        assert [request.method for request in server.requests] == ["PUT", "PUT", "GET"]
        assert version == (await server.store().head("a")).version
        assert server.objects == {"a": b"mine"}

    run(main)


def test_a_landed_write_that_a_gateway_called_failed_is_found_by_looking() -> None:
    async def main(server: Server) -> None:
        server.next(applies_and_then(says(503, "SlowDown")))
        await server.store().put_if_absent("a", b"mine", token=b"mine")
        server.next(applies_and_then(says(500, "InternalError")))
        await server.store().put_if_absent("b", b"mine", token=b"mine")
        server.next(applies_and_then(says(412, "PreconditionFailed")))
        await server.store().put_if_absent("c", b"mine", token=b"mine")
        assert set(server.objects.values()) == {b"mine"}

    run(main)


def test_anothers_object_is_anothers() -> None:
    async def main(server: Server) -> None:
        server.objects["a"] = b"others"
        with pytest.raises(AlreadyExists) as raised:
            await server.store().put_if_absent("a", b"mine", token=b"mine")
        assert raised.value.current.data == b"others"

    run(main)


def test_503_twice_and_then_a_success_is_a_success() -> None:
    async def main(server: Server) -> None:
        store = server.store()
        server.next(says(503, "SlowDown"), says(503, "SlowDown"))
        await store.put("a", b"data")
        assert server.objects == {"a": b"data"}
        stats = store.stats.of("put")
        assert (stats.requests, stats.retries, stats.throttled) == (3, 2, 2)

    run(main)


def test_409_while_the_key_is_absent_is_tried_again() -> None:
    async def main(server: Server) -> None:
        server.next(says(409, "ConditionalRequestConflict"))
        await server.store().put_if_absent("a", b"mine", token=b"mine")
        assert server.objects == {"a": b"mine"}

    run(main)


def test_a_missing_bucket_is_not_tried_again() -> None:
    async def main(server: Server) -> None:
        server.next(says(404, "NoSuchBucket"))
        with pytest.raises(Refused, match="s3://bucket does not exist; create it"):
            await server.store().put("a", b"")
        assert len(server.requests) == 1

    run(main)
