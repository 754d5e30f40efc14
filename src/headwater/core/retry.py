"""How long to wait before the next attempt, and when to give up.

Waits double up to a limit. Retries add jitter, so that contenders spread out instead of meeting
again; polls do not need it. A `Budget` ends by attempts or by its deadline, whichever comes
first; the caller then raises the last error.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core import limits, runtime


def retry_pause_s(failures: int, *, base_s: float, cap_s: float) -> float:
    """The wait after so many failures in a row, for a caller that tries without end.

    At least half of the limit that the failures give: what fails for long is tried rarely.
    """
    return runtime.random().uniform(0.5, 1.0) * _ceiling_s(failures, base_s, cap_s)


def _ceiling_s(failures: int, base_s: float, cap_s: float) -> float:
    return min(cap_s, base_s * float(2 ** min(failures, 30)))


class PollBackoff:
    """Waits between polls that found nothing: they double from `base_s` to `cap_s`."""

    __slots__ = ("_base_s", "_cap_s", "_next_s")

    def __init__(self, base_s: float, cap_s: float) -> None:
        self._base_s = self._next_s = base_s
        self._cap_s = cap_s

    def next_s(self) -> float:
        """The wait after one more poll that found nothing."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._cap_s)
        return wait_s

    def reset(self) -> None:
        """A poll found something: begin with `base_s` again."""
        self._next_s = self._base_s


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on retries."""

    attempts: int = limits.ATTEMPTS_MAX
    deadline_s: float = limits.DEADLINE_S
    attempt_timeout_s: float = limits.ATTEMPT_TIMEOUT_S
    base_s: float = limits.BACKOFF_BASE_S
    throttled_base_s: float = limits.THROTTLED_BACKOFF_BASE_S
    cap_s: float = limits.BACKOFF_CAP_S

    def start(self, *, attempts: int | None = None, size_bytes: int = 0) -> Budget:
        """The budget of one operation, whose deadline counts from now.

        Moving `size_bytes` may take longer than a small request: both times grow with it.
        """
        return Budget(self, attempts or self.attempts, size_bytes / limits.SLOWEST_BYTES_PER_S)


class Budget:
    """What is left of one operation's attempts and time."""

    def __init__(self, policy: RetryPolicy, attempts: int, moving_s: float = 0.0) -> None:
        self.moving_s = moving_s
        """How much longer the operation may take because of the bytes that it moves."""
        self._policy = policy
        self._attempts = attempts
        self._started_s = runtime.monotonic_s()
        self.used = 0

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; never below zero."""
        spent = runtime.monotonic_s() - self._started_s
        return max(0.0, self._policy.deadline_s + self.moving_s - spent)

    @property
    def attempt_timeout_s(self) -> float:
        """How long the next attempt may take."""
        return min(self._policy.attempt_timeout_s + self.moving_s, self.remaining_s)

    def allow(self, size_bytes: int) -> None:
        """Extend attempts and deadline by the time that moving so many bytes may take."""
        self.moving_s = max(self.moving_s, size_bytes / limits.SLOWEST_BYTES_PER_S)

    async def pause(self, *, throttled: bool = False) -> bool:
        """Wait before the next attempt. False, at once, when nothing is left."""
        self.used += 1
        if self.used >= self._attempts or self.remaining_s <= 0:
            return False
        base_s = self._policy.throttled_base_s if throttled else self._policy.base_s
        wait_s = runtime.random().uniform(0, _ceiling_s(self.used - 1, base_s, self._policy.cap_s))
        if throttled:
            # A throttled request that is repeated at once is throttled again.
            wait_s = max(wait_s, base_s / 2)
        await runtime.sleep(min(wait_s, self.remaining_s))
        return self.remaining_s > 0
