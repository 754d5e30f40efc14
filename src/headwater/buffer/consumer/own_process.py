"""The process that opened something, which alone goes on with it."""

from __future__ import annotations

from headwater.core.errors import Refused
from headwater.core.portal import call_in_child


class OwnProcess:
    """Knows whether this still is the process in which it was made, or a forked child of that.

    A child has a copy of every position: parent and child would take the same batches, and each
    acknowledge what the other has yet to process.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.is_left = False
        """Whether this is a forked child."""
        call_in_child(self._begin_in_child)

    def check(self) -> None:
        """Refuse to go on in a forked child."""
        if self.is_left:
            raise Refused(
                f"this {self._what} was opened before the process forked: open one in the child"
            )

    def _begin_in_child(self) -> None:
        self.is_left = True
