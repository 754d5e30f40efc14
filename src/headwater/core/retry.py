"""How long to wait before trying again, and when to stop.

Waits grow by doubling to a cap and are drawn evenly from zero up to that ("full jitter"), so
that contenders spread out instead of meeting again. A budget ends by attempts or by its
deadline, whichever comes first; the last error then tells the caller why.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core import limits, runtime


def pause_s(failures: int, *, base_s: float, cap_s: float) -> float:
    """How long whoever tries for ever waits after so many failures in a row: half of it at least,
    so that what fails for long is left alone for long."""
    return runtime.random().uniform(0.5, 1.0) * _ceiling_s(failures, base_s, cap_s)


def _ceiling_s(failures: int, base_s: float, cap_s: float) -> float:
    return min(cap_s, base_s * float(2 ** min(failures, 30)))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on trying again. Times are in seconds."""

    attempts: int = limits.ATTEMPTS_MAX
    deadline_s: float = limits.DEADLINE_S
    attempt_timeout_s: float = limits.ATTEMPT_TIMEOUT_S
    base_s: float = limits.BACKOFF_BASE_S
    throttled_base_s: float = limits.THROTTLED_BACKOFF_BASE_S
    cap_s: float = limits.BACKOFF_CAP_S

    def start(self, *, attempts: int | None = None, size_bytes: int = 0) -> Budget:
        """A budget for one operation, whose deadline counts from here.

        Moving `size_bytes` may take longer than a small request: both times grow with it.
        """
        return Budget(self, attempts or self.attempts, size_bytes / limits.SLOWEST_BYTES_PER_S)


class Budget:
    """What is left of one operation's attempts and time."""

    def __init__(self, policy: RetryPolicy, attempts: int, moving_s: float = 0.0) -> None:
        self._policy = policy
        self._moving_s = moving_s
        self._attempts = attempts
        self._started_s = runtime.monotonic_s()
        self.used = 0

    @property
    def moving_s(self) -> float:
        """How much longer the operation may take because of the bytes that it moves."""
        return self._moving_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; never below zero."""
        spent = runtime.monotonic_s() - self._started_s
        return max(0.0, self._policy.deadline_s + self._moving_s - spent)

    @property
    def attempt_timeout_s(self) -> float:
        """How long the next attempt may take."""
        return min(self._policy.attempt_timeout_s + self._moving_s, self.remaining_s)

    def allow(self, size_bytes: int) -> None:
        """Give attempts and deadline the time that moving so much may take."""
        self._moving_s = max(self._moving_s, size_bytes / limits.SLOWEST_BYTES_PER_S)

    async def pause(self, *, throttled: bool = False) -> bool:
        """Wait before the next attempt. False, at once, when nothing is left."""
        self.used += 1
        if self.used >= self._attempts or self.remaining_s <= 0:
            return False
        base_s = self._policy.throttled_base_s if throttled else self._policy.base_s
        wait_s = runtime.random().uniform(0, _ceiling_s(self.used - 1, base_s, self._policy.cap_s))
        if throttled:
            # A throttled request that comes back at once is throttled again.
            wait_s = max(wait_s, base_s / 2)
        await runtime.sleep(min(wait_s, self.remaining_s))
        return self.remaining_s > 0
