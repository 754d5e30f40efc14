"""Reads ranges of a log, wherever they stand: in the log itself, or in the tier.

Enters: a log, a storage, and whoever knows the cover. Leaves: groups, in order and without gaps.

    log_reader    which LSNs come from where, and what to do when that changes
    covering      the cover as the events have it when it is asked for
    tier_archive  what a replica's copy of the log begins from
    tier_source   what the tier has of a log that is to be repaired
    window        several things under way at once, handed out in order

Always holds: every LSN of what was asked for is handed out once and in order, or an error says
which one could not be; only what lies below the log start is called trimmed; memory is bounded by
what is under way.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.tier.reader.covering import RefreshedCover
    from headwater.tier.reader.log_reader import LogReader
    from headwater.tier.reader.tier_archive import TierArchive
    from headwater.tier.reader.tier_source import TierSource

__all__ = [
    "LogReader",
    "RefreshedCover",
    "TierArchive",
    "TierSource",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "covering": "RefreshedCover",
        "log_reader": "LogReader",
        "tier_archive": "TierArchive",
        "tier_source": "TierSource",
    },
)
