"""What a coordinator answers when it cannot do what was asked. Kinds of the one tree:

HeadwaterError
├── Unavailable
│   ├── Backpressure   the channel is full: the write comes back, try it again later
│   └── WriteTimeout   it stayed full for as long as the caller would wait: the same
├── Refused
│   ├── ApplyFailed    the delta refused this write; it took a write epoch and changed nothing
│   └── Shutdown       the coordinator was stopped; a write that was not applied comes back
├── FlushFailed        the flusher failed for good: nothing more is written; the cause is chained
├── Interrupted        such a cause: the coordinator, or its flusher, was cancelled
└── MessageLost        a subscriber was too slow for 16 views: subscribe again
"""

from __future__ import annotations

from typing import Any

from headwater.core.errors import HeadwaterError, Refused, Unavailable


def words_of(error: BaseException) -> str:
    """What an error says; its kind, if it says nothing or not even that can be had."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class Backpressure(Unavailable):
    """The channel is full. `write` is what was refused."""

    def __init__(self, message: str, *, write: Any) -> None:
        super().__init__(message)
        self.write = write


class WriteTimeout(Unavailable):
    """The channel stayed full. `write` is what was refused."""

    def __init__(self, message: str, *, write: Any) -> None:
        super().__init__(message)
        self.write = write


class ApplyFailed(Refused):
    """The delta refused a write, whose write epoch is spent."""

    def __init__(self, epoch: int, message: str) -> None:
        super().__init__(f"write epoch {epoch}: {message}")
        self.epoch = epoch
        self.message = message

    @classmethod
    def of(cls, epoch: int, error: BaseException) -> ApplyFailed:
        """For what the delta raised."""
        return cls(epoch, words_of(error))


class Shutdown(Refused):
    """The coordinator was stopped."""

    def __init__(self, message: str, *, write: Any = None) -> None:
        super().__init__(message)
        self.write = write
        """The write that was not applied; None where there is none."""


class FlushFailed(HeadwaterError):
    """A flush failed for good, and with it everything that was not written before."""


class Interrupted(HeadwaterError):
    """The coordinator's tasks, or what its flusher waited for, were cancelled."""


class MessageLost(HeadwaterError):
    """More views were published than are kept for a subscriber: subscribe again."""
