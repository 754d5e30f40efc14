"""A task's uploads: rows in, batches out, while the task reads on.

Rows are gathered by partition and sealed when there are `batch_bytes` of them; of what is gathered
and not sealed there is never more than GATHERED_BATCHES times that, however many partitions there
are. Sealed batches are encoded on threads and uploaded beside the caller, IN_FLIGHT at a time;
`add` waits for room. Nobody sees an upload before its transaction commits.

Always holds: the hold is taken before the first upload has its id, and every id is above it; what
is uploaded fits what the stream's register says that it carries, in a version that no alter has
fenced off: none can while there is a hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from headwater.buffer.batch import Batch, BatchTimes, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import Appender, EncodedBytes
from headwater.buffer.records import check_sizes
from headwater.buffer.stream import Stream
from headwater.buffer.stream.schema import await_schema
from headwater.buffer.transaction.commit import TaskUploads
from headwater.buffer.transaction.holds import TIMEOUT_MS, Hold, Holder, TypeReplaced
from headwater.buffer.transaction.record import CommitAttempt, Upload, producer_id
from headwater.core import limits, runtime
from headwater.core.errors import Bug, Refused

BATCH_BYTES: Final = 32 * limits.MIB
BATCH_BYTES_MOST: Final = limits.BATCH_MAX_BYTES // 2
GATHERED_BATCHES: Final = 2
IN_FLIGHT: Final = 3


class _PendingRows(msgspec.Struct):
    pieces: list[pa.RecordBatch]
    schema_version: int
    size_bytes: int = 0
    rows: int = 0


class Uploader:
    """Uploads what one task of a transaction writes."""

    def __init__(
        self,
        stream: Stream,
        attempt: CommitAttempt,
        task: int,
        *,
        timeout_ms: int = TIMEOUT_MS,
        batch_bytes: int = BATCH_BYTES,
        compression: Compression | None = None,
    ) -> None:
        check_writable(stream)
        check_batch_bytes(batch_bytes)
        self._stream = stream
        self._task = task
        self._batch_bytes = batch_bytes
        self._compression = stream.compression if compression is None else compression
        self._producer = producer_id(attempt.application)
        self._holder = Holder(stream, attempt, timeout_ms)
        self._hold: Hold | None = None
        self._schema_floor = 0
        """No rows of an older version of the schema are uploaded."""
        self._renewing: asyncio.Task[None] | None = None
        self._gathered: dict[int, _PendingRows] = {}
        self._gathered_bytes = 0
        self._doors: dict[int, Appender] = {}
        self._uploads: dict[int, list[Upload | None]] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self.sealed = 0
        """How many batches were sealed so far."""

    async def add(self, partition: int, records: pa.RecordBatch) -> None:
        """Take records for one partition; `Refused` if they do not fit what the stream carries."""
        self._raise_failure()
        records = await self._fitted(records)
        version = self._stream.schema_version
        check_sizes(records)
        for piece in split(records, self._batch_bytes):
            await self._add(partition, piece, version)

    async def add_all(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Take records for several partitions."""
        for partition, records in parts:
            await self.add(partition, records)

    async def finish(self) -> TaskUploads:
        """Upload what is left; what was uploaded, for the driver."""
        for partition in list(self._gathered):
            await self._seal(partition)
        if self._flights:
            await asyncio.wait(self._flights)
        self._stop_renewing()
        self._raise_failure()
        token = "" if self._hold is None else self._hold.token
        return TaskUploads(self._task, token, {p: _all(u) for p, u in self._uploads.items()})

    async def cancel(self) -> None:
        """Stop. What was uploaded is collected once the transaction's hold is gone."""
        self._stop_renewing()
        self._gathered.clear()
        for flight in self._flights:
            flight.cancel()
        if self._flights:
            await asyncio.wait(self._flights)

    async def _fitted(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records as the stream carries them. That it does is recorded before any upload."""
        try:
            return self._stream.fit(records)
        except Refused:
            known, self._stream = self._stream, await self._stream.recording(records.schema)
            if self._stream.config == known.config:
                raise
            return self._stream.fit(records)

    async def _add(self, partition: int, piece: pa.RecordBatch, version: int) -> None:
        """Gather records that were fitted to this version of the schema."""
        gathered = self._gathered.get(partition)
        if gathered is not None and (
            gathered.size_bytes + piece.nbytes > self._batch_bytes
            or gathered.rows + piece.num_rows > limits.BATCH_MAX_ROWS
            or gathered.pieces[-1].schema != piece.schema
        ):
            await self._seal(partition)
            gathered = None
        if 0 < version < self._schema_floor:
            # A type was replaced: learnt when the hold was taken, for what was gathered before.
            piece, version = self._stream.refit(piece), self._stream.schema_version
        if gathered is None:
            gathered = self._gathered[partition] = _PendingRows([], version)
        gathered.pieces.append(piece)
        gathered.size_bytes += piece.nbytes
        gathered.rows += piece.num_rows
        self._gathered_bytes += piece.nbytes
        if gathered.size_bytes >= self._batch_bytes:
            await self._seal(partition)
        while self._gathered_bytes > GATHERED_BATCHES * self._batch_bytes:
            sizes = {one: held.size_bytes for one, held in self._gathered.items()}
            await self._seal(max(sizes, key=sizes.__getitem__))

    async def _seal(self, partition: int) -> None:
        if self._hold is None:
            self._hold = await self._take_hold()
            keeping = self._holder.keep(self._hold.token)
            self._renewing = runtime.spawn(keeping, name="headwater-hold")
        gathered = self._gathered.pop(partition)
        self._gathered_bytes -= gathered.size_bytes
        self.sealed += 1
        await self._slots.acquire()
        places = self._uploads.setdefault(partition, [])
        places.append(None)
        flight = self._upload(partition, len(places) - 1, gathered, self._hold)
        task = runtime.spawn(flight, name=f"sink-upload-{partition}")
        self._flights.add(task)
        task.add_done_callback(self._landed)

    async def _take_hold(self) -> Hold:
        """The hold, for everything that is gathered, of whichever partition.

        If a type was replaced since, rows are fitted to the present one; if an alter that was to
        replace it does not go on, it is withdrawn. Else one that died would keep out every sink.
        """
        while True:
            versions = [one.schema_version for one in self._gathered.values()]
            try:
                return await self._holder.take(min(filter(None, versions), default=0))
            except TypeReplaced as replaced:
                stream = self._stream
                found = await await_schema(
                    stream.store, stream.config, replaced.floor, is_patient=False
                )
                self._stream = stream.with_config(found)
                self._schema_floor = replaced.floor
                await runtime.run_blocking(self._refit)

    def _refit(self) -> None:
        for gathered in self._gathered.values():
            if 0 < gathered.schema_version < self._schema_floor:
                gathered.pieces = [self._stream.refit(one) for one in gathered.pieces]
                gathered.schema_version = self._stream.schema_version
                gathered.size_bytes = sum(one.nbytes for one in gathered.pieces)
        self._gathered_bytes = sum(one.size_bytes for one in self._gathered.values())

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if task.cancelled() or task.exception() is None:
            self._flights.discard(task)

    async def _upload(self, partition: int, place: int, gathered: _PendingRows, hold: Hold) -> None:
        batch_id, at_ms = runtime.new_ulid(above=hold.above), runtime.wall_ms()
        door = self._door(partition)
        data, times = await runtime.run_blocking(
            self._encode, door, batch_id, gathered.pieces, at_ms
        )
        await door.upload(batch_id, data)
        self._uploads[partition][place] = Upload(
            batch_id, gathered.rows, len(data), *times, gathered.schema_version
        )

    def _encode(
        self, door: Appender, batch_id: str, pieces: list[pa.RecordBatch], at_ms: int
    ) -> tuple[EncodedBytes, BatchTimes]:
        records = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        batch = Batch(batch_id, records, Calls.of([Call(0, at_ms, None)]))
        return door.encode(batch, self._compression), batch.times()

    def _door(self, partition: int) -> Appender:
        if partition not in self._doors:
            self._doors[partition] = self._stream.appender(partition, self._producer)
        return self._doors[partition]

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    def _raise_failure(self) -> None:
        """What went wrong beside the caller: an upload, or the hold is gone."""
        beside = [self._renewing] if self._renewing is not None else []
        for task in (*self._flights, *beside):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]


def check_batch_bytes(batch_bytes: int) -> None:
    """Refuse a size that batches cannot have."""
    if not 1 <= batch_bytes <= BATCH_BYTES_MOST:
        raise Refused(f"batchBytes is {batch_bytes:,}: it is 1 to {BATCH_BYTES_MOST:,}")


def check_writable(stream: Stream) -> None:
    """Refuse a stream that transactions cannot write to."""
    if stream.config.format == "v1":
        raise Refused(
            f"stream {stream.name!r} is in the published v1 format, which has no marks of "
            "producers: a sink could not write exactly once. Write to a native stream "
            "(headwater stream create … --set format=native)"
        )


def split(records: pa.RecordBatch, most_bytes: int) -> list[pa.RecordBatch]:
    """The records in pieces of at most so many bytes, or of one record."""
    if records.num_rows <= 1 or records.nbytes <= most_bytes:
        return [records] if records.num_rows else []
    half = records.num_rows // 2
    return [*split(records.slice(0, half), most_bytes), *split(records.slice(half), most_bytes)]


def _all(uploads: list[Upload | None]) -> list[Upload]:
    found = [upload for upload in uploads if upload is not None]
    if len(found) != len(uploads):
        raise Bug("an upload ended without saying how")
    return found
