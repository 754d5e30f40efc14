"""The log: a durable change log, replication slots and replicas.

Enters: groups of records, in order, from one writer. Leaves: the same groups by LSN, to any
number of readers, here and on replicas.

    record   change records, groups of them, their hashes
    wal      the interface of a log that is replicated
    spool    the log on a local disk
    slots    what the log is kept for
    primary  the leader's side of replication
    replica  copies of the log, record for record or the latest record of each key
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.log.primary import (
        AckN,
        CommitUnknown,
        Local,
        PrimaryReplication,
        PrimaryService,
        Quorum,
        Regions,
        ReplicationConfig,
        ReplicationSource,
        parse_policy,
    )
    from headwater.log.record import (
        GROUP_SCHEMA,
        ChangeRecord,
        Group,
        changes_of,
        group_of,
        range_hash,
        record_hashes,
    )
    from headwater.log.replica import (
        Bookmark,
        Diverged,
        GoElsewhere,
        ImageStore,
        KeyedState,
        KeyedStates,
        LogArchive,
        LogCopies,
        LogCopy,
        LogGap,
        Replica,
        ReplicaConfig,
        Target,
        Targets,
    )
    from headwater.log.slots import RetentionLimits, SlotRegister
    from headwater.log.spool import Spool, SpoolConfig, SpoolCorrupt
    from headwater.log.wal import Pruned, Wal

__all__ = [
    "AckN",
    "Bookmark",
    "ChangeRecord",
    "CommitUnknown",
    "Diverged",
    "GROUP_SCHEMA",
    "GoElsewhere",
    "Group",
    "ImageStore",
    "KeyedState",
    "KeyedStates",
    "Local",
    "LogArchive",
    "LogCopies",
    "LogCopy",
    "LogGap",
    "PrimaryReplication",
    "PrimaryService",
    "Pruned",
    "Quorum",
    "Regions",
    "Replica",
    "ReplicaConfig",
    "ReplicationConfig",
    "ReplicationSource",
    "RetentionLimits",
    "SlotRegister",
    "Spool",
    "SpoolConfig",
    "SpoolCorrupt",
    "Target",
    "Targets",
    "Wal",
    "changes_of",
    "group_of",
    "parse_policy",
    "range_hash",
    "record_hashes",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "primary": "AckN CommitUnknown Local PrimaryReplication PrimaryService Quorum Regions "
        "ReplicationConfig ReplicationSource parse_policy",
        "record": "GROUP_SCHEMA ChangeRecord Group changes_of group_of range_hash record_hashes",
        "replica": "Bookmark Diverged GoElsewhere ImageStore KeyedState KeyedStates LogArchive "
        "LogCopies LogCopy LogGap Replica ReplicaConfig Target Targets",
        "slots": "RetentionLimits SlotRegister",
        "spool": "Spool SpoolConfig SpoolCorrupt",
        "wal": "Pruned Wal",
    },
)
