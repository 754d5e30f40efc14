"""The cache: what the events say about remote segments, ready to be asked.

Enters: metadata events, in the order of their log. Leaves: which segment holds an offset or a time,
what is listed, what covers a range of LSNs.

    tier_cache       many partitions; whose events count
    partition_cache  one partition: the state machines
    epoch_index      one leader epoch of it: which segment holds which offset
    segment_table    segments in columns
    id_table         rows by segment id
    start_index      rows by start offset, and by an end or a time from there on
    max_tree         the next number that is large enough
    dump             all of it as a value, for snapshots
    outcome          what became of an event

Always holds: an event that is rejected, repeated or stale changes nothing; the highest offset of an
epoch never goes down; a segment that is not forgotten is listed; an LSN is in at most one piece of
a cover.
"""

from headwater.tier.cache.dump import PartitionDump, dump, dump_all, restore, restore_all
from headwater.tier.cache.outcome import Outcome
from headwater.tier.cache.partition_cache import PartitionCache
from headwater.tier.cache.tier_cache import TierCache

__all__ = [
    "Outcome",
    "PartitionCache",
    "PartitionDump",
    "TierCache",
    "dump",
    "dump_all",
    "restore",
    "restore_all",
]
