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
# Keys that other software chose, which are only read.
FOREIGN_KEY_MAX_BYTES: Final = 1024

# Objects. S3 takes 5 GiB in one PUT; above MULTIPART_ABOVE_BYTES a plain put goes in parts.
OBJECT_MAX_BYTES: Final = 5 * GIB
MULTIPART_ABOVE_BYTES: Final = 64 * MIB
MULTIPART_PART_BYTES: Final = 16 * MIB
STREAM_CHUNK_BYTES: Final = 8 * MIB
LIST_PAGE_KEYS: Final = 1000

# Conditionally written objects are small, because every contender moves them whole.
REGISTER_MAX_BYTES: Final = 4 * MIB
# How many past changes a register remembers. A writer that was away for longer cannot learn whether
# its change landed: OutcomeUnknown.
REGISTER_HISTORY: Final = 64
# How often a change or an append is tried again when others win the race for the same object.
REGISTER_ATTEMPTS: Final = 64
NUMBERED_LOG_ATTEMPTS: Final = 256

# Frames of a spool: a payload above this would be refused on read, so it is refused on write.
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
# A store that has not answered for this long is named in a warning, once in SLOW_AGAIN_S at most.
SLOW_ANSWER_S: Final = 5.0
SLOW_AGAIN_S: Final = 60.0
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
# What the dictionaries and views of one call may take once they are written out.
EXPANDED_MAX_BYTES: Final = 256 * MIB

# Consuming. A consumer writes one dequeue for this many acknowledgements.
ACKS_PER_DEQUEUE: Final = 100
# What a group's consumer acknowledged is stored at least this often.
ACK_WRITE_S: Final = 1.0
# A member that does not poll for so long releases its partitions.
MAX_POLL_INTERVAL_S: Final = 300.0
# How often a member reads how many partitions its stream has.
STREAM_LOOK_S: Final = 20.0
# Batches that a consumer returned and that are not acknowledged: it remembers each.
UNACKED_MAX_BATCHES: Final = 65_536
# Read-ahead: batches that are fetched or decoded before the consumer requests them, and bytes.
READ_AHEAD_BATCHES: Final = 32
# One consumer of a group is to get 800 batches a second from a store that answers within 30 ms.
GROUP_READ_AHEAD_BATCHES: Final = 64
READ_AHEAD_BYTES: Final = 64 * MIB
# A batch up to this size is decoded on the event loop; a larger one on a thread.
DECODE_INLINE_BYTES: Final = 64 * KIB
# A follower's lag in bytes is the sum of at most this many batches' descriptors.
LAG_WALK_BATCHES: Final = 10_000
# How long a reader that follows waits between two polls: from, to.
FOLLOW_POLL_BASE_S: Final = 0.1
FOLLOW_POLL_CAP_S: Final = 5.0
# Batches that one read of the queue requests.
LOOK_BATCHES: Final = 256
GC_INTERVAL_S: Final = 300.0
# How often a reset of some of a group's partitions begins again because readers started meanwhile.
GROUP_RESET_ATTEMPTS: Final = 8
# A query whose last sign of life is older does not count as running when its group is reset.
GROUP_QUERY_SEEN_S: Final = 120.0

# The native queue. Appends, polls and dequeues move whole chunks: they are small.
CHUNK_MAX_ENTRIES: Final = 256
CHUNK_FULL_BYTES: Final = 128 * KIB
"""Past this a chunk takes no further entries; one entry alone may be larger."""
CHUNK_MAX_BYTES: Final = 2 * MIB
INLINE_MAX_BYTES: Final = 16 * KIB
METADATA_MAX_BYTES: Final = 16 * KIB
PRODUCER_ID_MAX_BYTES: Final = 128
# Openings of producers that a chunk remembers; a producer that was away longer reads its record.
CHUNK_OPENINGS: Final = 16
APPEND_ATTEMPTS: Final = 256
"""Lost races before an append gives up."""
FLOOR_LEASE_S: Final = 30.0
"""This long after a floor was read, no number at or above it has been deleted, because a
collector waits for FLOOR_SETTLE_S between raising the floor and deleting chunks."""
FLOOR_SETTLE_S: Final = 90.0
"""Three leases: the clock of one machine may run at most three times as fast as another's."""
FLOOR_LOOK_S: Final = 600.0
"""An append to an open chunk shows that the floor is below it. The floor is read all the same this
often: nothing else shows that a stream was partly deleted."""

