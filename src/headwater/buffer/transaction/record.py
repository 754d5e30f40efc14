"""The commit record: what an application committed last, and whether all of it is appended.

One register an application. That its version rises is the commit: from then on the transaction's
batches belong to the stream, each under a producer sequence that the record fixes, and whoever
finds them not yet appended appends them. Nothing else ever appends under the application's
producer id, so appending a record again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from headwater.buffer import layout
from headwater.buffer.queue.contract import NewBatch
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.identity import Attempt
from headwater.core.errors import NotFound
from headwater.store import Register

NO_VERSION: Final = -1
RECENT_MAX: Final = 64


class Upload(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a task uploaded."""

    batch_id: str
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    schema_version: int


class Share(msgspec.Struct, frozen=True):
    """What a transaction appends to one partition, in this order."""

    partition: int
    first_producer_sequence: int
    uploads: tuple[Upload, ...]

    def batches(self, after: int) -> list[NewBatch]:
        """The batches whose producer sequence lies after this one."""
        numbered = enumerate(self.uploads, start=self.first_producer_sequence)
        return [
            NewBatch(
                upload.batch_id,
                sequence,
                upload.rows,
                upload.size_bytes,
                upload.min_ms,
                upload.max_ms,
                upload.min_timestamp_us,
                upload.max_timestamp_us,
                schema_version=upload.schema_version,
            )
            for sequence, upload in numbered
            if sequence > after
        ]

    @property
    def last_producer_sequence(self) -> int:
        """That of the last batch."""
        return self.first_producer_sequence + len(self.uploads) - 1


class Application(msgspec.Struct, frozen=True):
    """The value of an application's register."""

    kind: str = ""
    name: str = ""
    """What the register's own name is made from, for whoever looks."""
    version: int = NO_VERSION
    """The last one that was committed."""
    attempt: str = ""
    """Whose it was."""
    state: Literal["appending", "done"] = "done"
    shares: tuple[Share, ...] = ()
    """What is being appended; nothing once that is done."""
    revocations: int = 0
    """Counts what was ended before it committed. Whoever commits has read this *before* looking
    whether its hold stands, and commits only if it is still the same: see `expiry.py`."""
    recent: tuple[str, ...] = ()
    """Attempts that committed before, newest first: jobs without a version are known by them."""

    @property
    def is_appending(self) -> bool:
        """Whether some of the last version may not be appended yet."""
        return self.state == "appending"

    def has(self, attempt: Attempt) -> bool:
        """Whether this transaction is committed, by whichever attempt."""
        if attempt.version is None:
            return attempt.token in (self.attempt, *self.recent)
        return attempt.version <= self.version

    def is_of(self, attempt: Attempt) -> bool | None:
        """Whether this very attempt is the one that was committed; None if that is not known.

        Of jobs without a version only the last few are: one that is not among them may have
        committed before those.
        """
        if attempt.version is None:
            return True if self.has(attempt) else None
        if attempt.version == self.version:
            return self.attempt == attempt.token
        return None if attempt.version < self.version else False

    def committed(self, attempt: Attempt, shares: tuple[Share, ...]) -> Application:
        """The record with this transaction committed."""
        recent = (self.attempt, *self.recent)[:RECENT_MAX] if attempt.version is None else ()
        return msgspec.structs.replace(
            self,
            kind=attempt.kind,
            name=attempt.name,
            version=self.version + 1 if attempt.version is None else attempt.version,
            attempt=attempt.token,
            state="appending" if shares else "done",
            shares=shares,
            recent=recent,
        )

    def revoked(self) -> Application:
        """The record once something was ended that can then not commit any more."""
        return msgspec.structs.replace(self, revocations=self.revocations + 1)


def application_register(stream: Stream, application: str) -> Register[Application]:
    """Where an application's record stands."""
    return Register(
        stream.store, layout.application_key(stream.name, stream.id, application), Application
    )


async def read_application(register: Register[Application]) -> Application:
    """The record; an empty one of an application that never committed."""
    try:
        return (await register.read()).value
    except NotFound:
        return Application()


def in_order(tasks: Sequence[tuple[int, dict[int, list[Upload]]]]) -> dict[int, list[Upload]]:
    """The uploads of each partition in the order of a transaction: by task, and as it uploaded."""
    found: dict[int, list[Upload]] = {}
    for _, uploads in sorted(tasks, key=lambda task: task[0]):
        for partition, batches in uploads.items():
            found.setdefault(partition, []).extend(batches)
    return dict(sorted(found.items()))
