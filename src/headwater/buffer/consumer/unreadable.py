"""What is said of a batch that the queue has and nobody can read."""

from __future__ import annotations

from typing import Any, Final

from headwater.buffer.queue.contract import Descriptor
from headwater.core.errors import Damaged, HeadwaterError, NotFound, NotSupported

GO_ON: Final = 'on_bad_batch="dead_letter" keeps a note of it and delivers what follows'
"""What whoever reads can do without the batch."""


class UnreadableBatch(Damaged):
    """A batch is missing or is not what was written: restore it, or let it be dead-lettered.

    Says that the data are bad, never that a store could not be reached.
    """

    def __init__(self, message: str, *, descriptor: Descriptor, cause: str) -> None:
        super().__init__(message)
        self.descriptor = descriptor
        self.cause = cause
        """In one sentence, beginning with the kind of the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_error, (str(self), self.descriptor, self.cause)


def _restore_error(message: str, descriptor: Descriptor, cause: str) -> UnreadableBatch:
    return UnreadableBatch(message, descriptor=descriptor, cause=cause)


def unreadable(
    stream: str, partition: int, descriptor: Descriptor, error: HeadwaterError
) -> UnreadableBatch:
    """The error for one batch: which, where, what is wrong, and what to do about it."""
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, NotFound):
        cure = "Restore the object (a versioned bucket keeps it)"
    elif isinstance(error, NotSupported):
        cure = "Upgrade Headwater, if a newer version wrote it"
    else:
        cure = "Restore the object from a backup, as it was written"
    message = (
        f"stream {stream!r}, partition {partition}: batch {descriptor.sequence} with LSNs "
        f"{descriptor.first_lsn}–{descriptor.last_lsn} at {descriptor.location} cannot be read. "
        f"{cause}. {cure}; or go on without it: {GO_ON}."
    )
    return UnreadableBatch(message, descriptor=descriptor, cause=cause)
