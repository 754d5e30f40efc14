"""A log of events begun anew where the old one is damaged: from its remains, and from segments.

Enters: a log in a store of which something is damaged or gone. Leaves: another one, and what became
of each partition.

    remains            what can still be read of a metadata partition, and where not
    replay             what that comes to, with the help of segments where an event is missing
    footers            what segments say of themselves
    partition_rebuild  objects of which no event speaks, and segments without an object
    rebuilding         the log that begins with it

Always holds: the old log stays as it was; where nothing is missing, the new one comes to the same;
what an event says counts before what an object says; whatever is missing or left out is told.
"""

from headwater.tier.rebuild.partition_rebuild import RebuiltPartition
from headwater.tier.rebuild.rebuilding import Rebuilt, rebuild

__all__ = ["Rebuilt", "RebuiltPartition", "rebuild"]
