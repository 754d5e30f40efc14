"""What a producer knows of the columns of its stream, and how it learns more.

A call is checked against that, without a request. If it does not fit, the stream's register comes
first: it may say more by now, and what is new is recorded there before the call is kept.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import msgspec
import pyarrow as pa

from headwater.buffer.producer.parcel import Parcel
from headwater.buffer.records import RESERVED, VALUE
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.stream.schema import await_schema
from headwater.core.errors import (
    Conflict,
    Denied,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

OPAQUE: Final = pa.schema([(VALUE, RESERVED[VALUE])])
NOTHING: Final = pa.schema([])
"""Records of which nothing has to be recorded."""


class Unrecorded(Exception):
    """A call does not fit what is known of its stream, which may have changed, or may change."""

    def __init__(self, stream: Stream, records: pa.Schema, refusal: Refused | None = None) -> None:
        super().__init__(f"not recorded of {stream.name!r}: {', '.join(records.names)}")
        self.stream = stream
        """As the call found it."""
        self.records = records
        self.refusal = refusal
        """What the caller hears, if the stream is still as the call found it."""


class Owner(Protocol):
    """The producer."""

    def check_open(self) -> None:
        """Raise why nothing is taken any more, if nothing is."""

    def found_opaque(self) -> None:
        """The stream carries opaque values."""

    async def explain(self, error: HeadwaterError) -> HeadwaterError:
        """The error, or what is behind it."""


def fit_parcel(parcel: Parcel, stream: Stream) -> None:
    """Put a call's records into the columns of the stream; `Unrecorded` if they do not fit."""
    try:
        parcel.batches = [stream.fit(batch) for batch in parcel.batches]
    except Refused as refusal:
        raise Unrecorded(stream, parcel.batches[0].schema, refusal) from refusal
    parcel.schema_version = stream.schema_version


class KnownStream:
    """The stream of one producer. `stream` may be read from any thread."""

    def __init__(self, stream: Stream, owner: Owner) -> None:
        self.stream = stream
        self._owner = owner
        self._recording = asyncio.Lock()

    async def record(self, unrecorded: Unrecorded) -> None:
        """Record what a call brings to the stream, and learn what others recorded.

        Raises the refusal of the call, if nothing new was learnt either.
        """
        async with self._recording:
            self._owner.check_open()
            if self.stream is not unrecorded.stream:
                return  # learnt meanwhile: the call is checked against that
            before = self.stream.config
            try:
                found = (await self.stream.recording(unrecorded.records)).config
            except Conflict as error:
                raise await self._owner.explain(NotFound(str(error))) from error
            except Denied as error:
                raise Denied(
                    f"stream {self.stream.name!r}: a call brings what is not recorded of it, and "
                    f"its stream.json may not be written from here; nothing of the call was kept. "
                    f"Declare its columns: {self.stream.alter_command} ({error})"
                ) from error
            except (Unavailable, OutcomeUnknown) as error:
                # Recorded or not, it says nothing of these records: the call can be repeated.
                raise Unavailable(
                    f"stream {self.stream.name!r}: what it carries could not be recorded, so "
                    f"nothing of this call was kept; give it again ({error})"
                ) from error
            is_same = (found.shape, found.schemas) == (before.shape, before.schemas)
            if is_same and unrecorded.refusal is not None:
                raise unrecorded.refusal
            self._learn(found)

    async def learn_schema(self, floor: int) -> None:
        """Learn the stream's schema, from this version on; wait for it, or withdraw it."""
        if self.stream.schema_version < floor:
            before = self.stream.config
            self._learn(await await_schema(self.stream.store, before, floor, is_patient=True))

    def refit(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Records that were fitted to an older schema, under the present one, and its version."""
        stream = self.stream
        return stream.refit(records), stream.schema_version

    def _learn(self, found: StreamConfig) -> None:
        # No other setting: a producer has as many lanes as it was opened with.
        config = msgspec.structs.replace(
            self.stream.config, shape=found.shape, schemas=found.schemas
        )
        self.stream = self.stream.with_config(config)
        if self.stream.is_opaque:
            self._owner.found_opaque()