# The published v1 queue. Appends, polls and dequeues move the whole manifest.
V1_MANIFEST_MAX_BYTES: Final = 64 * MIB
V1_ATTEMPTS: Final = 64
"""Lost races before a change of the manifest gives up."""
V1_ATTEMPTS_AT_ONCE: Final = 16
"""Lost races in a row after each of which it is tried again without waiting."""
V1_REMEMBERED: Final = 1024
"""How many entries back a location that comes again is recognised as the same batch."""
V1_BATCH_ROWS_MAX: Final = BATCH_MAX_BYTES // 4
"""Records of a batch that is counted: a length of four bytes each."""
V1_TAKEN_MAX: Final = 262_144
"""Batches that another consumer took, across which what was acknowledged before stays readable."""
V1_GIVEN_UP_MAX: Final = 1024
"""Pending batches that a consumer has declared lost."""
V1_COUNTS_AT_ONCE: Final = 32
V1_COUNTS_CACHED: Final = 65_536
# Acknowledged entries are stored in segments of up to this many entries and bytes.
V1_SEGMENT_ENTRIES: Final = 1024
V1_SEGMENT_BYTES: Final = 1 * MIB
V1_SEGMENTS_AT_ONCE: Final = 16
V1_LOOK_BACK_ENTRIES: Final = 65_536
"""How many acknowledged entries an append searches for its own."""
V1_COLLECT_BATCHES: Final = 10_000
"""Batches that one pass of the garbage collector deletes."""

# Transactions of sinks. Each change moves their whole register.
HOLDS_MAX: Final = 1024
"""Open transactions of one stream, those that crashed included until they are collected."""
TRANSACTION_MAX_BATCHES: Final = 32_000

# The collector of a native queue, in one pass.
GC_CHUNKS: Final = 1000
GC_LISTED: Final = 10_000
GC_SHARDS: Final = 64
GC_REFERENCED: Final = 50_000
GC_FILTER_BYTES: Final = 8 * MIB
"""What a pass over everything keeps in mind of ids beyond the newest: enough for 6.5 million."""
GC_PARALLEL: Final = 16
GC_FULL_EVERY_MS: Final = 24 * 3600 * 1000
# A producer that was silent for this long, and has no stored records, is forgotten.
PRODUCER_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000

