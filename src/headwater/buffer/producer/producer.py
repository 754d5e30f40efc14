"""The producer: records in, handles out.

    async with await Producer.open(store, "orders") as producer:
        handle = await producer.produce([b"a", b"b"], keys=[b"k", b"l"])
        accepted = await handle

Always holds:

- a call is kept whole or not at all: when `produce` raises or is cancelled, nothing of it was
  kept; when it returns, all of it is, and nothing but an error of its handle can lose it;
- records of one partition are accepted in the order in which the calls began, also of calls that
  run at the same time, each exactly once, whatever happens to the answers of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from headwater.buffer.producer.about import AboutProducer
from headwater.buffer.producer.engine import Engine
from headwater.buffer.producer.given import arrow_table
from headwater.buffer.producer.handle import Handle
from headwater.buffer.producer.known_stream import Unrecorded
from headwater.buffer.producer.line import Place
from headwater.buffer.producer.parcel import (
    Columns,
    Entries,
    Extras,
    Headers,
    Keys,
    Operations,
    Timestamps,
)
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.store import Store


class Producer(AboutProducer):
    """Sends records to a stream. For the tasks of one event loop."""

    def __init__(self, engine: Engine, owned: Store | None = None) -> None:
        """Use `Producer.open`. A store that is `owned` is closed with the producer."""
        self._engine = engine
        self._owned = owned
        self._accumulator = engine.accumulator
        self._wall_ms = runtime.current().wall_ms
        self._turn_ms = 0

    @classmethod
    async def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        *,
        producer_id: str | None = None,
        **settings: Any,
    ) -> Producer:
        """A producer of the stream `name` at an address or in a store, or of an open stream.

        A store that is given by its address is closed with the producer. A `producer_id` makes this
        the successor of whoever had the id: that one is fenced, and `resumed` says how far it came.
        Without one, the producer has an id of its own.
        """
        async with open_source(source) as (found, owned):
            stream = await resolve_stream(found, name, writing=True)
            return cls(await Engine.open(stream, producer_id, settings), owned)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except HeadwaterError as failed:
            if error is None:
                raise
            error.add_note(f"closing the producer failed as well: {failed}")

    async def produce(
        self,
        entries: Entries,
        metadata: bytes | None = None,
        keys: Keys = None,
        headers: Headers = None,
        timestamps: Timestamps = None,
        operations: Operations = None,
        partition: int | None = None,
    ) -> Handle:
        """Send opaque values: a sequence of bytes or None, a binary Arrow array, or one bytes.

        Keys, headers, timestamps and operations are one for each record, or a single one for all.
        `BufferFull` if there is no room for the call.
        """
        now_ms = self._wall_ms()
        if now_ms != self._turn_ms:
            # A caller that only produces never waits for anything: once in a while it lets the
            # uploads go on. Before the call is kept, since this is where it may be cancelled.
            self._turn_ms = now_ms
            with self._engine.line.place() as place:
                await runtime.sleep(0)
                if not place.is_alone:
                    return await self._values(
                        place,
                        entries,
                        metadata,
                        Extras(keys, headers, timestamps, operations),
                        partition,
                    )
        if headers is None and timestamps is None and operations is None and partition is None:
            value: Any = entries
            key: Any = keys
            if type(entries) is list and len(entries) == 1:
                value = entries[0]
                if type(keys) is list and len(keys) == 1:
                    key = keys[0]
            if (
                type(value) is bytes
                and (key is None or type(key) is bytes)
                and (metadata is None or type(metadata) is bytes)
            ):
                accumulator = self._accumulator
                handle = accumulator.take_one(value, key, metadata, now_ms)
                if handle is not None:
                    if accumulator.stirred:
                        accumulator.pump()
                    return handle
        with self._engine.line.place() as place:
            return await self._values(
                place, entries, metadata, Extras(keys, headers, timestamps, operations), partition
            )

    async def _values(
        self,
        place: Place,
        entries: Entries,
        metadata: bytes | None,
        extras: Extras,
        partition: int | None,
    ) -> Handle:
        engine = self._engine
        parcel = await engine.settled(lambda: engine.valued(entries, metadata, extras, partition))
        return await engine.keep(parcel, entries, place)

    async def produce_arrow(
        self,
        data: Columns,
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> Handle:
        """Send typed columns; `_key`, `_headers`, `_timestamp`, `_operation`, … are reserved.

        They come as a pyarrow RecordBatch or Table, or as anything that has Arrow's C stream: a
        frame of pandas or polars, a result of DuckDB. A stream is read whole before it is sent.
        """
        engine = self._engine
        with engine.line.place() as place:
            await runtime.sleep(0)
            table = data
            if not isinstance(data, pa.RecordBatch | pa.Table):
                # Once: what is checked again, after the stream recorded its columns, may not be
                # read again.
                table = await runtime.run_blocking(arrow_table, data)
            while True:
                try:
                    if engine.takes_time(table):
                        check = runtime.run_blocking(engine.typed, table, metadata, partition)
                        parcel = await check
                    else:
                        parcel = engine.typed(table, metadata, partition)
                except Unrecorded as unrecorded:
                    await engine.known.record(unrecorded)
                else:
                    return await engine.keep(parcel, table, place)

    async def produce_rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> Handle:
        """Send rows of typed columns, as dicts; reserved names as in `produce_arrow`."""
        engine = self._engine
        with engine.line.place() as place:
            await runtime.sleep(0)
            listed = list(rows) if not isinstance(rows, Mapping | str | bytes) else rows
            parcel = await engine.settled(lambda: engine.dicts(listed, metadata, partition))
            return await engine.keep(parcel, listed, place)

    async def flush(self) -> None:
        """Send what was gathered and wait until everything produced so far is accepted.

        Raises the first error among it, or of earlier calls whose handles nobody awaited.
        """
        await self._engine.flush()

    async def close(self) -> None:
        """Flush and end. Raises as `flush` does; the producer is closed all the same."""
        try:
            await self._engine.close()
        finally:
            owned = self._owned
            if owned is not None and self._engine.is_closed:
                self._owned = None
                await owned.close()
