"""The uploads of one task of a transaction.

Rows are accumulated by partition and sealed into a batch at `batch_bytes`; all partitions together
hold at most PENDING_BATCHES times that. Sealed batches are encoded on threads and uploaded in the
background, IN_FLIGHT at a time; `add` waits for a slot. Uploads are not visible before the
transaction commits.

Always holds: the hold is taken before the first upload gets its id, and every id is above it. The
uploads fit a recorded version of the stream's schema, and no alter can fence off that version while
there is a hold.
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
PENDING_BATCHES: Final = 2
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
        """Rows of older schema versions are refitted before they are uploaded."""
        self._renewing: asyncio.Task[None] | None = None
        self._pending: dict[int, _PendingRows] = {}
        self._pending_bytes = 0
        self._appenders: dict[int, Appender] = {}
        self._uploads: dict[int, list[Upload | None]] = {}
        self._uploading: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self.sealed = 0
        """The number of batches sealed so far."""

    async def add(self, partition: int, records: pa.RecordBatch) -> None:
        """Add records for one partition; `Refused` if they do not fit the stream."""
        self._raise_failure()
        records = await self._fitted(records)
        version = self._stream.schema_version
        check_sizes(records)
        for piece in split(records, self._batch_bytes):
            await self._add(partition, piece, version)

    async def add_all(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        for partition, records in parts:
            await self.add(partition, records)

    async def finish(self) -> TaskUploads:
        """Upload what is left, and return all uploads for the driver."""
        for partition in list(self._pending):
            await self._seal(partition)
        if self._uploading:
            await asyncio.wait(self._uploading)
        self._stop_renewing()
        self._raise_failure()
        token = "" if self._hold is None else self._hold.token
        return TaskUploads(self._task, token, {p: _all(u) for p, u in self._uploads.items()})

    async def cancel(self) -> None:
        """Stop. The uploads are collected once the transaction's hold is gone."""
        self._stop_renewing()
        self._pending.clear()
        for upload in self._uploading:
            upload.cancel()
        if self._uploading:
            await asyncio.wait(self._uploading)

    async def _fitted(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Fit the records to the stream. New columns are recorded before any upload."""
        try:
            return self._stream.fit(records)
        except Refused:
            known, self._stream = self._stream, await self._stream.recording(records.schema)
            if self._stream.config == known.config:
                raise
            return self._stream.fit(records)

    async def _add(self, partition: int, piece: pa.RecordBatch, version: int) -> None:
        pending = self._pending.get(partition)
        if pending is not None and (
            pending.size_bytes + piece.nbytes > self._batch_bytes
            or pending.rows + piece.num_rows > limits.BATCH_MAX_ROWS
            or pending.pieces[-1].schema != piece.schema
        ):
            await self._seal(partition)
            pending = None
        if 0 < version < self._schema_floor:
            # A type was replaced. That was found when the hold was taken.
            piece, version = self._stream.refit(piece), self._stream.schema_version
        if pending is None:
            pending = self._pending[partition] = _PendingRows([], version)
        pending.pieces.append(piece)
        pending.size_bytes += piece.nbytes
        pending.rows += piece.num_rows
        self._pending_bytes += piece.nbytes
        if pending.size_bytes >= self._batch_bytes:
            await self._seal(partition)
        while self._pending_bytes > PENDING_BATCHES * self._batch_bytes:
            sizes = {one: held.size_bytes for one, held in self._pending.items()}
            await self._seal(max(sizes, key=sizes.__getitem__))

    async def _seal(self, partition: int) -> None:
        if self._hold is None:
            self._hold = await self._take_hold()
            keeping = self._holder.keep(self._hold.token)
            self._renewing = runtime.spawn(keeping, name="headwater-hold")
        pending = self._pending.pop(partition)
        self._pending_bytes -= pending.size_bytes
        self.sealed += 1
        await self._slots.acquire()
        places = self._uploads.setdefault(partition, [])
        places.append(None)
        upload = self._upload(partition, len(places) - 1, pending, self._hold)
        task = runtime.spawn(upload, name=f"sink-upload-{partition}")
        self._uploading.add(task)
        task.add_done_callback(self._upload_done)

    async def _take_hold(self) -> Hold:
        """Take the hold for everything that is accumulated.

        If a type was replaced meanwhile, the rows are fitted to the new one. If the alter that was
        to replace it has died, its reservation is withdrawn: it would block every sink.
        """
        while True:
            versions = [one.schema_version for one in self._pending.values()]
            try:
                return await self._holder.take(min(filter(None, versions), default=0))
            except TypeReplaced as replaced:
                stream = self._stream
                config = await await_schema(
                    stream.store, stream.config, replaced.floor, is_patient=False
                )
                self._stream = stream.with_config(config)
                self._schema_floor = replaced.floor
                await runtime.run_blocking(self._refit)

    def _refit(self) -> None:
        for pending in self._pending.values():
            if 0 < pending.schema_version < self._schema_floor:
                pending.pieces = [self._stream.refit(one) for one in pending.pieces]
                pending.schema_version = self._stream.schema_version
                pending.size_bytes = sum(one.nbytes for one in pending.pieces)
        self._pending_bytes = sum(one.size_bytes for one in self._pending.values())

    def _upload_done(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        if task.cancelled() or task.exception() is None:
            self._uploading.discard(task)

    async def _upload(self, partition: int, place: int, pending: _PendingRows, hold: Hold) -> None:
        batch_id, at_ms = runtime.new_ulid(above=hold.above), runtime.wall_ms()
        appender = self._appender(partition)
        data, times = await runtime.run_blocking(
            self._encode, appender, batch_id, pending.pieces, at_ms
        )
        await appender.upload(batch_id, data)
        self._uploads[partition][place] = Upload(
            batch_id, pending.rows, len(data), *times, pending.schema_version
        )

    def _encode(
        self, appender: Appender, batch_id: str, pieces: list[pa.RecordBatch], at_ms: int
    ) -> tuple[EncodedBytes, BatchTimes]:
        records = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        batch = Batch(batch_id, records, Calls.of([Call(0, at_ms, None)]))
        return appender.encode(batch, self._compression), batch.times()

    def _appender(self, partition: int) -> Appender:
        if partition not in self._appenders:
            self._appenders[partition] = self._stream.appender(partition, self._producer)
        return self._appenders[partition]

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    def _raise_failure(self) -> None:
        renewing = [self._renewing] if self._renewing is not None else []
        for task in (*self._uploading, *renewing):
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]


def check_batch_bytes(batch_bytes: int) -> None:
    if not 1 <= batch_bytes <= BATCH_BYTES_MOST:
        raise Refused(f"batchBytes is {batch_bytes:,}: it is 1 to {BATCH_BYTES_MOST:,}")


def check_writable(stream: Stream) -> None:
    """Refuse a stream that transactions cannot write to."""
    if stream.config.format == "v1":
        raise Refused(
            f"stream {stream.name!r} is in the published v1 format, which does not record producer "
            "sequences: a sink could not write exactly once. Write to a native stream (headwater "
            "stream create … --set format=native)"
        )


def split(records: pa.RecordBatch, most_bytes: int) -> list[pa.RecordBatch]:
    """The records in slices of at most `most_bytes`, or of one record."""
    if records.num_rows <= 1 or records.nbytes <= most_bytes:
        return [records] if records.num_rows else []
    half = records.num_rows // 2
    return [*split(records.slice(0, half), most_bytes), *split(records.slice(half), most_bytes)]


def _all(uploads: list[Upload | None]) -> list[Upload]:
    complete = [upload for upload in uploads if upload is not None]
    if len(complete) != len(uploads):
        raise Bug("an upload ended without saying how")
    return complete
