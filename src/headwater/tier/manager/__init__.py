"""The manager: keeps the state of the tier's metadata events, and publishes new ones.

    manager    assignment, state and publishing
    partition  one partition of a stream, for jobs and readers; the deletion of a stream
    following  the subscription, and the state of each metadata partition
    snapshots  snapshots on disk
    status     settings, status and metrics

Always holds: a query is answered from all events or not at all; an unreadable event is never
skipped; every wait has a deadline.
"""

from headwater.tier.manager.manager import TopicMetadataManager
from headwater.tier.manager.partition import ManagedPartition, publish_deletion
from headwater.tier.manager.status import ManagerConfig

__all__ = [
    "ManagedPartition",
    "ManagerConfig",
    "TopicMetadataManager",
    "publish_deletion",
]
