"""How a coordinator ended, told to everybody who waits for something of it."""

from __future__ import annotations

from typing import Any

from headwater.coordinator.errors import FlushFailed, Shutdown, words_of
from headwater.core.errors import HeadwaterError


class Ending:
    """By a stop, or by a failure with its cause."""

    def __init__(self, cause: BaseException | None = None) -> None:
        self.cause = cause

    @property
    def is_stop(self) -> bool:
        """Whether everything that was applied was written before."""
        return self.cause is None

    def error(self, write: Any = None) -> HeadwaterError:
        """An error of one's own for each who is told: a raised one gathers its raiser's frames."""
        if self.cause is None:
            return Shutdown("the write coordinator was stopped", write=write)
        told = words_of(self.cause)
        if not isinstance(self.cause, HeadwaterError):
            # The words alone may tell nothing: a KeyError's are its key.
            told = f"{type(self.cause).__name__}: {told}"
        error = FlushFailed(f"the write coordinator ended, and nothing more is written: {told}")
        error.__cause__ = self.cause
        return error
