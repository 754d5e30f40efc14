"""S3, Google Cloud Storage and Azure Blob Storage, through obstore.

obstore's own retries are off. It repeats conditional writes blindly: the second attempt of a
write that landed gets "precondition failed", and the caller would believe that it lost a race
that it won. `Store` repeats requests instead, and reads to find out what happened.

obstore has threads and sockets of its own, which neither a simulation nor a forked child
sees. Each request checks first whether they can be used in this process.

Errors: obstore has a class for the common answers and text for the rest; status and code are
parsed from the text. The code decides before the status: S3 says 400 for a connection that
was too slow, and answers a DELETE (sent as DeleteObjects) with 200 and a code for each key
that it did not delete. An unrecognised error counts as a broken connection: unknown outcome
for a write, try again for a read.

Where a quirk of a server goes: an error code into the sets above `meaning`, a status or a text into
`meaning`, a listing into `_FolderMarkers`, a range into `CloudBackend.get`, a condition that is
refused although it holds into `Store._put_conditionally`. Then add the server to `make interop`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final, NoReturn

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from headwater.core import limits, runtime
from headwater.core.errors import (
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
from headwater.store.backend import Backend, Condition, IfAbsent, PreconditionFailed, Unreachable
from headwater.store.objects import Buffer, ByteRange, Names, Object, ObjectMeta, Page, Version

CloudStore = S3Store | GCSStore | AzureStore

CLIENT_OPTIONS: Final[dict[str, Any]] = {
    "connect_timeout": f"{limits.CONNECT_TIMEOUT_S:.0f}s",
    # The store's attempt timeout is shorter; this one ends requests that were abandoned.
    "timeout": f"{limits.CLIENT_TIMEOUT_S:.0f}s",
}
NO_RETRIES: Final[Any] = {"max_retries": 0}


class _ClientThreads:
    """Whether obstore's threads, which start with its first request, are in this process.

    A forked child inherits the client without its threads. Its requests are never answered, also
    in a store that it opens itself, and no timeout ends the wait.
    """

    def __init__(self) -> None:
        self._started = False
        self._left_behind = False
        os.register_at_fork(after_in_child=self._begin_in_child)

    def need(self) -> None:
        """Raise if requests are never answered in this process; else note that one is made."""
        if self._left_behind:
            raise NotSupported(
                "this process was forked from one that had used a cloud store, and the client's "
                "threads do not exist here: no request would ever be answered. Fork before the "
                "first request, or start processes with multiprocessing's 'spawn' or 'forkserver'"
            )
        self._started = True

    def _begin_in_child(self) -> None:
        self._left_behind = self._started


_client_threads = _ClientThreads()


class CloudBackend(Backend):
    """One bucket or container, below a prefix."""

    def __init__(self, store: CloudStore, *, scheme: str, prefix: str, place: str) -> None:
        self._store = store
        self._prefix = prefix
        self._place = place
        self.scheme = scheme
        runtime.await_native_threads_at_exit()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CloudBackend holds credentials and is not pickled: send the Store")

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        self._check_reach()
        options: Any = None
        if byte_range is not None:
            if byte_range.start < 0 and self.scheme == "az":
                # Azure has no suffix ranges.
                start, end = byte_range.resolve((await self.head(key)).size_bytes)
                byte_range = ByteRange(start, end)
            if byte_range.start >= 0 and byte_range.end <= byte_range.start:
                return Object(await self.head(key), b"")
            start, end = byte_range
            options = {"range": {"suffix": -start} if start < 0 else (start, end)}
        try:
            with translated(key, self._place):
                answer = await obstore.get_async(self._store, self._prefix + key, options=options)
                data = await answer.bytes_async()
        except RangeNotSatisfiable:
            if byte_range is not None and byte_range.start < 0:
                # Some servers refuse a suffix range that is longer than the object.
                start, end = byte_range.resolve((await self.head(key)).size_bytes)
                return await self.get(key, ByteRange(start, end))
            return Object(await self.head(key), b"")
        return Object(self._meta(answer.meta), memoryview(data))

    async def head(self, key: str) -> ObjectMeta:
        self._check_reach()
        with translated(key, self._place):
            return self._meta(await obstore.head_async(self._store, self._prefix + key))

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        self._check_reach()
        view = memoryview(data).cast("B")
        with translated(key, self._place, write=True):
            result = await obstore.put_async(
                self._store,
                self._prefix + key,
                view,
                mode=_mode(condition),
                use_multipart=condition is None and len(view) > limits.MULTIPART_ABOVE_BYTES,
                chunk_size=limits.MULTIPART_PART_BYTES,
            )
        return Version(result["e_tag"], result["version"])

    async def delete(self, key: str) -> None:
        self._check_reach()
        try:
            with translated(key, self._place, write=True):
                await obstore.delete_async(self._store, self._prefix + key)
        except NotFound:
            return  # Azure says so; the others do not

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        self._check_reach()
        folder = self._prefix + prefix
        offset = self._prefix + start_after if start_after else None
        markers = _FolderMarkers(self)
        with translated(prefix, self._place):
            pages = obstore.list(
                self._store,
                prefix=folder or None,
                offset=offset,
                chunk_size=limits.LIST_PAGE_KEYS,
            )
            async for listed in pages:
                # What is not below the folder is the folder's own marker.
                below = [meta for meta in listed if meta["path"].startswith(folder)]
                yield await markers.objects_in(map(self._meta, below))
            if markers.undecided:
                yield markers.undecided

    async def folders(self, prefix: str) -> Names:
        self._check_reach()
        folder = self._prefix + prefix
        with translated(prefix, self._place):
            listed = await obstore.list_with_delimiter_async(self._store, folder or None)
        # Each with the whole path above it, and with or without a closing slash.
        below = (path.removeprefix(folder) for path in listed["common_prefixes"])
        return [name.removesuffix("/") for name in below]

    def _check_reach(self) -> None:
        """Refuse a request that would leave a simulation, or would never be answered."""
        if not runtime.current().outside_allowed:
            # The interpreter does not see a native client's sockets; this event reports them.
            sys.audit("socket.obstore", self._place)
            raise Refused(f"{self._place}: a simulation reaches nothing outside; use memory://")
        _client_threads.need()

    def _meta(self, meta: Any) -> ObjectMeta:
        return ObjectMeta(
            key=meta["path"].removeprefix(self._prefix),
            size_bytes=meta["size"],
            version=Version(meta["e_tag"], meta["version"]),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )


class _FolderMarkers:
    """Removes folder markers from listings: the empty objects `a/` that web consoles create.

    obstore lists `a/` as `a`, for which a get finds nothing. The store sorts by the name with the
    slash: an object `a` comes before `a-b`, a marker `a/` after it. So an empty entry is

    - a marker, if it is out of order as `a` and in order as `a/`;
    - checked with a HEAD, if the next entry is below it: there it may be either;
    - an object otherwise. A marker of an empty folder thus counts as an empty object.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before = ""
        """The previous name, as the store sorts it."""
        self.undecided: Page = []
        """The last entry so far, if it is empty: the next entry decides what it is."""

    async def objects_in(self, listed: Iterable[ObjectMeta]) -> Page:
        """The objects among these entries, without the last one while that is undecided."""
        objects: Page = []
        for meta in listed:
            if meta.size_bytes == 0 and meta.key <= self._before < f"{meta.key}/":
                self._before = f"{meta.key}/"
                continue
            if self._before.endswith("/") and meta.key < self._before:
                raise NotSupported(
                    f"this store lists {meta.key} after {self._before}; Headwater needs listings "
                    "in the order of keys"
                )
            objects += await self._decide(meta.key)
            self._before = meta.key
            (objects if meta.size_bytes else self.undecided).append(meta)
        return objects

    async def _decide(self, next_key: str) -> Page:
        entries, self.undecided = self.undecided, []
        if entries and next_key.startswith(f"{entries[0].key}/"):
            try:
                await self._backend.head(entries[0].key)
            except NotFound:
                return []
        return entries


