"""Replicas: copies of a leader's log, kept up to date by pulling from their slots.

Enters: a `ReplicationSource` (the leader, in this process or over a wire). Leaves: a copy that can
be read, by bookmark if a reader must see what it has seen elsewhere.

    replica      opens, runs, is read
    follower     registers, compares, pulls, applies, acknowledges; fills fresh copies
    session      the session with the leader, and its fence
    comparing    gaps in what was pulled; the copy compared with its leader's log
    copies       the copy that counts, its readers, and the stored state: fence and divergence
    contract     settings, status, bookmarks, errors, and the interfaces of targets
    log_copy     a target that is the log again, record for record
    keyed_state  a target with the latest record of each key, and its stored images; keyed_table,
                 one collection of it
    image        a keyed state in Parquet

Always holds: a copy is a prefix of the log; an older leader changes nothing, also after a restart;
what is acknowledged as durable survives; a fresh copy replaces the old one at once, when it shows
at least as much.
"""

__all__: list[str] = []
