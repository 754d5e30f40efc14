"""What is said of records that are wanted and went with the retention."""

from __future__ import annotations

import shlex

from headwater.buffer.consumer import QueuePosition
from headwater.buffer.queue import Descriptor
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import UNLIMITED
from headwater.core.errors import RolledBack, Trimmed
from headwater.spark.source.offset import Part


def lost_before(part: Part, wanted: QueuePosition, oldest: QueuePosition, url: str) -> Trimmed:
    """A query wants to go on at a place that is gone."""
    gone = oldest.lsn - wanted.lsn
    return Trimmed(
        f"{part}: data loss. Wanted from offset {wanted.lsn} on, and the oldest retained record is "
        f"{oldest.lsn}: {gone:,} records were acknowledged by the owner of the stream, and went "
        "with its retention, or were truncated, before this query read them. "
        + _cure(url, part.stream),
        floor=oldest.lsn,
    )


def lost_while_reading(stream: Stream, partition: int, lost: Descriptor) -> Trimmed:
    """A batch went while a task was about to read it."""
    kept_ms = stream.config.retention_ms
    kept = "for ever" if kept_ms == UNLIMITED else f"for {kept_ms / 3_600_000:,.1f} h"
    return Trimmed(
        f"{Part(stream.name, partition)}: data loss. Wanted offsets {lost.first_lsn} to "
        f"{lost.last_lsn}, which went with the retention (the stream keeps what is acknowledged "
        f"{kept}) while they were to be read. " + _cure(stream.store.url, stream.name),
        floor=lost.last_lsn + 1,
    )


def beyond_the_end(part: Part, wanted: QueuePosition, end: QueuePosition, whose: str) -> RolledBack:
    """A query wants to go on at a place that the stream has not come to."""
    return RolledBack(
        f"{part}: {whose} is at offset {wanted.lsn}, and the next record of the stream will be "
        f"{end.lsn}: the stream was restored to an earlier state, or records that were accepted "
        "are gone. Put back what is missing; or give the query a new checkpoint, a groupId of its "
        "own, and the startingOffsets to read from"
    )


def _cure(url: str, stream: str) -> str:
    return (
        "To go on with what is left: failOnDataLoss=false. To keep more from here on: headwater "
        f"stream alter {shlex.quote(url)} {stream} --set retention=30d"
    )