def _mode(condition: Condition) -> Any:
    if condition is None:
        return "overwrite"
    if isinstance(condition, IfAbsent):
        return "create"
    # Without unknown fields: obstore does not accept None for "any".
    mode = {"e_tag": condition.e_tag, "version": condition.generation}
    return {name: value for name, value in mode.items() if value is not None}


_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\"code\":\s*\"(\w+)\"|\(code: (\w+)\)")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_DENIED: Final = frozenset(
    "AccessDenied AllAccessDisabled ExpiredToken InvalidAccessKeyId InvalidToken "
    "SignatureDoesNotMatch TokenRefreshRequired".split()
)
_WRONG_CLOCK: Final = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
_THROTTLED_CODES: Final = frozenset(
    "BandwidthLimitExceeded RequestLimitExceeded ServerBusy ServiceUnavailable SlowDown Throttling "
    "ThrottlingException TooManyRequests".split()
)
# The request or its answer was lost or damaged on the way, or the store failed internally.
_RETRY_CODES: Final = frozenset(
    "BadDigest IncompleteBody InternalError OperationTimedOut RequestTimeout "
    "XAmzContentSHA256Mismatch".split()
)
# Another request for the same key was under way: this one was not carried out.
_CONCURRENT_CODES: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
# Names of settings, or addresses of services that issue credentials.
_MISSING_CREDENTIALS: Final = re.compile(
    r"Missing (SecretAccessKey|AccessKeyId)"
    r"|://[^/\s]+/(latest/(api/token|meta-data)|computeMetadata/|metadata/identity)"
)
# A connection that could not be made. A timeout while connecting looks like any other.
_NOT_SENT: Final = re.compile(r"legacy::Error\(\s*Connect,")


