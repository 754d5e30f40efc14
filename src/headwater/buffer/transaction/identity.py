"""Who commits: an application, which of its versions, and which attempt at it.

    a streaming query           its id             the micro-batch's number    the run
    a batch job that may be     `txnAppId`         `txnVersion`                the job
    run again
    any other batch job         one of JOB_SLOTS   the next                    the job

Two attempts at one version are the same transaction: the first that commits is the one that
counts. Jobs that name nothing share a few applications, so that what is kept of them is bounded.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Refused

JOB_SLOTS: Final = 16
NAME_MAX_BYTES: Final = 1024
_KEY_BYTES: Final = 12


class Attempt(msgspec.Struct, frozen=True):
    """One try at one transaction."""

    kind: str
    name: str
    """What the application is called: a query's id, a `txnAppId`, or a slot."""
    version: int | None
    """None: whichever is next."""
    token: str
    """Tells this try from every other one of the application."""
    follows_on: bool = False
    """A later run of the same application ends the earlier ones: a streaming query."""

    @classmethod
    def of_query(cls, query_id: str, batch_id: int, run: str) -> Attempt:
        """A micro-batch of a streaming query."""
        return cls("query", _checked("query id", query_id), batch_id, run, follows_on=True)

    @classmethod
    def of_version(cls, app_id: str, version: int, token: str) -> Attempt:
        """A batch job that may be run again under the same `txnAppId` and `txnVersion`."""
        if whole_number("txnVersion", version) < 0:
            raise Refused(f"txnVersion is {version}: it begins at 0 and rises with each write")
        return cls("app", _checked("txnAppId", app_id), version, token)

    @classmethod
    def of_job(cls, token: str) -> Attempt:
        """A batch job that names nothing: run again, it writes again."""
        slot = hashlib.blake2s(token.encode(), digest_size=2).digest()
        return cls("jobs", str(int.from_bytes(slot, "big") % JOB_SLOTS), None, token)

    @property
    def application(self) -> str:
        """The application, as its objects are named."""
        digest = hashlib.blake2s(self.name.encode(), digest_size=_KEY_BYTES).hexdigest()
        return f"{self.kind}-{digest}"

    @property
    def hold(self) -> str:
        """What its hold is called."""
        return f"{self.application}.{self.token}"

    def __str__(self) -> str:
        named = {"query": "query", "app": "txnAppId", "jobs": "batch job of slot"}[self.kind]
        return f"{named} {self.name}" + ("" if self.version is None else f", {self.version}")


def producer_id(application: str) -> str:
    """The producer that appends what an application commits."""
    return f"sink-{application}"


def _checked(what: str, name: str) -> str:
    if not name or len(name.encode()) > NAME_MAX_BYTES:
        raise Refused(f"{what} is {name!r}: it has 1 to {NAME_MAX_BYTES} bytes")
    return name
