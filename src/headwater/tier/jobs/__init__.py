"""The jobs of a leader: copy, merge, expire and remove segments, check and repair the tier.

    tier_manager     runs the jobs of one led partition
    led_partition    the state that they share: what is remote, what is local
    leader_publisher publishes the leader's events
    copying          compares the local log with the tier, and copies it
    merging          merges small segments
    retention        moves the log start, unlists segments, prunes the local log
    removal          removes objects, deletes a partition
    scrub            checks the tier, and repairs it
    log_start        the oldest LSN that can be read
    config           settings and metrics; limits of bytes per second and in memory

Each job takes the `LedPartition`, does a bounded part of its work and returns; an error of one job
does not affect the others.

Always holds: the event that a segment finished comes after its object; a segment is unlisted before
its object is removed, and the log start moves before that; events of a fenced leader change nothing
for readers.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.tier.jobs.config import TierConfig, Tiering
    from headwater.tier.jobs.led_partition import Leader, LedPartition
    from headwater.tier.jobs.log_start import LogStartRegister
    from headwater.tier.jobs.scrub import (
        Flaw,
        ScrubFinding,
        ScrubResult,
        remove_orphans,
        scrub_partition,
    )
    from headwater.tier.jobs.tier_manager import TierManager

__all__ = [
    "Flaw",
    "Leader",
    "LedPartition",
    "LogStartRegister",
    "ScrubFinding",
    "ScrubResult",
    "TierConfig",
    "TierManager",
    "Tiering",
    "remove_orphans",
    "scrub_partition",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "config": "TierConfig Tiering",
        "led_partition": "Leader LedPartition",
        "log_start": "LogStartRegister",
        "scrub": "Flaw ScrubFinding ScrubResult remove_orphans scrub_partition",
        "tier_manager": "TierManager",
    },
)
