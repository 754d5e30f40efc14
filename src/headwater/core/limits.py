"""Named limits. Every loop, queue and size in Headwater is bounded by one of these.

A limit that a user meets is named in the error that enforces it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Keys. The local store keeps one file per object and file systems allow 255 bytes a name;
# S3 allows 1,024 bytes a key, of which the root's own prefix takes a part.
KEY_MAX_BYTES: Final = 700
KEY_SEGMENT_MAX_BYTES: Final = 200
KEY_MAX_SEGMENTS: Final = 32

# Objects. S3 takes 5 GiB in one PUT; above MULTIPART_ABOVE_BYTES a plain put goes in parts.
OBJECT_MAX_BYTES: Final = 5 * GIB
MULTIPART_ABOVE_BYTES: Final = 64 * MIB
MULTIPART_PART_BYTES: Final = 16 * MIB
STREAM_CHUNK_BYTES: Final = 8 * MIB
LIST_PAGE_KEYS: Final = 1000

# Conditionally written objects are small, because every contender moves them whole.
REGISTER_MAX_BYTES: Final = 4 * MIB
SEQUENCE_ENTRY_MAX_BYTES: Final = 16 * MIB
# How many past changes a register remembers, and how many deleted entries a sequence does. A
# writer that was away for longer cannot be told whether its change landed: OutcomeUnknown.
REGISTER_HISTORY: Final = 64
SEQUENCE_HISTORY: Final = 256
# How often a change is tried again when others win the race for the same object.
REGISTER_ATTEMPTS: Final = 64
SEQUENCE_ATTEMPTS: Final = 256

# Frames: a payload above this would be refused on read, so it is refused on write.
FRAME_PAYLOAD_MAX_BYTES: Final = 256 * MIB

# Requests.
ATTEMPTS_MAX: Final = 10
ATTEMPT_TIMEOUT_S: Final = 30.0
DEADLINE_S: Final = 120.0
BACKOFF_BASE_S: Final = 0.05
BACKOFF_CAP_S: Final = 5.0
THROTTLED_BACKOFF_BASE_S: Final = 0.5
# Below this rate a transfer counts as stalled.
SLOWEST_BYTES_PER_S: Final = 1 * MIB
CONNECT_TIMEOUT_S: Final = 5.0
# The client's own limit, which ends what a caller gave up waiting for.
CLIENT_TIMEOUT_S: Final = 600.0

# How long a thread waits for a lock of the local store before it gives up and is free again.
LOCK_WAIT_S: Final = 10.0
# Threads that run blocking work (local files).
BLOCKING_THREADS: Final = 32

# Batches. A producer checks these before it writes anything, a reader before it allocates anything.
RECORD_MAX_BYTES: Final = 16 * MIB
BATCH_MAX_BYTES: Final = 256 * MIB
BATCH_MAX_ROWS: Final = 16_777_216
BATCH_MAX_CALLS: Final = 1_048_576
