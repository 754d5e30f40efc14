"""What is wrong with this machine or a store, and how to mend it.

Enters: what was found here (versions, programs, settings, a store). Leaves: `Finding`s.

    finding    how one check ended
    machine    Python, packages, disk
    spark      Java, the Python of workers, what pip's Spark does not bring
    place      a store: credentials, reach, conditional writes, clock, streams
    contents   a store: everything in it that has a checksum

Always holds: every finding that is not `ok` says what to do; no finding shows a credential; nothing
is opened or fenced, and what a check writes it removes.
"""

from headwater.cli.doctor.finding import Finding, Status

__all__ = ["Finding", "Status"]
