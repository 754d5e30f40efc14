"""Snapshots: what a metadata partition's events come to, so that nobody reads them all again.

Enters: the dumps of a cache and the offset they go through. Leaves: the same, whole, or an error.

    codec   snapshots in bytes
    folder  snapshots on a disk

Always holds: a snapshot says which log it is of, how many partitions that has, and through which
offset it goes; bytes that are not what was written are `Corrupt`.
"""

from headwater.tier.snapshot.codec import NOTHING, Snapshot, decode_snapshot, encode_snapshot
from headwater.tier.snapshot.folder import SnapshotFolder

__all__ = ["NOTHING", "Snapshot", "SnapshotFolder", "decode_snapshot", "encode_snapshot"]
