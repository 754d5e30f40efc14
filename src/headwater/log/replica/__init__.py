"""Replicas: copies of a leader's log, kept up by pulling from their slots.

Enters: a `ReplicationSource` (the leader, in this process or at the end of a wire). Leaves: a copy
that is read, by bookmark where a reader must see what it saw elsewhere.

    replica           opens, runs, is read; begins anew where it must
    follower          comes to a leader, compares, pulls, applies, acknowledges
    sole_work         one thing at a time: following, or being made anew
    link              what it says to its source, and the fence in front of the answers
    pull_ahead        the next answer, asked for while the last one is applied
    proof             how much of a copy was found in its leader's log; hashes, of many groups
    intake            what of an answer is new, came again, or is missing
    bootstrapper      beginning anew; held_copy, which stays as long as it is read
    bookmark          (term, LSN)
    holdings          the copy that counts; kept, what a restart finds: also fence and divergence
    target            what a replica applies to, as a protocol
    log_copy          the log again, record for record
    archive           what a log copy begins from where the leader's log does not reach back
    keyed_state       the latest record of each key; keyed_table, one collection of it; recent,
                      its last groups, to compare them
    image             a keyed state in Parquet; image_store, where images stand

Always holds: a copy is a prefix of the log; an older leader changes nothing, also after a restart;
what is acknowledged as durable survives; a fresh copy replaces the old one at once and shows no
less.
"""

from headwater.log.replica.contract import (
    Bookmark,
    Diverged,
    GoElsewhere,
    Image,
    LogArchive,
    LogGap,
    ReplicaConfig,
    ReplicaPhase,
    ReplicaStatus,
    Target,
    Targets,
)
from headwater.log.replica.image import ImageStore
from headwater.log.replica.keyed_state import KeyedState, KeyedStates
from headwater.log.replica.link import ReplicaMetrics
from headwater.log.replica.log_copy import LogCopies, LogCopy
from headwater.log.replica.replica import Replica

__all__ = [
    "Bookmark",
    "Diverged",
    "GoElsewhere",
    "Image",
    "ImageStore",
    "KeyedState",
    "KeyedStates",
    "LogArchive",
    "LogCopies",
    "LogCopy",
    "LogGap",
    "Replica",
    "ReplicaConfig",
    "ReplicaMetrics",
    "ReplicaPhase",
    "ReplicaStatus",
    "Target",
    "Targets",
]
