"""The manager: keeps the state of the tier's metadata events, and publishes new ones.

    manager    assignment, state and publishing; one partition, for jobs and readers
    following  the state of each metadata partition; settings, status and metrics
    pump       the subscription to the log, and how far the log goes
    snapshots  snapshots on disk

Always holds: a query is answered from all events or not at all; an unreadable event is never
skipped; every wait has a deadline.
"""

from headwater.tier.manager.following import ManagerConfig
from headwater.tier.manager.manager import (
    ManagedPartition,
    TopicMetadataManager,
    publish_deletion,
)

__all__ = [
    "ManagedPartition",
    "ManagerConfig",
    "TopicMetadataManager",
    "publish_deletion",
]
