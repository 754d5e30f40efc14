"""The spool: the log on a local disk, in segments of frames.

Enters: record batches, in order, from one writer at a time. Leaves: groups by LSN.

    spool          opens the log; all other modules are used through it
    codec          records to frames and back; columns that come and go
    commit         the appends that wait, and what one write takes
    writer         the active segment: written, synced, sealed
    reader         groups by LSN, from memory or from segments
    state          settings, metrics, segments, positions, and who waits for more
    recovery       opening: what is cut off, and what prevents it
    scan           checking every frame of a file; what is missing; taking over another's file
    frame          RDLW, the published format, and what Headwater puts in it
    folder         files, names, indexes and the lock
    repair         repairs a closed spool; repair_source, from where

Always holds: LSNs are dense and in the order of the bytes; what was acknowledged under
`sync="always"` survives a power loss; what is read was checked; nothing that was synced is ever
cut off, and what is cut off is reported.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

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
