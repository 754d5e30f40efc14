"""The leader's side of replication: its replicas, their progress, what the log is kept for.

Enters: registrations, pulls and acknowledgements of replicas; what was archived; writers that wait.
Leaves: groups of the log, without gaps; commits as a policy says; the LSN that may be pruned.

    replication    `PrimaryReplication`, which contains the others
    service        what replicas request: `ReplicationSource`, and `PrimaryService` over this log
    registry       replicas of this leader, their health, the topology epoch
    commits        commit policies; writers that are delayed, or wait until a record is replicated
    slot           one slot: its state, limits, and how its replica resumes
    slot_register  all slots as one stored value, fenced by the leader's epoch
    slot_writer    the leader's slots in memory, and writing them at a bounded rate
    log_retention  slots against the log: floor, limits, pruning, resuming, bootstrapping

Always holds:

- a replica counts only for what it acknowledged since it registered;
- a time-out is an unknown outcome, never a failure;
- what is sent has no gap;
- nothing that a valid slot needs is pruned, also if the leader dies at once; slots that cannot be
  read free nothing; a dead slot holds no more than its limits.
"""

__all__: list[str] = []
