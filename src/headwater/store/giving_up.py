"""Requests that take too long: the warning, and what their callers get when they are given up."""

from __future__ import annotations

import asyncio
import logging

from headwater.core import limits, runtime
from headwater.core.backoff import Budget
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    HeadwaterError,
    LimitExceeded,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.store.backend import IfAbsent
from headwater.store.objects import Object, Version

_log = logging.getLogger(__name__)


class SlowWarning:
    """Says that a store does not answer, while the caller still waits for it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._warned_s: float | None = None

    def after(self, wait_s: float, operation: str) -> asyncio.TimerHandle:
        """Warn in `wait_s`, unless the returned handle is cancelled before."""
        return asyncio.get_running_loop().call_later(wait_s, self._warn, wait_s, operation)

    def _warn(self, waited_s: float, operation: str) -> None:
        now_s = runtime.monotonic_s()
        if self._warned_s is not None and now_s - self._warned_s < limits.SLOW_AGAIN_S:
            return
        self._warned_s = now_s
        _log.warning("%s has not answered a %s for %.0f s; waiting", self._url, operation, waited_s)


class TimedOut(OutcomeUnknown):
    """An attempt took too long."""


def gave_up(key: str, budget: Budget, cause: HeadwaterError, maybe_landed: bool) -> HeadwaterError:
    """What a caller is told when attempts or time are used up."""
    tries = f"after {budget.used} attempts"
    if maybe_landed:
        return OutcomeUnknown(f"{key}: the change may or may not be made, {tries}: {cause}")
    if isinstance(cause, Throttled):
        return Throttled(f"{key}: throttled, {tries}: {cause}")
    return Unavailable(f"{key}: {tries}: {cause}")


def still_unknown(key: str, error: Refused) -> OutcomeUnknown:
    """A refusal of this attempt says nothing of an earlier one whose response was lost."""
    return OutcomeUnknown(
        f"{key}: the change may or may not be made; a later attempt failed: {error}"
    )


def taken_by(
    key: str, current: Object | None, condition: IfAbsent | Version, *, nothing_landed: bool
) -> Conflict | None:
    """What a refused write is told if what is there contradicts its condition; else None."""
    if isinstance(condition, IfAbsent):
        if current is None:
            return None
        return AlreadyExists(f"{key} exists", current=current, nothing_landed=nothing_landed)
    if current is not None and current.version == condition:
        return None
    return Conflict(f"{key} was changed", current=current, nothing_landed=nothing_landed)


def too_large(key: str, size_bytes: int) -> LimitExceeded:
    """An object above the limit."""
    return LimitExceeded(
        f"{key}: {size_bytes:,} bytes; OBJECT_MAX_BYTES is {limits.OBJECT_MAX_BYTES:,}"
    )


def unordered(key: str, after: str) -> NotSupported:
    """A listing that cannot be gone on with."""
    return NotSupported(
        f"this store lists {key} after {after}; Headwater needs listings in the order of keys"
    )
