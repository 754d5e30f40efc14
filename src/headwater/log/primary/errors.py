"""What a leader answers when a commit policy is not met. A kind of the one tree:

HeadwaterError
└── OutcomeUnknown
    └── CommitUnknown   the record is in the log; whether enough replicas will have it is not known
"""

from __future__ import annotations

from headwater.core.errors import OutcomeUnknown


class CommitUnknown(OutcomeUnknown):
    """Not replicated in time, which is no failure: the record is in the log, and stays there.

    Replicas will have it when they catch up. Writing it again would write it twice.
    """

    def __init__(
        self, message: str, *, lsn: int = 0, policy: str = "", acknowledged_by: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.policy = policy
        self.acknowledged_by = acknowledged_by
        """The replicas that have it."""
