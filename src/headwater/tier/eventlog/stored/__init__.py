"""A log of metadata events in object storage.

Enters: a store. Leaves: a log that every process with the same store sees alike.

    layout        where its objects stand
    identity      which log it is, and how many partitions it has
    floor         from where on events are there one by one
    event_object  an event in bytes
    events        the events of one partition: reading them, and finding their end
    appender      appending one
    snapshots     what the events below the floor come to
    following     one partition for one subscriber
    subscription  all that one subscriber follows
    log           the log
    compactor     moves the floor, and deletes what is below
    renewal       a log that begins with what another one comes to

Always holds: the store lets one publisher create each offset; what is below the floor is in a
snapshot that was durable before the floor moved; nothing is deleted before a grace after that; the
floor never goes down; whatever cannot be read is told under its key, never passed over.
"""

from headwater.tier.eventlog.stored.compactor import Compaction, Compactor
from headwater.tier.eventlog.stored.log import StoredEventLog
from headwater.tier.eventlog.stored.renewal import Renewed, renew

__all__ = ["Compaction", "Compactor", "Renewed", "StoredEventLog", "renew"]
