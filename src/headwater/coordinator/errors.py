"""The errors of a coordinator, as kinds of the one tree, and how a coordinator terminated:

HeadwaterError
├── Unavailable
│   └── Backpressure       the channel is full: the error holds the write, try it again later
│       └── WriteTimeout   it stayed full for the caller's time limit
├── Refused
│   ├── ApplyFailed        the delta refused this write; it took a write epoch, nothing changed
│   └── Shutdown           the coordinator was stopped; the error holds a write not applied
├── FlushFailed            the flusher failed for good: nothing more is written; see its cause
├── CoordinatorCancelled   such a cause: the coordinator, or its flusher, was cancelled
└── MessageLost            a subscriber was too slow for 16 views: subscribe again
"""

from __future__ import annotations

from typing import Any

from headwater.core.errors import HeadwaterError, Refused, Unavailable


def message_of(error: BaseException) -> str:
    """The text of an error; its type's name if it has no text or raises while making it."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class Backpressure(Unavailable):
    """The channel is full. `write` is the refused write."""

    def __init__(self, message: str, *, write: Any) -> None:
        super().__init__(message)
        self.write = write


class WriteTimeout(Backpressure):
    """The channel stayed full for the caller's time limit."""


class ApplyFailed(Refused):
    """The delta refused a write, which used up its write epoch."""

    def __init__(self, write_epoch: int, message: str) -> None:
        super().__init__(f"write epoch {write_epoch}: {message}")
        self.write_epoch = write_epoch
        self.message = message


class Shutdown(Refused):
    """The coordinator was stopped."""

    def __init__(self, message: str, *, write: Any = None) -> None:
        super().__init__(message)
        self.write = write
        """The write that was not applied; None if the call had none."""


class FlushFailed(HeadwaterError):
    """A flush failed for good, and with it everything that was not written before."""


class CoordinatorCancelled(HeadwaterError):
    """The coordinator's tasks, or a task that its flusher waited for, were cancelled."""


class MessageLost(HeadwaterError):
    """More views were published than are kept for a subscriber: subscribe again."""


class Termination:
    """How a coordinator, or one subscription, terminated: by a stop, or by a failure."""

    def __init__(self, cause: BaseException | None = None) -> None:
        self.cause = cause

    def error(self, write: Any = None) -> HeadwaterError:
        """A new error for each caller: a shared one would collect every raiser's frames."""
        if self.cause is None:
            return Shutdown("the write coordinator was stopped", write=write)
        if isinstance(self.cause, MessageLost):
            return MessageLost(str(self.cause))
        message = message_of(self.cause)
        if not isinstance(self.cause, HeadwaterError):
            # The text alone may say nothing: a KeyError's is its key.
            message = f"{type(self.cause).__name__}: {message}"
        error = FlushFailed(f"the write coordinator ended, and nothing more is written: {message}")
        error.__cause__ = self.cause
        return error
