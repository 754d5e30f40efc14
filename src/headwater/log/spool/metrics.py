"""What a spool did and how long it took: plain numbers, for whoever serves them."""

from __future__ import annotations

from collections import Counter

from headwater.core.metrics import Histogram


class SpoolMetrics:
    """Counts and durations of one spool."""

    def __init__(self) -> None:
        self.appends = 0
        self.records_written = 0
        self.frames_written = 0
        self.bytes_written = 0
        self.flushes = 0
        """Writes; each serves all appends that waited for it."""
        self.syncs = 0
        self.appends_refused: Counter[str] = Counter()
        """By reason: space, order, fenced."""
        self.segments_sealed: Counter[str] = Counter()
        """By reason: size, age, schema, hand-over."""
        self.segments_pruned = 0
        self.bytes_pruned = 0
        self.tail_reads = 0
        """Reads that were served from memory."""
        self.disk_reads = 0
        self.torn_bytes = 0
        """Cut off when the spool was opened."""
        self.flush_seconds = Histogram()
        self.sync_seconds = Histogram()
