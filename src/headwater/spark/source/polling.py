"""When to ask the store again: Spark asks every 10 ms, and a store charges for each question."""

from __future__ import annotations

from typing import Final

from headwater.core import runtime
from headwater.core.limits import FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S

LOCAL_BASE_S: Final = 0.01
LOCAL_CAP_S: Final = 0.5


class Polling:
    """Ever longer waits while nothing comes, none when something did."""

    def __init__(self, *, is_local: bool) -> None:
        self._base_s = LOCAL_BASE_S if is_local else FOLLOW_POLL_BASE_S
        self._cap_s = LOCAL_CAP_S if is_local else FOLLOW_POLL_CAP_S
        self._wait_s = self._base_s
        self._due_s = runtime.monotonic_s()

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return runtime.monotonic_s() >= self._due_s

    def found(self, anything: bool) -> None:
        """What the last question brought."""
        if anything:
            self._wait_s = self._base_s
            self._due_s = runtime.monotonic_s()
            return
        self._due_s = runtime.monotonic_s() + self._wait_s
        self._wait_s = min(2 * self._wait_s, self._cap_s)
