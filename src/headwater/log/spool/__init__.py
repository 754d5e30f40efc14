"""The spool: the log on a local disk, in segments of frames.

Enters: record batches, in order, from one writer at a time. Leaves: groups by LSN.

    spool     opens the log; all other modules are used through it
    codec     records to frames and back; columns that come and go
    commit    group commit: appends that wait share the next write and its sync
    writer    the active segment: written, synced, sealed
    state     settings, metrics, segments, positions; reading by LSN, from memory or segments
    recovery  opening: what is cut off, and what prevents opening
    scan      checks every frame of a file; missing LSNs; takes over another implementation's file
    frame     RDLW, the published format, and what Headwater puts in it
    folder    files, names, indexes and the lock
    repair    repairs a closed spool, from copies of it or from the buffer

Always holds: LSNs are dense and in the order of the bytes; what was acknowledged under
`sync="always"` survives a power loss; what is read was checked; nothing that was synced is ever
cut off, and what is cut off is reported.
"""

__all__: list[str] = []
