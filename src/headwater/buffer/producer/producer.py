"""The producer: records in, handles out.

    async with Producer("s3://bucket/root", "orders") as producer:
        handle = await producer.produce([b"a", b"b"], keys=[b"k", b"l"])
        accepted = await handle

Always holds:

- a call is buffered as a whole or not at all: when `produce` raises or is cancelled, nothing of it
  is buffered; when it returns, all of it is, and it is accepted unless its handle raises an error;
- records of one partition are accepted in the order in which the calls began, also of calls that
  run at the same time, each exactly once, even if the store's answers are lost.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.producer.accumulator import BufferFull, RecordAccumulator, WaitingCall
from headwater.buffer.producer.call import (
    Columns,
    Entries,
    Headers,
    Keys,
    Operations,
    OptionalColumns,
    ProduceCall,
    Timestamps,
    is_whole_text,
)
from headwater.buffer.producer.config import ProducerMetrics, Settings, parse_settings, settings_for
from headwater.buffer.producer.handle import Handle
from headwater.buffer.producer.open_batches import CallClock, OpenBatches
from headwater.buffer.producer.rows import arrow_table, listed_rows
from headwater.buffer.producer.sender import PARTITIONS_AT_ONCE, Sender, close_appenders
from headwater.buffer.producer.serializer import (
    INLINE_ARRANGE_BYTES,
    RecordSerializer,
    UnrecordedColumns,
)
from headwater.buffer.queue.contract import Appender, ProducerState
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import NotOpen, check_source, explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import Refused, adding_to
from headwater.core.portal import Portal
from headwater.store import Store

_log: Final = logging.getLogger("headwater")


class BaseProducer:
    """What the async and the blocking producer share: the arguments, and the parts once open."""

    _sender: Sender
    _serializer: RecordSerializer
    _accumulator: RecordAccumulator
    _batches: OpenBatches
    _clock: CallClock
    _fate: str | None
    """What happens to records that are not accepted when the producer is dropped."""

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None,
        producer_id: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Check the arguments. Nothing is read or written before the producer is opened."""
        self._was_opened = False
        parts: Any = NotOpen("producer")
        self._sender = self._serializer = self._accumulator = parts
        self._batches = self._clock = parts
        check_source(source, name)
        parse_settings(settings)
        if producer_id is not None:
            _check_id(producer_id)
        self._source = source
        self._name = name

    def _attach(self, sender: Sender) -> None:
        """Use these parts from now on."""
        self._was_opened = True
        self._sender = sender
        self._serializer = sender.serializer
        self._accumulator = sender.accumulator
        self._batches = sender.accumulator.batches
        self._clock = sender.accumulator.clock

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._was_opened and not self._sender.is_closed

    @property
    def resumed(self) -> dict[int, ProducerState]:
        """By partition: the last accepted batch of the last producer under this id."""
        return {each.partition: each.resumed for each in self._sender.partitions}

    @property
    def producer_id(self) -> str:
        """The id under which batches are appended."""
        return self._sender.producer_id

    @property
    def stream(self) -> Stream:
        """The stream, with the columns that this producer last read or recorded."""
        return self._serializer.stream

    @property
    def settings(self) -> Settings:
        return self._sender.settings

    @property
    def metrics(self) -> ProducerMetrics:
        return self._sender.metrics

    def __repr__(self) -> str:
        kind = type(self).__name__
        if not self._was_opened:
            name = self._source.name if isinstance(self._source, Stream) else self._name
            return f"{kind}({name!r}, not open)"
        return f"{kind}({self.stream.name!r}, producer_id={self.producer_id!r})"

    def __del__(self) -> None:
        # A constructor that refuses its arguments leaves a producer without parts.
        if not getattr(self, "_was_opened", False) or self._fate is None:
            return
        if self._sender.is_closed or self._accumulator.is_forked:
            return
        message = (
            f"a producer of stream {self.stream.name!r} was dropped without close(): "
            f"{self._batches.pending_rows} records are not accepted, and {self._fate}"
        )
        # Python hides a ResourceWarning by default, and this one is about lost records.
        _log.warning("%s", message)
        warnings.warn(message, ResourceWarning, source=self, stacklevel=2)


