"""The log: a durable change log, replication slots and replicas.

Enters: groups of records, in order, from one writer. Leaves: the same groups by LSN, to as many
readers as there are.

    record   change records, groups of them, their hashes
    wal      what those who replicate a log ask of it
    spool    the log on a local disk
"""

from headwater.log.record import ChangeRecord, Group
from headwater.log.spool import Spool, SpoolConfig, SpoolCorrupt
from headwater.log.wal import Pruned, Wal

__all__ = ["ChangeRecord", "Group", "Pruned", "Spool", "SpoolConfig", "SpoolCorrupt", "Wal"]