# Replication. What one slot may hold of the log, and how often slots are written.
SLOTS_MAX: Final = 1024
SLOT_MAX_LAG_LSN: Final = 100_000_000
SLOT_MAX_LAG_BYTES: Final = 16 * GIB
SLOT_MAX_LAG_S: Final = 7 * 24 * 3600.0
SLOT_IDLE_TIMEOUT_S: Final = 7 * 24 * 3600.0
SLOT_WRITE_INTERVAL_S: Final = 5.0
"""How often changed positions are written."""
SLOT_WRITE_GAP_S: Final = 0.25
"""Between any two writes of the slots, however urgent."""
SLOT_LOOK_S: Final = 60.0
"""How often an idle leader checks whether a slot was dropped."""
SLOT_SEEN_REFRESH_S: Final = 60.0
"""A stored time at which a replica was last heard of may be so old."""
REPLICA_HEALTH_TIMEOUT_S: Final = 30.0
REPLICA_SWEEP_INTERVAL_S: Final = 5.0
REPLICA_SWEEP_MIN_S: Final = 1.0
"""Sweeps leave slots the time to be stored and used: some write gaps, and a store's answers."""
COMMIT_TIMEOUT_S: Final = 10.0
PULL_MAX_RECORDS: Final = 1_000_000
PULL_MAX_BYTES: Final = 16 * MIB
REPLICA_PULL_WAIT_S: Final = 10.0
REPLICA_PULL_GAP_S: Final = 0.05
"""A pull that came back empty before its time is not repeated sooner."""
REPLICA_CALL_TIMEOUT_S: Final = 30.0
REPLICA_COMPARE_RECORDS: Final = 1024
REPLICA_DISTRUST_S: Final = 600.0
"""How long an archive is not used again whose records differed from the leader's log."""
REPLICA_RECENT_BYTES: Final = 16 * MIB
"""What a keyed state keeps of the log, to compare what comes again."""
REPLICA_ACK_INTERVAL_S: Final = 5.0
REPLICA_RETRY_BASE_S: Final = 0.1
REPLICA_RETRY_CAP_S: Final = 15.0
REPLICA_READ_TIMEOUT_S: Final = 10.0
KEYED_IMAGE_INTERVAL_S: Final = 300.0
KEYED_IMAGE_RECORDS: Final = 1_000_000
KEYED_IMAGE_RETRY_S: Final = 15.0
KEYED_IMAGE_HASHES: Final = 64
"""How many of its last records' hashes an image has, to compare them with a leader's."""
KEYED_IMAGES_KEPT: Final = 3
KEYED_CHUNK_ROWS: Final = 65_536
"""Smaller pieces of a keyed state are put together."""
# A writer that runs ahead of its replicas is held up by at most so much at a time.
FLOW_SOFT_LAG_LSN: Final = 1_000_000
FLOW_MAX_DELAY_S: Final = 0.5

# The write coordinator.
COORDINATOR_QUEUE_WRITES: Final = 10_000
COORDINATOR_FLUSH_INTERVAL_S: Final = 10.0
COORDINATOR_FLUSH_BYTES: Final = 64 * MIB
COORDINATOR_FROZEN: Final = 3
COORDINATOR_STOP_GRACE_S: Final = 30.0
COORDINATOR_VIEWS: Final = 16
"""Views that are queued for a slow subscriber."""
COORDINATOR_TURN_WRITES: Final = 512
"""Writes that are applied before others have a turn on the event loop."""

# The log.
LSN_MAX: Final = 2**63 - 1
"""What Spark and Arrow hold as a signed number of 64 bits."""
LOG_GROUP_BYTES: Final = 16 * MIB
"""Records of one frame; a single record alone may be larger."""
LOG_SEGMENT_BYTES: Final = 128 * MIB
LOG_SEGMENT_AGE_S: Final = 300.0
LOG_TAIL_BYTES: Final = 64 * MIB
"""Records that all readers of the log's end share in memory."""
LOG_QUEUE_BYTES: Final = 512 * MIB
"""What may wait to be written before appends are turned away."""
LOG_FLUSH_BYTES: Final = 64 * MIB
"""What one write takes; an append that is larger goes alone."""
LOG_TEND_EVERY_S: Final = 1.0
# The sparse index has one entry for this many frames or bytes, whichever come first.
LOG_INDEX_FRAMES: Final = 64
LOG_INDEX_BYTES: Final = 1 * MIB
LOG_READ_CHUNK_BYTES: Final = 256 * KIB
LOG_READ_BYTES: Final = 16 * MIB
LOG_READ_RECORDS: Final = 100_000

