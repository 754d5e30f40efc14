"""What a replica did: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headwater.core.metrics import Histogram
from headwater.log.record import Group
from headwater.log.replica.proof import Compared


class ReplicaMetrics:
    """Counts and durations of one replica, since it was opened."""

    def __init__(self) -> None:
        self.registrations = 0
        self.pulls = 0
        self.empty_pulls = 0
        """Pulls after which the replica was where it had been."""
        self.records_applied = 0
        self.records_lost = 0
        """LSNs that came without their records, which nobody has any more."""
        self.records_compared = 0
        """Records that came again, and were found to be the same."""
        self.records_not_comparable = 0
        """Records that came again, and of which the copy no longer knows what they were."""
        self.acknowledgements = 0
        self.apply_errors = 0
        self.divergences = 0
        self.gaps = 0
        """Answers that did not follow what was there; nothing of them was applied."""
        self.fenced = 0
        """Answers of leaders that were overtaken, and refusals because of another session."""
        self.retries: Counter[str] = Counter()
        """By kind of error."""
        self.bootstraps: Counter[str] = Counter()
        """Completed, by what they began from: own, image, log."""
        self.bootstraps_refused = 0
        self.apply_seconds = Histogram()
        self.reads_waited_seconds = Histogram()
        """Of readers with a bookmark that were served."""
        self.reads_sent_elsewhere = 0

    def count_compared(self, compared: Compared) -> None:
        """Records came again, and were not found to be others."""
        self.records_not_comparable += compared.unknown
        self.records_compared += compared.same

    def count_applied(self, groups: Sequence[Group]) -> None:
        """These were applied."""
        self.records_applied += sum(len(group) for group in groups)
        self.records_lost += sum(len(one) for one in groups if one.lost is not None)
