"""The producer for code that blocks: scripts, notebooks, Spark executors, any number of threads.

    with headwater.blocking.Producer("s3://bucket/root", "orders") as producer:
        producer.produce([b"a", b"b"]).result()

Calls are buffered on the caller's thread; the event loop that sends them runs on a thread that all
blocking objects of the process share.

A producer that is not closed is closed when it is dropped, or when the process ends: its event loop
is Headwater's own, and still runs then. Records that are not accepted in time are lost, and logged.
A process that is killed, or ends by `os._exit`, sends nothing more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.producer.call import (
    Columns,
    Entries,
    Headers,
    Keys,
    Operations,
    OptionalColumns,
    ProduceCall,
    Timestamps,
)
from headwater.buffer.producer.handle import BlockingHandle
from headwater.buffer.producer.producer import BaseProducer, Producer
from headwater.buffer.producer.rows import arrow_table, listed_rows
from headwater.buffer.producer.serializer import UnrecordedColumns
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import NotOpen
from headwater.core import portal, runtime
from headwater.core.errors import HeadwaterError, Refused, adding_to
from headwater.core.portal import Portal
from headwater.store import Store

EXIT_FLUSH_S: Final = 30.0
"""How long the end of a process waits, at most, until all records are accepted."""
_log: Final = logging.getLogger("headwater")


class BlockingProducer(BaseProducer):
    """Sends records to a stream, from any thread.

    `with` opens it and closes it; without one, call `open()` and `close()`.
    """

    _fate = "are sent now, in the background"

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None = None,
        *,
        producer_id: str | None = None,
        **settings: Any,
    ) -> None:
        """As `Producer`.

        A store that you pass is used on the event loop of the blocking objects: while the
        producer is open, do not use it on another event loop.
        """
        super().__init__(source, name, producer_id, settings)
        self._producer = Producer(source, name, producer_id=producer_id, **settings)
        self._producer._fate = None  # it is closed after this object is dropped
        not_open: Any = NotOpen("producer")
        self._portal: Portal = not_open

    def open(self) -> BlockingProducer:
        """Read where the stream's partitions are; returns the producer. May be repeated."""
        producer, home = self._producer, portal.shared()
        try:
            sender = home.call(producer.open_with(home))
        finally:
            # Ctrl-C may end the call after the producer was opened.
            if producer.is_open:
                self._portal = home
                OPEN_PRODUCERS.add(producer, home)
        self._attach(sender)
        return self

    def __enter__(self) -> BlockingProducer:
        return self.open()

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        with adding_to(error, "closing the producer"):
            self.close()

    def __del__(self) -> None:
        super().__del__()
        producer = getattr(self, "_producer", None)
        if producer is not None and producer.is_open:
            OPEN_PRODUCERS.close_soon(producer)

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
            clock = self._clock
            if clock.calls_left > 0:
                clock.calls_left -= 1
                now_ms = clock.now_ms
            else:
                now_ms = clock.read()
            accumulator = self._accumulator
            lock = accumulator.lock
            lock.acquire()  # `with` takes as long as all the rest of the call
            try:
                handle = accumulator.append_value(entries, keys, metadata, now_ms)
            finally:
                lock.release()
            if handle is not None:
                if self._batches.is_stirred:
                    self._portal.post(self._sender.wakeup)
                return handle  # type: ignore[return-value]
        columns = OptionalColumns(keys, headers, timestamps, operations)
        values = self._serializer.values
        return self._keep(lambda: values(entries, metadata, columns, partition), entries)

    def produce_arrow(
        self,
        data: Columns,
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> BlockingHandle:
        """Send typed columns, as `Producer.produce_arrow` does."""
        table = arrow_table(data)
        return self._keep(lambda: self._serializer.columns(table, metadata, partition), table)

    def produce_rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        metadata: bytes | None = None,
        *,
        partition: int | None = None,
    ) -> BlockingHandle:
        """Send rows of typed columns, as dicts, as `Producer.produce_rows` does."""
        listed = listed_rows(rows)
        return self._keep(lambda: self._serializer.rows(listed, metadata, partition), listed)

    def flush(self) -> None:
        """Send everything buffered, and wait until all of it is accepted."""
        self._portal.call(self._producer.flush())

    def close(self) -> None:
        """Flush and end. Raises as `flush` does; the producer is closed all the same.

        Does nothing if it is not open.
        """
        if not self._was_opened or self._accumulator.is_forked:
            return
        try:
            self._portal.call(self._producer.close())
        finally:
            # A close that was interrupted before it began can be repeated.
            if self._sender.is_closed:
                OPEN_PRODUCERS.discard(self._producer)

    def fit(self, data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
        """Record the columns of these records; returns them in the stream's columns, unsent."""
        return self._checked(lambda: self._serializer.columns(data, None, None)).batches

    def _checked(self, check: Callable[[], ProduceCall]) -> ProduceCall:
        # On the caller's thread: the event loop is to send, not to hash the keys of every thread.
        while True:
            try:
                return check()
            except UnrecordedColumns as unrecorded:
                self._portal.call(self._producer.record(unrecorded))

    def _keep(self, check: Callable[[], ProduceCall], entries: Any) -> BlockingHandle:
        accumulator = self._accumulator
        checked = self._checked(check)
        handle = accumulator.append(accumulator.arrange(checked))
        if handle is None:
            handle = self._portal.call(self._producer.append_in_line(checked, entries))
        elif self._batches.is_stirred:
            self._portal.post(self._sender.wakeup)
        assert isinstance(handle, BlockingHandle)
        return handle


class OpenProducers:
    """The blocking producers that are open in this process, to be closed with it."""

    def __init__(self) -> None:
        self._portals: dict[Producer, Portal] = {}

    def add(self, producer: Producer, home: Portal) -> None:
        """Close this one at the end of the process, unless it is closed before."""
        self._portals[producer] = home
        portal.call_at_exit(self.close_all)

    def discard(self, producer: Producer) -> None:
        self._portals.pop(producer, None)

    def close_soon(self, producer: Producer) -> None:
        """Close it in the background. For any thread."""
        home = self._portals.get(producer)
        if home is not None:
            # Refused on the loop's own thread, or after a fork: then it is closed at the end.
            with contextlib.suppress(Refused):
                home.post(lambda: runtime.spawn(self._close(producer), name="close-dropped"))

    def close_all(self, wait_s: float = EXIT_FLUSH_S) -> None:
        """Send the records that are left, for at most so long."""
        by_portal: dict[Portal, list[Producer]] = {}
        for producer, home in list(self._portals.items()):
            if home.is_open and not producer._accumulator.is_forked:
                by_portal.setdefault(home, []).append(producer)
                if pending := producer._batches.pending_rows:
                    _log.warning(
                        "a producer of stream %r was not closed: %d records are not accepted yet. "
                        "They are sent now, for at most %g s; call close(), or use it in a with",
                        producer.stream.name,
                        pending,
                        wait_s,
                    )
        for home, producers in by_portal.items():
            try:
                closing = runtime.gather_each(self._close, producers, at_once=len(producers))
                home.call(closing, timeout_s=wait_s)
            except TimeoutError:
                for producer in producers:
                    _log_lost(producer, f"not accepted within {wait_s:g} s")

    async def _close(self, producer: Producer) -> None:
        try:
            await producer.close()
        except HeadwaterError as error:
            _log_lost(producer, str(error))
        finally:
            if producer._sender.is_closed:
                self.discard(producer)


def _log_lost(producer: Producer, why: str) -> None:
    template = "a producer of stream %r, which was not closed, could not send everything: %s"
    _log.error(template, producer.stream.name, why)


OPEN_PRODUCERS: Final = OpenProducers()
