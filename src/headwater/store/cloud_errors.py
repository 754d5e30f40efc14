"""What a cloud store's answer means for the caller.

obstore gives a class for the common answers and text for the rest; the status and the code
are taken from the text. The code decides before the status: S3 says 400 for a connection that
was too slow, and answers a DELETE (sent as DeleteObjects) with 200 and a code for each key that
it kept. Whatever is not recognised counts as a broken connection: unknown
outcome for a write, try again for a read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from headwater.core.errors import (
    BadUrl,
    Denied,
    HeadwaterError,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.store.backend import PreconditionFailed, Unreachable

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\"code\":\s*\"(\w+)\"|\(code: (\w+)\)")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_DENIED: Final = frozenset(
    "AccessDenied AllAccessDisabled ExpiredToken InvalidAccessKeyId InvalidToken "
    "SignatureDoesNotMatch TokenRefreshRequired".split()
)
_WRONG_CLOCK: Final = frozenset({"RequestExpired", "RequestTimeTooSkewed"})
_SLOWER: Final = frozenset(
    "BandwidthLimitExceeded RequestLimitExceeded ServerBusy ServiceUnavailable SlowDown Throttling "
    "ThrottlingException TooManyRequests".split()
)
# The request or its answer was lost or garbled on the way, or the store stumbled.
_AGAIN: Final = frozenset(
    "BadDigest IncompleteBody InternalError OperationTimedOut RequestTimeout "
    "XAmzContentSHA256Mismatch".split()
)
# Another request for the same key was under way: this one was not carried out.
_BUSY: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_CREDENTIAL_SERVICE: Final = re.compile(
    r"://[^/\s]+/(latest/(api/token|meta-data)|computeMetadata/|metadata/identity)"
)


# A connection that could not be made. A timeout while connecting is not told apart from others.
_NOT_SENT: Final = re.compile(r"legacy::Error\(\s*Connect,")


class RangeNotSatisfiable(Unavailable):
    """The range begins past the end of the object."""


@contextlib.contextmanager
def translated(key: str, place: str, *, write: bool = False) -> Iterator[None]:
    """Raise what obstore's errors mean. `place` names the bucket for people."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise meaning(error, key, place, write=write) from error


def meaning(error: Exception, key: str, place: str, *, write: bool) -> HeadwaterError:
    """The error that tells the caller what to do."""
    text, _, debug = str(error).partition("\n\nDebug source:")
    status, code = _status(text), _code(text)
    said = f"{key or place}: {_summary(text, status, code)}"
    # First: what the service that gives credentials answers says nothing of any object.
    if _is_missing_credentials(text):
        return Denied(
            f"no credentials for {place}: set the provider's environment variables (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or name a profile with profile=…, or "
            f"pass anonymous=true for a public bucket ({_summary(text, status, code)})"
        )
    if code in _NO_BUCKET:
        return Refused(f"{place} does not exist; create it, or check its name and region")
    if status == 404 or isinstance(error, FileNotFoundError):
        return NotFound(f"{key} does not exist in {place}")
    if (
        isinstance(error, PreconditionError | AlreadyExistsError | NotModifiedError)
        or status == 412
    ):
        return PreconditionFailed(said, compared=status == 412) if write else Unavailable(said)
    by_code = _meaning_of_code(code, said, place, write=write)
    if by_code is not None:
        return by_code
    if status in (401, 403):
        return _denied(said, place)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return _denied(said, place)
    # Some servers describe the last bytes of an empty object as "bytes 0--1/0".
    if status == 416 or "parse value for CONTENT_RANGE" in text:
        return RangeNotSatisfiable(said)
    if status in (429, 503):
        return Throttled(said)
    if status == 507:
        return NoSpace(said)
    if status in (301, 307, 308) or "incorrectly configured region" in text:
        return Refused(f"{place} is in another region, or its endpoint redirects; set region=…")
    if status is not None and (status == 501 or (400 <= status < 500 and status != 408)):
        return Refused(said)
    if isinstance(error, InvalidPathError):
        return Refused(f"{place} has an object whose name is not a key: {text}")
    if "builder error" in text:
        return BadUrl(f"the endpoint of {place} is not understood: {text}")
    if _NOT_SENT.search(debug):
        return Unreachable(f"cannot connect to {place}: {text}")
    return OutcomeUnknown(said) if write else Unavailable(said)


def _meaning_of_code(
    code: str | None, said: str, place: str, *, write: bool
) -> HeadwaterError | None:
    if code in _WRONG_CLOCK:
        return Denied(f"{said}; the clock of this machine is wrong by minutes: set it right")
    if code in _DENIED:
        return _denied(said, place)
    if code in _SLOWER:
        return Throttled(said)
    if code in _BUSY:
        return Unavailable(said)
    if code in _AGAIN:
        return OutcomeUnknown(said) if write else Unavailable(said)
    return None


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found.group(1)) if found else None


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return next(filter(None, found.groups())) if found else None


def _summary(text: str, status: int | None, code: str | None) -> str:
    message = _MESSAGE.search(text)
    if status is None:
        return text
    return " ".join(filter(None, (str(status), code, message and message.group(1))))


def _is_missing_credentials(text: str) -> bool:
    missing = "Missing SecretAccessKey" in text or "Missing AccessKeyId" in text
    return missing or _CREDENTIAL_SERVICE.search(text) is not None


def _denied(said: str, place: str) -> Denied:
    return Denied(
        f"{said}; the credentials in use may not do this in {place}. Check which ones are in use "
        "and what they are allowed to do (get, put, list and delete are needed)."
    )
