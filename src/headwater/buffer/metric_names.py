"""The names under which the metrics of producers and consumers are exported.

`PUBLISHED_…` has the names of the same metrics in the published buffer, for its dashboards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.core.metrics import MetricDefinition, counter, gauge, histogram

PRODUCER: Final[Mapping[str, MetricDefinition]] = {
    "batches_flushed": counter(
        "headwater_producer_batches_accepted_total", "Batches that were accepted."
    ),
    "entries_flushed": counter(
        "headwater_producer_records_accepted_total", "Records that were accepted."
    ),
    "bytes_flushed": counter(
        "headwater_producer_accepted_bytes_total", "Accepted bytes, before encoding."
    ),
    "bytes_written": counter(
        "headwater_producer_written_bytes_total", "Accepted bytes, as they were written."
    ),
    "flush_duration_seconds": histogram(
        "headwater_producer_flush_seconds", "From sealing a batch to its acceptance."
    ),
    "manifest_writes": counter(
        "headwater_producer_queue_writes_total", "Conditional writes to the queues."
    ),
    "manifest_conflicts": counter(
        "headwater_producer_queue_conflicts_total", "Conditional writes that lost a race."
    ),
}

PUBLISHED_PRODUCER: Final[Mapping[str, str]] = {
    "batches_flushed": "buffer.batches_flushed",
    "entries_flushed": "buffer.entries_flushed",
    "bytes_flushed": "buffer.bytes_flushed",
    "bytes_written": "buffer.bytes_written",
    "flush_duration_seconds": "buffer.flush_duration_seconds",
    "manifest_writes": 'buffer.manifest_writes{role="producer"}',
    "manifest_conflicts": 'buffer.manifest_conflicts{role="producer"}',
}

CONSUMER: Final[Mapping[str, MetricDefinition]] = {
    "batches_collected": counter(
        "headwater_consumer_batches_fetched_total", "Batches that were fetched and decoded."
    ),
    "entries_collected": counter("headwater_consumer_records_fetched_total", "Records in them."),
    "bytes_collected": counter("headwater_consumer_fetched_bytes_total", "Their encoded bytes."),
    "fetch_duration_seconds": histogram(
        "headwater_consumer_fetch_seconds", "Fetching and decoding a batch."
    ),
    "descriptors_handed_out": counter(
        "headwater_consumer_descriptors_delivered_total",
        "Descriptors of batches that were returned without fetching the batch.",
    ),
    "acks": counter("headwater_consumer_acks_total", "Acknowledged batches."),
    "dead_letters": counter(
        "headwater_consumer_dead_letters_total", "Batches that were given up as dead letters."
    ),
    "queue_length": gauge(
        "headwater_consumer_pending_batches", "Known batches that are not acknowledged."
    ),
    "consumer_lag_seconds": gauge(
        "headwater_consumer_lag_seconds",
        "Since the ingestion of the oldest known batch that is not acknowledged.",
        joined="max",
    ),
    "manifest_writes": counter(
        "headwater_consumer_queue_writes_total", "Conditional writes to the queue."
    ),
    "manifest_conflicts": counter(
        "headwater_consumer_queue_conflicts_total", "Conditional writes that lost a race."
    ),
    "gc_files_deleted": counter(
        "headwater_collector_objects_deleted_total", "Batches and chunks that were deleted."
    ),
    "gc_files_failed": counter(
        "headwater_collector_deletes_failed_total", "Objects that could not be deleted."
    ),
    "gc_passes_failed": counter(
        "headwater_collector_passes_failed_total", "Passes that ended with an error."
    ),
    "gc_duration_seconds": histogram("headwater_collector_pass_seconds", "A pass."),
}

PUBLISHED_CONSUMER: Final[Mapping[str, str]] = {
    "batches_collected": "buffer.batches_collected",
    "entries_collected": "buffer.entries_collected",
    "bytes_collected": "buffer.bytes_collected",
    "consumer_lag_seconds": "buffer.consumer_lag_seconds",
    "queue_length": "buffer.queue_length",
    "acks": "buffer.acks",
    "gc_files_deleted": "buffer.gc_files_deleted",
    "gc_files_failed": "buffer.gc_files_failed",
    "gc_duration_seconds": "buffer.gc_duration_seconds",
    "fetch_duration_seconds": "buffer.fetch_duration_seconds",
    "descriptors_handed_out": "buffer.descriptors_handed_out",
    "manifest_writes": 'buffer.manifest_writes{role="consumer"}',
    "manifest_conflicts": 'buffer.manifest_conflicts{role="consumer"}',
}

GROUP: Final[Mapping[str, MetricDefinition]] = {
    "batches": gauge("headwater_group_lag_batches", "Batches that the group has not processed."),
    "records": gauge("headwater_group_lag_records", "Records that the group has not processed."),
    "size_bytes": gauge("headwater_group_lag_bytes", "Their bytes."),
    "seconds": gauge("headwater_group_lag_seconds", "Since the oldest of them was ingested."),
    "lost": gauge(
        "headwater_group_lost_records",
        "Records that retention deleted before the group processed them.",
    ),
    "unknown": gauge(
        "headwater_group_unknown_partitions", "Partitions whose lag could not be determined."
    ),
}
"""Of a stream's groups, as `headwater lag` reads them from the store."""
