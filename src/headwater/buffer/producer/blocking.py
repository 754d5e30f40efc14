"""The producer for code that blocks: scripts, notebooks, Spark executors, any number of threads.

    with BlockingProducer.open("s3://bucket/root", "orders") as producer:
        producer.produce([b"a", b"b"]).result()

Calls are kept on the caller's own thread; the event loop that uploads them runs on a thread that
all blocking fronts of the process share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from headwater.buffer.producer.about import AboutProducer
from headwater.buffer.producer.engine import Engine
from headwater.buffer.producer.given import arrow_table
from headwater.buffer.producer.handle import Acceptance, Handle
from headwater.buffer.producer.known_stream import Unrecorded
from headwater.buffer.producer.parcel import (
    Columns,
    Entries,
    Extras,
    Headers,
    Keys,
    Operations,
    Parcel,
    Timestamps,
)
from headwater.buffer.producer.unclosed import UNCLOSED
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import portal, runtime
from headwater.core.errors import HeadwaterError
from headwater.core.portal import Portal
from headwater.store import Store


class BlockingHandle(Handle, eq=False, gc=False, kw_only=True):
    """The outcome of one produce call; `result()` waits for it."""

    _portal: Portal

    def result(self, timeout: float | None = None) -> Acceptance:
        """Wait until all records are accepted, for at most `timeout` seconds.

        `TimeoutError` leaves them on their way. Named as `concurrent.futures` names it.
        """
        return self._portal.call(self.wait(), timeout_s=timeout)


class BlockingProducer(AboutProducer):
    """Sends records to a stream, from any thread."""

    def __init__(self, engine: Engine, home: Portal, owned: Store | None) -> None:
        self._engine = engine
        self._accumulator = engine.accumulator
        self._portal = home
        self._owned = owned
        self._wall_ms = runtime.current().wall_ms

    @classmethod
    def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        *,
        producer_id: str | None = None,
        **settings: Any,
    ) -> BlockingProducer:
        """A producer of the stream `name` at an address or in a store, or of an open stream.

        A store that is handed in is used on the loop of the blocking fronts: while the producer is
        open, do not use it on another event loop.
        """
        home = portal.shared()

        async def opened() -> tuple[Engine, Store | None]:
            async with open_source(source) as (found, owned):
                stream = await resolve_stream(found, name, writing=True)
                make = functools.partial(BlockingHandle, _portal=home)
                return await Engine.open(stream, producer_id, settings, make), owned

        engine, owned = home.call(opened())
        UNCLOSED.watch(engine, home, owned)
        return cls(engine, home, owned)

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except HeadwaterError as failed:
            if error is None:
                raise
            error.add_note(f"closing the producer failed as well: {failed}")

    def __del__(self) -> None:
        super().__del__()
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.is_closed:
            UNCLOSED.dropped(engine)

    def _fate(self) -> str:
        return "are sent now, in the background"

    def produce(
        self,
        entries: Entries,
        metadata: bytes | None = None,
        keys: Keys = None,
        headers: Headers = None,
        timestamps: Timestamps = None,
        operations: Operations = None,
        partition: int | None = None,
    ) -> BlockingHandle:
        """Send opaque values, as `Producer.produce` does; waits only while the buffer is full."""
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
                handle = self._accumulator.take_one_anywhere(value, key, metadata, self._wall_ms())
                if handle is not None:
                    if self._accumulator.stirred:
                        self._portal.post(self._accumulator.pump)
                    return handle  # type: ignore[return-value]
        extras = Extras(keys, headers, timestamps, operations)
        return self._keep(
            lambda: self._engine.valued(entries, metadata, extras, partition), entries
        )

    def produce_arrow(
        self,
        data: Columns,
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> BlockingHandle:
        """Send typed columns, as `Producer.produce_arrow` does."""
        table = arrow_table(data)
        return self._keep(lambda: self._engine.typed(table, metadata, partition), table)

    def produce_rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> BlockingHandle:
        """Send rows of typed columns, as dicts, as `Producer.produce_rows` does."""
        listed = list(rows) if not isinstance(rows, Mapping | str | bytes) else rows
        return self._keep(lambda: self._engine.dicts(listed, metadata, partition), listed)

    def flush(self) -> None:
        """Send what was gathered and wait until everything produced so far is accepted."""
        self._portal.call(self._engine.flush())

    def close(self) -> None:
        """Flush and end. Raises as `flush` does; the producer is closed all the same."""
        if self._engine.is_forked:
            return
        try:
            self._portal.call(self._engine.close())
        finally:
            # Whoever is interrupted before it is closed closes it again.
            if self._engine.is_closed:
                UNCLOSED.closed(self._engine)
                owned, self._owned = self._owned, None
                if owned is not None:
                    self._portal.call(owned.close())

    def fit(self, data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
        """Records as the stream carries them, after it says that it does. Sends none of them."""
        return self._settled(lambda: self._engine.typed(data, None, None)).batches

    def _settled(self, check: Callable[[], Parcel]) -> Parcel:
        # Here and not over there: the loop is to upload, not to hash the keys of every thread.
        while True:
            try:
                return check()
            except Unrecorded as unrecorded:
                self._portal.call(self._engine.known.record(unrecorded))

    def _keep(self, check: Callable[[], Parcel], entries: Any) -> BlockingHandle:
        accumulator = self._accumulator
        parcel = self._settled(check)
        handle = accumulator.take(accumulator.arrange(parcel), self._wall_ms())
        if handle is None:
            handle = self._portal.call(self._wait(parcel, entries))
        elif accumulator.stirred:
            self._portal.post(accumulator.pump)
        assert isinstance(handle, BlockingHandle)
        return handle

    async def _wait(self, parcel: Parcel, entries: Any) -> Handle:
        with self._engine.line.place() as place:
            return await self._engine.keep(parcel, entries, place)
