"""What a leader does with its partition's tier: copies, expires, merges, cleans up, checks.

Enters: the local log, sealed part by part. Leaves: remote segments, and events that tell of them.

    contract        what the jobs ask of others
    config          how long segments stay
    log_start       the oldest LSN that can be read
    leader_voice    a leader's events, each with a known outcome before the next
    managed_partition, parquet_segments
                    metadata by a manager, segments in a store
    led_partition   what the jobs of one leader share
    byte_rate       so many bytes a second
    byte_budget     so many bytes in memory
    setbacks        what goes wrong with single items of a job
    comparing       whether the local log has what is remote
    copying         from the local log to the tier
    removal         objects whose segments are unlisted
    retention       what is let go, remote and local
    merging         small segments into larger ones
    deletion        all that the tier has of a partition
    stream_watch    whether there is a stream to lead
    stream_deletion events about the partitions of a stream that is deleted
    stopping        tiering that is given up
    scrub           whether the tier has what it says
    repairing       what a scrub found
    metrics         what was done
    tier_manager    one job after the other

Always holds: a segment is told to be there when it is; it is unlisted before its object goes, and
the log start moves before that; of a leader whose epoch is over nothing changes what readers see.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.tier.jobs.config import TierConfig, Tiering, TierMetrics
    from headwater.tier.jobs.deletion import publish_deletion
    from headwater.tier.jobs.interfaces import LocalLog, PartitionMetadata, SegmentStorage
    from headwater.tier.jobs.led_partition import Leader, LedPartition
    from headwater.tier.jobs.log_start import LogStart, LogStartRegister
    from headwater.tier.jobs.managed_partition import ManagedPartition
    from headwater.tier.jobs.parquet_segments import ParquetSegments
    from headwater.tier.jobs.scrub import (
        Flaw,
        ScrubFinding,
        ScrubResult,
        remove_orphans,
        repair,
        scrub_partition,
    )
    from headwater.tier.jobs.tier_manager import TierManager

__all__ = [
    "Flaw",
    "Leader",
    "LedPartition",
    "LocalLog",
    "LogStart",
    "LogStartRegister",
    "ManagedPartition",
    "ParquetSegments",
    "PartitionMetadata",
    "ScrubFinding",
    "ScrubResult",
    "SegmentStorage",
    "TierConfig",
    "TierManager",
    "TierMetrics",
    "Tiering",
    "publish_deletion",
    "remove_orphans",
    "repair",
    "scrub_partition",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "config": "TierConfig TierMetrics Tiering",
        "deletion": "publish_deletion",
        "interfaces": "LocalLog PartitionMetadata SegmentStorage",
        "led_partition": "Leader LedPartition",
        "log_start": "LogStart LogStartRegister",
        "managed_partition": "ManagedPartition",
        "parquet_segments": "ParquetSegments",
        "scrub": "Flaw ScrubFinding ScrubResult remove_orphans repair scrub_partition",
        "tier_manager": "TierManager",
    },
)
