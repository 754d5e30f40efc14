"""What an executor does: fetches the batches of its slices ahead, and hands them over in order.

Fetching and decoding go on in the background, in the process's event loop and its threads, while
Spark takes the rows that are ready.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from headwater.buffer.consumer import ConsumedBatch, FetchHandle, UnreadableBatch
from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.consumer.delivery import ReadAhead, check_retained
from headwater.buffer.queue import Descriptor
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.core.errors import Trimmed
from headwater.spark.source.loss import lost_while_reading
from headwater.spark.source.rows import BATCH_BYTES, ROWS, Piece
from headwater.spark.source.slices import Slice

LOG: Final = logging.getLogger("headwater.spark")


class SliceReading:
    """The slices of one task."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        slices: Sequence[Slice],
        *,
        on_bad_batch: str,
        fail_on_data_loss: bool,
    ) -> None:
        self._stream = stream
        self._partition = partition
        self._slices = [one for one in slices if one.take]
        self._on_bad_batch = on_bad_batch
        self._fail_on_data_loss = fail_on_data_loss
        handle = FetchHandle.of(stream, partition)
        self._ahead = ReadAhead(handle.fetch)
        self._done = 0
        self._begun = False

    async def next_pieces(self) -> list[Piece]:
        """Pieces for one Arrow batch or a few; none at the end."""
        if not self._begun:
            self._begun = True
            self._ahead.add(one.descriptor for one in self._slices)
        pieces: list[Piece] = []
        rows = size_bytes = 0
        while self._done < len(self._slices) and rows < ROWS and size_bytes < BATCH_BYTES:
            piece = await self._next()
            if piece is not None:
                pieces.append(piece)
                rows += piece.take
                size_bytes += int(piece.batch.records.nbytes) * piece.take // len(piece.batch)
        return pieces

    async def close(self) -> None:
        """Stop fetching."""
        await self._ahead.close()

    async def _next(self) -> Piece | None:
        wanted = self._slices[self._done]
        async with explain_deletion(self._stream):
            found = await self._ahead.first()
            if not isinstance(found, ConsumedBatch):
                if not isinstance(found, UnreadableBatch):
                    raise found
                await self._bad(found)
        self._ahead.pop()
        self._done += 1
        if not isinstance(found, ConsumedBatch):
            return None
        return Piece(found, wanted.skip, wanted.take)

    async def _bad(self, error: UnreadableBatch) -> None:
        """Raises, unless it was asked to go on without such a batch."""
        lost: Descriptor = error.descriptor
        try:
            await check_retained(self._stream, self._partition, error)
        except Trimmed as trimmed:
            loss = lost_while_reading(self._stream, self._partition, lost)
            if self._fail_on_data_loss:
                raise loss from trimmed
            LOG.warning("%s", loss)
            return
        if self._on_bad_batch == "fail":
            error.add_note("In Spark: onBadBatch=deadLetter for readStream, skip for read.")
            raise error
        if self._on_bad_batch == "deadLetter":
            await write_dead_letter(self._stream, self._partition, lost, error.cause)
        LOG.warning("passed over as asked: %s", error)
