"""The names under which the metrics of a leader's jobs and of metadata managers are exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.core.metrics import MetricDefinition, counter, gauge, histogram

JOBS: Final[Mapping[str, MetricDefinition]] = {
    "copied_segments": counter("headwater_tier_segments_copied_total", "Segments copied."),
    "copied_bytes": counter(
        "headwater_tier_copied_bytes_total", "Bytes of objects made from the local log."
    ),
    "merged_segments": counter(
        "headwater_tier_segments_merged_total", "Segments created by merging."
    ),
    "merged_bytes": counter("headwater_tier_merged_bytes_total", "Their bytes."),
    "unlisted_segments": counter(
        "headwater_tier_segments_unlisted_total", "Segments that were unlisted."
    ),
    "removed_objects": counter("headwater_tier_objects_removed_total", "Deleted objects."),
    "dropped_lsns": counter(
        "headwater_tier_lsns_dropped_total",
        "LSNs dropped from the local log because they are remote.",
    ),
    "lag_lsns": gauge(
        "headwater_tier_lag_lsns",
        "LSNs of the local log that were not remote at the end of the last round.",
    ),
    "missing_lsns": gauge(
        "headwater_tier_missing_lsns",
        "LSNs at or above the log start that are neither remote nor local.",
    ),
    "failures": counter("headwater_tier_failures_total", "Failed jobs.", by="job"),
    "succeeded_ms": gauge(
        "headwater_tier_last_success_timestamp_seconds",
        "When each job last succeeded, in seconds since 1970.",
        by="job",
        scale=0.001,
        joined="max",
    ),
}

MANAGER: Final[Mapping[str, MetricDefinition]] = {
    "events": counter(
        "headwater_tier_events_total", "Metadata events that were followed.", by="result"
    ),
    "events_of_unknown_segments": counter(
        "headwater_tier_events_of_unknown_segments_total",
        "Rejected updates of segments that are not in the log any more.",
    ),
    "events_misplaced": counter(
        "headwater_tier_events_misplaced_total",
        "Events in another metadata partition than the one of their partition.",
    ),
    "snapshots_followed": counter(
        "headwater_tier_snapshots_followed_total",
        "Snapshots applied in place of events that were deleted from the log.",
    ),
    "partitions_stopped": gauge(
        "headwater_tier_stopped_partitions",
        "Assigned metadata partitions that are stopped.",
    ),
    "partition_failures": counter(
        "headwater_tier_partition_failures_total",
        "Failures of single metadata partitions.",
        by="error",
    ),
    "subscriptions": counter(
        "headwater_tier_subscriptions_total", "Subscriptions to the event log."
    ),
    "subscription_failures": counter(
        "headwater_tier_subscription_failures_total",
        "Subscriptions that ended with an error.",
        by="error",
    ),
    "high_water_mark_failures": counter(
        "headwater_tier_high_water_mark_failures_total",
        "Requests for the end of the event log that failed.",
    ),
    "published": counter("headwater_tier_events_published_total", "Published events."),
    "publish_seconds": histogram(
        "headwater_tier_publish_seconds", "From publishing an event until it was applied here."
    ),
    "snapshots_written": counter(
        "headwater_tier_snapshots_written_total", "Snapshots written to the folder."
    ),
    "snapshots_failed": counter(
        "headwater_tier_snapshots_failed_total", "Snapshots that could not be written."
    ),
    "snapshots_damaged": counter(
        "headwater_tier_snapshots_damaged_total", "Snapshots ignored at the start."
    ),
}