class RangeNotSatisfiable(Unavailable):
    """The range begins past the end of the object."""


@contextlib.contextmanager
def translated(key: str, place: str, *, write: bool = False) -> Iterator[None]:
    """Translate obstore's errors. `place` names the bucket in errors."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise meaning(error, key, place, write=write) from error


def meaning(error: Exception, key: str, place: str, *, write: bool) -> HeadwaterError:
    """The Headwater error for an error of obstore.

    The order of the tests is the contract: several of them match one answer, and the first decides.
    """
    text, _, debug = str(error).partition("\n\nDebug source:")
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match.group(1)) if status_match else None
    code = next(filter(None, code_match.groups())) if code_match else None
    summary = _summary(text, status, code)
    message = f"{key or place}: {summary}"
    # First: an answer of the service that issues credentials says nothing about an object.
    if _MISSING_CREDENTIALS.search(text):
        return Denied(
            f"no credentials for {place}: set the provider's environment variables (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or name a profile with profile=…, or "
            f"pass anonymous=true for a public bucket ({summary})"
        )
    # Before 404, which is its status: an absent bucket is not an absent object.
    if code in _NO_BUCKET:
        return Refused(f"{place} does not exist; create it, or check its name and region")
    if status == 404 or isinstance(error, FileNotFoundError):
        return NotFound(f"{key} does not exist in {place}")
    # Before the codes: a 409 of a conditional write has a code that asks for a retry, and only a
    # read shows whether the write landed. A read has no condition: the server was busy.
    is_condition = isinstance(error, PreconditionError | AlreadyExistsError | NotModifiedError)
    if is_condition or status == 412:
        if write:
            return PreconditionFailed(message, compared=status == 412)
        return Unavailable(message)
    # Before the statuses: a 400 or 403 may mean throttling, a lost request or a wrong clock.
    by_code = _meaning_of_code(code, message, place, write=write)
    if by_code is not None:
        return by_code
    is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_denied or status in (401, 403):
        return _denied(message, place)
    # These before the other 4xx, which are final. Some servers describe the last bytes of an empty
    # object as "bytes 0--1/0", which obstore cannot parse.
    if status == 416 or "parse value for CONTENT_RANGE" in text:
        return RangeNotSatisfiable(message)
    if status in (429, 503):
        return Throttled(message)
    # Not an unknown outcome, as other 5xx: the server says that it stored nothing.
    if status == 507:
        return NoSpace(message)
    # The text: obstore's words for a redirect without an address.
    if status in (301, 307, 308) or "incorrectly configured region" in text:
        return Refused(f"{place} is in another region, or its endpoint redirects; set region=…")
    # The server understood the request and will never carry it out; 408 says that it was lost.
    if status is not None and (status == 501 or (400 <= status < 500 and status != 408)):
        return Refused(message)
    # Errors of the client, without an answer.
    if isinstance(error, InvalidPathError):
        return Refused(f"{place} has an object whose name is not a key: {text}")
    if "builder error" in text:
        return BadUrl(f"the endpoint of {place} is wrong: {text}")
    if _NOT_SENT.search(debug):
        return Unreachable(f"cannot connect to {place}: {text}")
    return OutcomeUnknown(message) if write else Unavailable(message)


def _meaning_of_code(
    code: str | None, message: str, place: str, *, write: bool
) -> HeadwaterError | None:
    if code in _WRONG_CLOCK:
        return Denied(f"{message}; the clock of this machine is wrong by minutes: correct it")
    if code in _DENIED:
        return _denied(message, place)
    if code in _THROTTLED_CODES:
        return Throttled(message)
    if code in _CONCURRENT_CODES:
        return Unavailable(message)
    if code in _RETRY_CODES:
        return OutcomeUnknown(message) if write else Unavailable(message)
    return None


def _summary(text: str, status: int | None, code: str | None) -> str:
    if status is None:
        return text
    explanation = _MESSAGE.search(text)
    return " ".join(filter(None, (str(status), code, explanation and explanation.group(1))))


def _denied(message: str, place: str) -> Denied:
    return Denied(
        f"{message}; the credentials in use may not do this in {place}. Check which ones are in "
        "use and what they are allowed to do (get, put, list and delete are needed)."
    )