# The metadata of the tier.
METADATA_PUBLISH_TIMEOUT_S: Final = 30.0
METADATA_REFRESH_TIMEOUT_S: Final = 30.0
METADATA_CALL_TIMEOUT_S: Final = 30.0
METADATA_TEND_INTERVAL_S: Final = 0.5
METADATA_RETRY_BASE_S: Final = 0.5
METADATA_RETRY_CAP_S: Final = 30.0
METADATA_SNAPSHOT_INTERVAL_S: Final = 60.0
METADATA_TURN_EVENTS: Final = 256
"""Events that are applied before others have a turn on the event loop."""
# Every opening of a partition's consumer raises its epoch by one. One that is further above the
# last than this is a mistake that cannot be undone: no later leader would count. The first leader
# may have any epoch.
EPOCH_STEP_MAX: Final = 1_000_000

# Remote segments.
TIER_ROW_GROUP_BYTES: Final = 16 * MIB
"""Records, as they are in memory, that are stored and read at once; a single one may be larger."""
TIER_ROW_GROUP_ROWS: Final = 1_048_576
TIER_SEGMENT_MAX_BYTES: Final = 1 * GIB
"""Of the object; Kafka's events count its bytes in 31 bits."""
TIER_MERGE_COLUMNS: Final = 2_000
"""Segments of different columns are merged while they have at most this many columns in all."""
TIER_SEGMENT_RUNS: Final = 65_536
"""Changes of term or columns, and lost ranges, within one segment."""
TIER_FETCH_BYTES: Final = 8 * MIB
"""Adjacent row groups are fetched in one request up to this size."""
TIER_WHOLE_BYTES: Final = 512 * KIB
"""A segment up to this size is fetched whole: one request instead of two."""
TIER_FOOTER_GUESS_BYTES: Final = 64 * KIB
"""What is read of the end of an object of which nothing is known."""
TIER_COPY_BYTES: Final = 512 * MIB
"""Segments that all partitions of a process have in memory to copy them."""
TIER_CACHE_BYTES: Final = 64 * MIB
"""Parts of segments that readers share in memory."""
TIER_READ_PARALLEL: Final = 4
"""Row groups that one reader has under way or decoded, ahead of where it is."""
TIER_READ_PLANS: Final = 8
"""How often in a row a reader makes a new plan without coming any further."""

# The tier's event log in object storage.
EVENT_MAX_BYTES: Final = 1 * MIB
EVENT_PARTITIONS_MAX: Final = 4096
EVENT_READS_AT_ONCE: Final = 64
"""Events that one reader of a partition asks for at a time while it catches up."""
EVENTS_READY: Final = 128
"""Events that were fetched for a subscription and not taken; past them it fetches no more."""
EVENTS_RECENT: Final = 64
"""Events of one partition that a handle published and still has in memory for its followers."""
EVENT_LEASE_S: Final = 60.0
"""This long after a floor was read, nothing at or above it has been deleted, because between
the moment the floor passes an event and its deletion lies at least the grace of the compactor."""
EVENT_END_CHECK_S: Final = 600.0
"""How often a follower that waits at the end lists what is beyond, to report lost events."""
EVENT_GRACE_S: Final = 3600.0
EVENT_GRACE_MIN_S: Final = 3 * EVENT_LEASE_S
EVENT_MARKS_AT_ONCE: Final = 16
"""Partitions of one request for high-water marks."""
COMPACT_EVENTS: Final = 1000
"""Events above the floor at which a partition is compacted, if its last snapshot is small."""
COMPACT_BYTES_AN_EVENT: Final = 4 * KIB
"""A snapshot is written again after one event for this many of its bytes: large ones less often."""
COMPACT_MAX_EVENTS: Final = 100_000
"""Events that one snapshot adds; the next one continues."""
COMPACT_INTERVAL_S: Final = 300.0

# Records carry times in microseconds of 64 bits.
TIME_MAX_MS: Final = ((1 << 63) - 1) // 1000

# Events of the tier carry a segment's epoch in 32 bits, with a sign.
TERM_MAX: Final = (1 << 31) - 1

# Series whose totals are kept after their component is gone.
METRIC_SERIES_MAX: Final = 10_000
