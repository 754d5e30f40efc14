"""What a server's answer means: answers no well-behaved server gives, over a real connection."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest

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
from headwater.store import IF_ABSENT, Backend, ByteRange, PreconditionFailed, Version, open_store
from headwater.store.backend import Unreachable
from tests.store.answering_server import (
    Answer,
    Request,
    Server,
    applies_and_then,
    describes,
    keeps,
    lists,
    resets,
    run,
    s3,
    says,
    truncated,
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


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


# One attempt


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


# Folders' markers: `a/` is listed as `a`


def ranged(server: Server, request: Request) -> bytes:
    """A server that gives a part."""
    body = server.objects[request.key]
    first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
    part = body[first : last + 1]
    described = f"content-range: bytes {first}-{last}/{len(body)}\r\n{describes(server, request)}"
    return (says(206, headers=described, length=len(part))(server, request) or b"") + part


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


@pytest.mark.parametrize(
    ("status", "code", "compared"),
    [(412, "PreconditionFailed", True), (409, "ConditionalRequestConflict", False)],
)
@pytest.mark.parametrize("call", CONDITIONAL)
def test_412_compared_the_condition_and_409_may_not_have(
    call: str, status: int, code: str, compared: bool
) -> None:
    async def main(server: Server) -> None:
        server.next(says(status, code))
        with pytest.raises(PreconditionFailed) as raised:
            await CALLS[call](server.store()._backend)
        assert raised.value.compared is compared

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