class Producer(BaseProducer):
    """Sends records to a stream. For the tasks of one event loop.

    `async with` opens it and closes it; without one, await `open()` and `close()`.
    """

    _fate: str | None = "are lost when its event loop ends before they are"

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None = None,
        *,
        producer_id: str | None = None,
        **settings: Any,
    ) -> None:
        """A producer of the stream `name` at an address or in a store, or of an open stream.

        A store that is given by its address is closed with the producer. Opening with a
        `producer_id` fences the previous producer with it; `resumed` has its last accepted batches.
        Without one, the producer gets an id of its own.
        """
        super().__init__(source, name, producer_id, settings)
        self._requested_id = producer_id
        self._chosen = settings
        self._owned: Store | None = None
        self._opening = asyncio.Lock()
        self._recording = asyncio.Lock()
        self._turn_ms = 0

    async def open(self) -> Producer:
        """Read where the stream's partitions are; returns the producer. May be repeated."""
        await self.open_with(None)
        return self

    async def open_with(self, portal: Portal | None) -> Sender:
        """Open it for this event loop, or for the threads that call through the portal."""
        async with self._opening:
            if self.is_open:
                return self._sender
            if self._was_opened:
                raise Refused(f"this producer of {self.stream.name!r} is closed: create another")
            async with open_source(self._source) as (opened, owned):
                stream = await resolve_stream(opened, self._name, writing=True)
                sender = await open_sender(stream, self._requested_id, self._chosen, portal)
                self._owned = owned
            self._attach(sender)
            return sender

    async def __aenter__(self) -> Producer:
        return await self.open()

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        with adding_to(error, "closing the producer"):
            await self.close()

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

        Keys, headers, timestamps and operations: one for each record, or one for all records.
        `BufferFull` if there is no room for the call.
        """
        clock = self._clock
        if clock.calls_left > 0:
            clock.calls_left -= 1
            now_ms = clock.now_ms
        elif (now_ms := clock.read()) != self._turn_ms:
            # A caller that only produces never waits for anything: once a millisecond it lets the
            # uploads continue. Before the call is appended, since here it may be cancelled.
            self._turn_ms = now_ms
            with self._accumulator.line_up() as call:
                await runtime.sleep(0)
                if not call.is_alone:
                    columns = OptionalColumns(keys, headers, timestamps, operations)
                    return await self._produce(call, entries, metadata, columns, partition)
        if headers is None and timestamps is None and operations is None and partition is None:
            handle = self._accumulator.append_value(entries, keys, metadata, now_ms)
            if handle is not None:
                if self._batches.is_stirred:
                    self._sender.wakeup()
                return handle
        with self._accumulator.line_up() as call:
            columns = OptionalColumns(keys, headers, timestamps, operations)
            return await self._produce(call, entries, metadata, columns, partition)

    async def _produce(
        self,
        call: WaitingCall,
        entries: Entries,
        metadata: bytes | None,
        columns: OptionalColumns,
        partition: int | None,
    ) -> Handle:
        values = self._serializer.values
        checked = await self._checked(lambda: values(entries, metadata, columns, partition))
        return await self.append(checked, entries, call)

    async def produce_arrow(
        self,
        data: Columns,
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> Handle:
        """Send typed columns; `_key`, `_headers`, `_timestamp`, `_operation`, … are reserved.

        `columns` is a pyarrow RecordBatch or Table, or any object with Arrow's C stream: a
        frame of pandas or polars, a result of DuckDB. A stream is read whole before it is sent.
        """
        serializer = self._serializer
        with self._accumulator.line_up() as call:
            await runtime.sleep(0)
            # Once: a stream cannot be read a second time, when the call is checked again.
            if isinstance(data, pa.RecordBatch | pa.Table):
                table = arrow_table(data)
            else:
                table = await runtime.run_blocking(arrow_table, data)
            checked = await self._checked(
                lambda: serializer.columns(table, metadata, partition),
                in_thread=serializer.takes_time(table),
            )
            return await self.append(checked, table, call)

    async def produce_rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> Handle:
        """Send rows of typed columns, as dicts; reserved names as in `produce_arrow`."""
        with self._accumulator.line_up() as call:
            await runtime.sleep(0)
            listed = listed_rows(rows)
            checked = await self._checked(
                lambda: self._serializer.rows(listed, metadata, partition)
            )
            return await self.append(checked, listed, call)

    async def flush(self) -> None:
        """Send everything buffered, and wait until all of it is accepted.

        Raises the first error of these calls, or of earlier ones whose handle did not raise it.
        """
        await self._sender.flush()

    async def close(self) -> None:
        """Flush and end. Raises as `flush` does; the producer is closed all the same.

        Does nothing if it is not open.
        """
        if not self._was_opened:
            return
        try:
            await self._sender.close()
        finally:
            owned = self._owned
            if owned is not None and self._sender.is_closed:
                self._owned = None
                await owned.close()

    async def _checked(
        self, check: Callable[[], ProduceCall], *, in_thread: bool = False
    ) -> ProduceCall:
        while True:
            try:
                return await runtime.run_blocking(check) if in_thread else check()
            except UnrecordedColumns as unrecorded:
                await self.record(unrecorded)

    # For the blocking producer as well

    async def record(self, unrecorded: UnrecordedColumns) -> None:
        """Record the columns that a call adds to the stream; then the call can be checked again."""
        async with self._recording:
            self._accumulator.check_open()
            if self._serializer.stream is unrecorded.stream:  # else it was recorded meanwhile
                await self._serializer.record(unrecorded)
                if self.stream.is_opaque:
                    self._accumulator.takes_values = True

    async def append_in_line(self, checked: ProduceCall, entries: Any) -> Handle:
        with self._accumulator.line_up() as call:
            return await self.append(checked, entries, call)

    async def append(self, checked: ProduceCall, entries: Any, call: WaitingCall) -> Handle:
        """Append a checked call in its turn; `BufferFull` if there is no room for it."""
        accumulator = self._accumulator
        if checked.size_bytes > INLINE_ARRANGE_BYTES and accumulator.takes_time(checked):
            await runtime.run_blocking(accumulator.arrange, checked)
        else:
            accumulator.arrange(checked)
        handle = accumulator.append(checked, in_line=True) if call.is_first else None
        if handle is None:
            handle = await self._wait_for_room(checked, entries, call)
        if self._batches.is_stirred:
            self._sender.wakeup()
        return handle

    async def _wait_for_room(self, checked: ProduceCall, entries: Any, call: WaitingCall) -> Handle:
        settings, accumulator = self.settings, self._accumulator

        def full() -> str:
            return (
                f"the buffer holds {accumulator.held_bytes:,} of {settings.buffer_bytes:,} bytes "
                f"and {accumulator.held_calls:,} of {settings.buffer_calls:,} calls that are not "
                f"accepted yet; this call has {checked.size_bytes:,} bytes"
            )

        wait_ms = settings.max_block_ms
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                while True:
                    if call.is_first or accumulator.refusal is not None:
                        handle = accumulator.append(checked, in_line=True)
                        if handle is not None:
                            return handle
                        # Batches that are not full are sent at once: their room is needed.
                        self._sender.seal_all()
                        if settings.on_full == "fail":
                            why = f"{full()}. Try again later, or produce more slowly"
                            raise BufferFull(why, entries=entries)
                    call.turn.clear()
                    await call.turn.wait()
        except TimeoutError:
            why = f"no room within {wait_ms:,} ms (max_block_ms): {full()}"
            if not call.is_first:
                why = f"the calls before this one took more than {wait_ms:,} ms; {full()}"
            raise BufferFull(why, entries=entries) from None


async def open_sender(
    stream: Stream,
    producer_id: str | None,
    options: Mapping[str, Any],
    portal: Portal | None = None,
) -> Sender:
    """Fence the last producer under the id in all partitions, and read what it had accepted."""
    settings = settings_for(stream, options)
    chosen = runtime.new_ulid() if producer_id is None else producer_id

    async def one(partition: int) -> tuple[Appender, ProducerState]:
        appender = stream.appender(partition, chosen)
        async with explain_deletion(stream):
            return appender, await appender.open()

    outcomes = await runtime.gather_outcomes(
        one, range(stream.partitions), at_once=PARTITIONS_AT_ONCE
    )
    opened = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            appenders = [appender for appender, _ in opened]
            await close_appenders(appenders, for_good=producer_id is None)
            raise outcome
    accumulator = RecordAccumulator(
        settings,
        stream.partitions,
        takes_values=stream.is_opaque,
        takes_keys=stream.config.format != "v1",
        portal=portal,
    )
    serializer, resumable = RecordSerializer(stream), producer_id is not None
    return Sender(settings, accumulator, serializer, opened, chosen, resumable=resumable)


def _check_id(producer_id: Any) -> None:
    if not isinstance(producer_id, str):
        raise Refused(f"producer_id is {producer_id!r}: it is text, such as 'binlog-7'")
    if not is_whole_text(producer_id):
        raise Refused(
            f"producer_id is {producer_id!r}: it has a lone surrogate, which is not valid text"
        )
