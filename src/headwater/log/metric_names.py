"""The names under which the metrics of spools, replication and replicas are exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.core.metrics import MetricDefinition, counter, histogram

SPOOL: Final[Mapping[str, MetricDefinition]] = {
    "appends": counter("headwater_spool_appends_total", "Calls of append."),
    "records_written": counter("headwater_spool_records_written_total", "Records written."),
    "frames_written": counter("headwater_spool_frames_written_total", "Frames written."),
    "bytes_written": counter("headwater_spool_written_bytes_total", "Bytes written."),
    "flushes": counter(
        "headwater_spool_flushes_total", "Writes; each serves all appends that waited for it."
    ),
    "syncs": counter("headwater_spool_syncs_total", "Syncs of the file."),
    "appends_refused": counter(
        "headwater_spool_appends_refused_total", "Refused appends.", by="reason"
    ),
    "segments_sealed": counter(
        "headwater_spool_segments_sealed_total", "Sealed segments.", by="reason"
    ),
    "segments_pruned": counter("headwater_spool_segments_pruned_total", "Deleted segments."),
    "bytes_pruned": counter("headwater_spool_pruned_bytes_total", "Their bytes."),
    "tail_reads": counter(
        "headwater_spool_tail_reads_total", "Reads that were served from memory."
    ),
    "disk_reads": counter("headwater_spool_disk_reads_total", "Reads of the disk."),
    "torn_bytes": counter(
        "headwater_spool_torn_bytes_total", "Bytes cut off when the spool was opened."
    ),
    "flush_seconds": histogram("headwater_spool_flush_seconds", "A write."),
    "sync_seconds": histogram("headwater_spool_sync_seconds", "A sync."),
}

REPLICATION: Final[Mapping[str, MetricDefinition]] = {
    "partial_resyncs": counter(
        "headwater_replication_partial_resyncs_total",
        "Replicas that resumed from their position.",
    ),
    "full_rebootstraps": counter(
        "headwater_replication_rebootstraps_total",
        "Replicas that needed a fresh copy.",
        by="cause",
    ),
    "slots_invalidated": counter(
        "headwater_replication_slots_invalidated_total", "Slots given up.", by="cause"
    ),
    "slots_dropped": counter("headwater_replication_slots_dropped_total", "Slots removed."),
    "slots_renewed": counter(
        "headwater_replication_slots_renewed_total",
        "Slots that a completed re-bootstrap made valid again.",
    ),
    "pulls": counter("headwater_replication_pulls_total", "Pulls of replicas."),
    "records_sent": counter("headwater_replication_records_sent_total", "Records sent."),
    "acknowledgements": counter(
        "headwater_replication_acknowledgements_total", "Acknowledgements of replicas."
    ),
    "health_flips": counter(
        "headwater_replication_health_changes_total",
        "Replicas that became healthy or unhealthy.",
        by="health",
    ),
    "sweeps_failed": counter(
        "headwater_replication_sweeps_failed_total",
        "Sweeps that an error of the log cut short.",
    ),
    "commit_seconds": histogram(
        "headwater_replication_commit_seconds", "Waiting until a record was replicated."
    ),
    "commit_timeouts": counter(
        "headwater_replication_commit_timeouts_total", "Waits that ended.", by="policy"
    ),
    "prunes_cut_short": counter(
        "headwater_replication_prunes_cut_short_total",
        "Times that less was pruned, because slots could not be written.",
    ),
    "writers_delayed": counter(
        "headwater_replication_writers_delayed_total", "Writers delayed because of the lag."
    ),
    "writer_delay_seconds": histogram(
        "headwater_replication_writer_delay_seconds", "How long they were delayed."
    ),
}

REPLICA: Final[Mapping[str, MetricDefinition]] = {
    "registrations": counter(
        "headwater_replica_registrations_total", "Registrations with a leader."
    ),
    "pulls": counter("headwater_replica_pulls_total", "Pulls."),
    "empty_pulls": counter(
        "headwater_replica_empty_pulls_total", "Pulls that brought nothing new."
    ),
    "records_applied": counter("headwater_replica_records_applied_total", "Records applied."),
    "records_lost": counter("headwater_replica_records_lost_total", "LSNs that were sent as lost."),
    "records_compared": counter(
        "headwater_replica_records_compared_total",
        "Records that were sent again and are the same.",
    ),
    "records_not_comparable": counter(
        "headwater_replica_records_not_comparable_total",
        "Records that were sent again, of which the copy has no hashes.",
    ),
    "acknowledgements": counter(
        "headwater_replica_acknowledgements_total", "Acknowledgements sent."
    ),
    "apply_errors": counter("headwater_replica_apply_errors_total", "Failed applications."),
    "divergences": counter(
        "headwater_replica_divergences_total", "Times that the leader's log was another one."
    ),
    "gaps": counter("headwater_replica_gaps_total", "Answers that did not follow what was there."),
    "fenced": counter(
        "headwater_replica_fenced_total",
        "Answers of leaders that were overtaken, and refusals because of another session.",
    ),
    "retries": counter("headwater_replica_retries_total", "Retries.", by="error"),
    "bootstraps": counter(
        "headwater_replica_bootstraps_total", "Completed bootstraps.", by="source"
    ),
    "bootstraps_refused": counter(
        "headwater_replica_bootstraps_refused_total", "Bootstraps that the leader refused."
    ),
    "apply_seconds": histogram("headwater_replica_apply_seconds", "Applying a pull."),
    "reads_waited_seconds": histogram(
        "headwater_replica_read_wait_seconds", "Readers with a bookmark that were served."
    ),
    "reads_sent_elsewhere": counter(
        "headwater_replica_reads_sent_elsewhere_total", "Readers that were sent elsewhere."
    ),
}
