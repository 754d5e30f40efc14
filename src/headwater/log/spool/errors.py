"""What can be wrong with a spool, beyond the one tree of errors.

Damaged
└── Corrupt
    └── SpoolCorrupt   bytes that were safe are not what was written: repair
"""

from __future__ import annotations

from typing import Final

from headwater.core.errors import Corrupt

_REPAIR: Final = (
    "mend it with: headwater log repair FOLDER, from a replica or another copy (--from COPY), from "
    "the tier (--tier URL --stream STREAM) or from the buffer (--buffer URL --stream STREAM)"
)


class SpoolCorrupt(Corrupt):
    """Bytes of the log that were once synced are damaged or gone. Nothing was cut off."""

    def __init__(
        self, what: str, *, path: str, offset: int, lsn: int, advice: str = _REPAIR
    ) -> None:
        super().__init__(
            f"{path}, offset {offset:,}, from LSN {lsn} on: {what}. Nothing was cut off; {advice}"
        )
        self.path = path
        self.offset = offset
        self.lsn = lsn
        """The first LSN that cannot be read."""
