"""The log: durable changes, slots and replicas. For builders; users: docs/api.md.

Enters: groups of records, in order, from one writer. Leaves: the same groups by LSN, to any
number of readers, here and on replicas.

    record   change records, groups of them and their hashes, the interface of a log
    spool    the log on a local disk
    primary  the leader's side of replication, and the slots that the log is kept for
    replica  copies of the log, record for record or the latest record of each key
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.log.primary.commits import (
        AckN,
        CommitUnknown,
        Local,
        Quorum,
        Regions,
        parse_policy,
    )
    from headwater.log.primary.replication import PrimaryReplication, ReplicationConfig
    from headwater.log.primary.service import PrimaryService, ReplicationSource
    from headwater.log.primary.slot import RetentionLimits
    from headwater.log.primary.slot_register import SlotRegister
    from headwater.log.record.change import ChangeRecord, changes_of, group_of
    from headwater.log.record.group import GROUP_SCHEMA, Group, Wal, consumed_records
    from headwater.log.record.hashes import range_hash, record_hashes
    from headwater.log.replica.contract import (
        Bookmark,
        Diverged,
        GoElsewhere,
        LogArchive,
        LogGap,
        ReplicaConfig,
        Target,
        Targets,
    )
    from headwater.log.replica.keyed_state import KeyedState, KeyedStates
    from headwater.log.replica.log_copy import LogCopies, LogCopy
    from headwater.log.replica.replica import Replica
    from headwater.log.spool.codec import PreparedAppend, prepare_append, prepare_lost
    from headwater.log.spool.frame import SpoolCorrupt
    from headwater.log.spool.spool import Spool
    from headwater.log.spool.state import SpoolConfig

__all__ = [
    "AckN",
    "Bookmark",
    "ChangeRecord",
    "CommitUnknown",
    "Diverged",
    "GROUP_SCHEMA",
    "GoElsewhere",
    "Group",
    "KeyedState",
    "KeyedStates",
    "Local",
    "LogArchive",
    "LogCopies",
    "LogCopy",
    "LogGap",
    "PreparedAppend",
    "PrimaryReplication",
    "PrimaryService",
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
    "consumed_records",
    "group_of",
    "parse_policy",
    "prepare_append",
    "prepare_lost",
    "range_hash",
    "record_hashes",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "primary.commits": "AckN CommitUnknown Local Quorum Regions parse_policy",
        "primary.replication": "PrimaryReplication ReplicationConfig",
        "primary.service": "PrimaryService ReplicationSource",
        "primary.slot": "RetentionLimits",
        "primary.slot_register": "SlotRegister",
        "record.change": "ChangeRecord changes_of group_of",
        "record.group": "GROUP_SCHEMA Group Wal consumed_records",
        "record.hashes": "range_hash record_hashes",
        "replica.contract": "Bookmark Diverged GoElsewhere LogArchive LogGap ReplicaConfig Target "
        "Targets",
        "replica.keyed_state": "KeyedState KeyedStates",
        "replica.log_copy": "LogCopies LogCopy",
        "replica.replica": "Replica",
        "spool.codec": "PreparedAppend prepare_append prepare_lost",
        "spool.frame": "SpoolCorrupt",
        "spool.spool": "Spool",
        "spool.state": "SpoolConfig",
    },
)
