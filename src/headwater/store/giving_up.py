"""What a request is told when it is given up."""

from __future__ import annotations

from headwater.core import limits
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
