"""The spool: the log on a local disk, in segments of frames.

Enters: record batches, in order, from one writer at a time. Leaves: groups by LSN.

    spool      opens it, and is what the others are reached by
    ownership  whether the log is still this object's
    draft      records made ready to be appended; conform, columns that come and go
    commit     the line in which appends wait, and share a write and its sync
    writer     the active segment: written, synced, sealed; run, what one write takes
    reader     groups by LSN, from memory or from segments
    tail       the end of the log in memory
    state      what is published, and who waits for more
    recovery   opening: what is cut off, and what stops it; adopt, torn
    scan       a look at every frame of a file; window, which holds a chunk of it
    frame      RDLW, the published format; envelope, body, what Headwater puts in it; crc
    index      where in a segment to begin; folder, which files there are
    repair     mends a closed spool; repair_source, from where; likeness, whether that is a copy;
               survey, what is missing

Always holds: LSNs are dense and in the order of the bytes; what was acknowledged under
`sync="always"` survives a power loss; what is read was checked; nothing that was synced is ever
cut off, and nothing at all without a word.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.log.spool.codec import PreparedAppend, prepare_append, prepare_lost
    from headwater.log.spool.commit import Appended
    from headwater.log.spool.frame import SpoolCorrupt
    from headwater.log.spool.recovery import TornTail
    from headwater.log.spool.spool import Spool
    from headwater.log.spool.state import SpoolConfig, SpoolMetrics

__all__ = [
    "Appended",
    "PreparedAppend",
    "Spool",
    "SpoolConfig",
    "SpoolCorrupt",
    "SpoolMetrics",
    "TornTail",
    "prepare_append",
    "prepare_lost",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "codec": "PreparedAppend prepare_append prepare_lost",
        "commit": "Appended",
        "frame": "SpoolCorrupt",
        "recovery": "TornTail",
        "spool": "Spool",
        "state": "SpoolConfig SpoolMetrics",
    },
)
