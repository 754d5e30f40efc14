"""The log: a durable change log, replication slots and replicas.

Enters: groups of records, in order, from one writer. Leaves: the same groups by LSN, to as many
readers as there are.

    record   change records, groups of them, their hashes
    wal      what those who replicate a log ask of it
"""

from headwater.log.record.group import Group
from headwater.log.wal import Pruned, Wal

__all__ = ["Group", "Pruned", "Wal"]
