"""Which partition each record goes to.

The one that was asked for; else that of its key, as Kafka's client would choose; else the task's
own for the time being: records without a key stay together for a batch, and the next batch goes to
the next partition.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.partitioner import NO_PARTITION, partition_keys
from headwater.buffer.records import KEY
from headwater.buffer.stream import Stream
from headwater.core.errors import Refused


class Router:
    """Spreads the records of one task."""

    def __init__(self, stream: Stream, task: int, batch_bytes: int) -> None:
        self._stream = stream
        self._turn = task % stream.partitions
        self._batch_bytes = batch_bytes
        self._turn_bytes = 0

    def route(
        self, records: pa.RecordBatch, asked: pa.Array | None
    ) -> list[tuple[int, pa.RecordBatch]]:
        """The records by partition, within each in the order in which they came."""
        if not records.num_rows:
            return []
        chosen = None if asked is None else self._checked(asked)
        if chosen is None or chosen.null_count:
            chosen = self._by_key(records, chosen)
        if chosen is None:
            return [(self._take_turn(records.nbytes), records)]
        if chosen.null_count:
            turn = self._take_turn(records.nbytes * chosen.null_count // records.num_rows)
            chosen = pc.fill_null(chosen, turn)
        return _split(records, chosen)

    def _checked(self, asked: pa.Array) -> pa.Array:
        found, last = pc.min_max(asked).as_py(), self._stream.partitions - 1
        for number in found.values():
            if number is not None and not 0 <= number <= last:
                known = f"partitions 0 to {last}" if last else "the partition 0 alone"
                raise Refused(
                    f"stream {self._stream.name!r} has {known}, and a row asks for {number}. Leave "
                    "the column out to let the key decide"
                )
        return asked.cast(pa.int32())

    def _by_key(self, records: pa.RecordBatch, chosen: pa.Array | None) -> pa.Array | None:
        if KEY not in records.schema.names:
            return chosen
        partitions = self._stream.partitions
        if partitions == 1:
            by_key = pa.repeat(pa.scalar(0, pa.int32()), records.num_rows)
        else:
            hashed = partition_keys(records.column(KEY), partitions)
            by_key = pc.if_else(pc.equal(hashed, NO_PARTITION), pa.scalar(None, pa.int32()), hashed)
        return by_key if chosen is None else pc.coalesce(chosen, by_key)

    def _take_turn(self, size_bytes: int) -> int:
        if self._turn_bytes >= self._batch_bytes:
            self._turn, self._turn_bytes = (self._turn + 1) % self._stream.partitions, 0
        self._turn_bytes += size_bytes
        return self._turn


def _split(records: pa.RecordBatch, chosen: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
    counts = {one["values"]: one["counts"] for one in pc.value_counts(chosen).to_pylist()}
    if len(counts) == 1:
        return [(next(iter(counts)), records)]
    # A stable sort, so that the records of a partition stay in their order.
    ordered = records.take(pc.sort_indices(chosen))
    parts, start = [], 0
    for partition in sorted(counts):
        parts.append((partition, ordered.slice(start, counts[partition])))
        start += counts[partition]
    return parts
