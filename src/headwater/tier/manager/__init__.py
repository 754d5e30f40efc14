"""The manager: knows what the metadata events of the tier come to, and says new ones.

Enters: a log of events, and which of its partitions to follow. Leaves: what the cache knows, once
that is all; events that were published, with what became of them.

    manager     the manager itself
    followed    one metadata partition: what was applied, and whether that is all
    pump        from the log to the partitions, again after whatever fails
    publishing  an event, and waiting for what becomes of it
    saving      snapshots of the partitions
    config      times
    metrics     what it did
    status      how it is

Always holds: every question is answered by all events or not at all; an event that cannot be read
is not passed; nobody waits without a deadline.
"""

from headwater.tier.manager.manager import TopicMetadataManager
from headwater.tier.manager.status import (
    ManagerConfig,
    ManagerMetrics,
    ManagerStatus,
    PartitionStatus,
)

__all__ = [
    "ManagerConfig",
    "ManagerMetrics",
    "ManagerStatus",
    "PartitionStatus",
    "TopicMetadataManager",
]
