"""`Stream`: the handle on an open stream, and the queues of its partitions.

Functions that take a stream also take a store or an address. `open_source` and `borrow_store`
turn an address into a store and close it again.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater.buffer import layout
from headwater.buffer.queue.contract import (
    Appender,
    Collector,
    Counters,
    QueueConsumer,
    QueueReader,
)
from headwater.buffer.queue.native.chunk_log import ChunkLog, create_native_queue
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.reader import NativeReader
from headwater.buffer.queue.native.tail import QueueTail, write_note
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.collector import V1Collector
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.reader import V1Queue, V1Reader
from headwater.buffer.queue.v1.side_object import create_v1_queue
from headwater.buffer.stream.config import (
    BATCH_BYTES,
    LINGER_LOCAL_MS,
    LINGER_MS,
    UNLIMITED,
    StreamConfig,
    StreamRegister,
    check_store,
    check_versions,
)
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused, Trimmed
from headwater.core.settings import whole_number
from headwater.store import Store, open_store
from headwater.store.address import parse_address

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.compression import Compression
    from headwater.buffer.stream.fitting import SchemaFitter


WRITE_PACE_S: Final = {"gs": 1.0}
"""The least time between two writes of one object, by URL scheme: Google asks for a second."""


class Stream:
    """A stream, as its register described it when it was opened. Cheap, and can be pickled."""

    def __init__(self, store: Store, config: StreamConfig) -> None:
        self.store = store
        self.config = config

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, id={self.id!r}, partitions={self.partitions})"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def id(self) -> str:
        """A UUID: no earlier or later stream of the same name has it."""
        return self.config.id

    @property
    def partitions(self) -> int:
        return self.config.partitions

    @property
    def compression(self) -> Compression:
        from headwater.buffer.compression import Compression

        return Compression[self.config.compression.upper()]

    @property
    def linger_ms(self) -> int:
        """How long a producer waits before it flushes."""
        default = LINGER_LOCAL_MS if self.store.is_local else LINGER_MS
        return default if self.config.linger_ms is None else self.config.linger_ms

    @property
    def batch_bytes(self) -> int:
        """How much a producer accumulates before it flushes."""
        return BATCH_BYTES if self.config.batch_bytes is None else self.config.batch_bytes

    @property
    def schema_version(self) -> int:
        """The number of the latest schema; 0 if there are no columns."""
        return self.config.schemas[-1].version if self.config.schemas else 0

    @functools.cached_property
    def schema(self) -> pa.Schema | None:
        """The declared or inferred columns, without the reserved ones; None if there are none."""
        if not self.config.schemas:
            return None
        from headwater.buffer.stream.schema import arrow_schema

        return arrow_schema(self.config.schemas[-1])

    @property
    def is_opaque(self) -> bool:
        """Whether it carries opaque values. False before the first record."""
        return self.config.is_opaque

    @property
    def alter_command(self) -> str:
        """The command that declares a schema."""
        return f"headwater stream alter {shlex.quote(self.store.url)} {self.name} --schema FILE"

    @functools.cached_property
    def _fitter(self) -> SchemaFitter:
        from headwater.buffer.stream.fitting import SchemaFitter

        origin = self.config.schemas[-1].origin
        return SchemaFitter(self.name, self.schema_version, self.schema, origin, self.alter_command)

    def appender(self, partition: int, producer_id: str) -> Appender:
        """The queue's interface for a producer."""
        prefix = self._writable_queue(partition)
        if self.config.format == "v1":
            from headwater.buffer.queue.v1.appender import V1Appender

            return V1Appender(self._v1_queue(prefix))
        from headwater.buffer.queue.native.appender import NativeAppender

        pace_s = WRITE_PACE_S.get(self.store.stats.scheme, 0.0)
        return NativeAppender(self.store, prefix, self.id, producer_id, pace_s=pace_s)

    def queue_consumer(self, partition: int) -> QueueConsumer:
        """The queue's interface for the owner of a partition."""
        prefix = self._writable_queue(partition)
        if self.config.format == "v1":
            return V1Consumer(self._v1_queue(prefix))
        return NativeConsumer(self.store, prefix, self.id)

    def queue_reader(self, partition: int) -> QueueReader:
        """The queue's interface for readers, which fences nothing."""
        self.check_partition(partition)
        prefix = queue_prefix(self.config, partition)
        if self.config.format == "v1":
            return V1Reader(self._v1_queue(prefix))
        return NativeReader(self.store, prefix, self.id)

    def collector(self, partition: int) -> Collector:
        prefix = self._writable_queue(partition)
        if self.config.format == "v1":
            return V1Collector(self._v1_queue(prefix))
        return NativeCollector(self.store, prefix, self.id)

    def retention(self) -> Retention:
        """The retention settings. `retention_of` adds what groups and open transactions hold.

        Nodes acknowledge a batch once the tier has it: then only the grace period applies.
        """
        config, retention_ms, retention_bytes = self.config, None, None
        if config.consumer == "nodes":
            retention_ms = config.gc_grace_ms
        elif config.retention_ms != UNLIMITED:
            retention_ms = config.retention_ms
        if config.consumer != "nodes" and config.retention_bytes != UNLIMITED:
            retention_bytes = config.retention_bytes
        return Retention(
            retention_ms,
            retention_bytes,
            config.gc_grace_ms,
            policy=config.policy,
            required_group=config.required_group,
            # Nothing, before the position of the group is known.
            below_lsn=None if config.required_group is None else 1,
            only_acknowledged=config.consumer == "nodes",
        )

    def fit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records in the stream's columns: reordered, widened, nullable ones added.

        `Refused` shows the difference column by column. New columns are recorded first
        (`recording`).
        """
        if self.config.schemas:
            return self._fitter.fit(records)
        from headwater.buffer.stream.fitting import check_opaque

        check_opaque(self.name, records, is_recorded=self.is_opaque)
        return records

    def refit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Records that were fitted to an older version of the schema, fitted to this one.

        `Refused` if a value does not fit the current type of its column.
        """
        return self._fitter.refit(records) if self.config.schemas else records

    async def recording(self, records: pa.Schema, *, is_fresh: bool = False) -> Stream:
        """Record in the register that the stream carries records of this schema.

        Writes nothing if that is recorded already, or cannot be recorded; in the latter case `fit`
        refuses the records. With `is_fresh`, this handle's config is used without reading the
        register again. `Conflict`, `NotFound`: the stream was deleted.
        """
        from headwater.buffer.stream.schema import taking_in

        def record(now: StreamConfig) -> StreamConfig:
            return taking_in(now, records, added_ms=added_ms)

        added_ms = runtime.wall_ms()
        if is_fresh and record(self.config) == self.config:
            return self
        register = StreamRegister(self.store, self.name)
        return self.with_config(await register.update_live(self.id, record))

    def taking_in(self, records: pa.Schema) -> Stream:
        """The stream as `recording` would return it. Writes nothing."""
        from headwater.buffer.stream.schema import taking_in

        config = taking_in(self.config, records, added_ms=runtime.wall_ms())
        return self if config is self.config else self.with_config(config)

    async def settled(self) -> Stream:
        """The stream, read again if nothing was recorded when it was opened."""
        return self if self.is_opaque or self.config.is_typed else await self.reread()

    async def reread(self) -> Stream:
        """The stream with its current config; unchanged if another stream has the name now."""
        now = await StreamRegister(self.store, self.name).read_live(writing=False)
        return self.with_config(now) if now.id == self.id else self

    def with_config(self, config: StreamConfig) -> Stream:
        return Stream(self.store, config)

    def dead_letter_prefix(self, partition: int) -> str:
        self.check_partition(partition)
        return layout.dead_letter_prefix(self.name, partition, self.id)

    def _v1_queue(self, prefix: str) -> V1Queue:
        return V1Queue(self.store, prefix, self.id, lenient=self.config.is_lenient)

    def _writable_queue(self, partition: int) -> str:
        """The prefix of a partition's queue, if this version may write it."""
        # Checked again here: the stream may have been opened for reading.
        check_versions(self.name, self.config, writing=True)
        self.check_partition(partition)
        return queue_prefix(self.config, partition)

    def check_partition(self, partition: int) -> None:
        if not 0 <= whole_number("partition", partition) < self.partitions:
            last = self.partitions - 1
            existing = f"partitions 0 to {last}" if last else "only partition 0"
            raise Refused(f"stream {self.name!r} has {existing}, not {partition}")


def queue_prefix(config: StreamConfig, partition: int) -> str:
    if config.format == "v1":
        return layout.v1_prefix(config.name, partition)
    return layout.native_prefix(config.name, partition, config.id)


async def create_queue(store: Store, config: StreamConfig, partition: int) -> None:
    """Create the queue of a partition, unless it exists."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        await create_v1_queue(store, prefix, config.id, lenient=config.is_lenient)
    else:
        await create_native_queue(store, prefix, config.id)


async def raise_queue_policy(store: Store, config: StreamConfig, partition: int) -> int:
    """Write the policy of a stream into the queue of a partition; returns the queue's.

    From here on no floor is raised under an older one.
    """
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        queue = V1Queue(store, prefix, config.id, lenient=config.is_lenient)
        return (await queue.side.raise_policy(config.policy)).policy
    return (await ChunkLog(store, prefix, config.id).raise_policy(config.policy)).policy


async def raise_schema_floor(
    store: Store,
    config: StreamConfig,
    partition: int,
    floor: int,
    check: Callable[[int], Awaitable[None]],
) -> None:
    """Refuse batches of an older schema than `floor`, once `check` accepts the queue."""
    chunks = ChunkLog(store, queue_prefix(config, partition), config.id)
    tail = QueueTail(chunks, Counters())
    await tail.find()
    await write_note(tail, schema_floor=floor, check=check)


class OpenedSource(NamedTuple):
    """A store or a stream, and the store to close afterwards."""

    source: Store | Stream
    owned: Store | None
    """The store, if `open_source` opened it."""


def check_source(source: str | Store | Stream, name: str | None) -> None:
    """Refuse what `open_source` and `resolve_stream` cannot open, without opening anything."""
    if isinstance(source, Stream):
        if name not in (None, source.name):
            raise Refused(f"the stream is {source.name!r}, not {name!r}")
        return
    if isinstance(source, str):
        parse_address(source, {})
    else:
        check_store(source)
    if name is None:
        raise Refused("give the name of the stream in the store")


class NotOpen:
    """In place of the parts of an object that is not open: using them raises `Refused`.

    So a call of an open object need not check that it is open.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise not_open(self._what)


def not_open(what: str) -> Refused:
    return Refused(
        f"this {what} is not open: use it in a `with` block (`async with`, if its calls are "
        "awaited), or call its open() first"
    )


@asynccontextmanager
async def open_source(source: str | Store | Stream) -> AsyncIterator[OpenedSource]:
    """Open an address, and close it again if the block raises."""
    if not isinstance(source, str):
        yield OpenedSource(source, None)
        return
    store = open_store(source)
    try:
        yield OpenedSource(store, store)
    except BaseException:
        await store.close()
        raise


@asynccontextmanager
async def borrow_store(source: str | Store) -> AsyncIterator[Store]:
    """The store for one operation: an address is opened and closed again."""
    if not isinstance(source, str):
        yield source
        return
    async with open_store(source) as store:
        if store.url.startswith("memory:"):
            raise Refused(
                "a memory store loses its content when it is closed, which is at the end of this "
                f"call: open it first (headwater.open_store({source!r})), and pass the store"
            )
        yield store


def with_own_store(source: str | Store, stream: Stream) -> Stream:
    """A stream that outlives `borrow_store`: with a store of its own if `source` is an address."""
    return Stream(open_store(source), stream.config) if isinstance(source, str) else stream


# A v1 queue of a later stream raises `Refused`: the v1 layout has no place for stream ids.
_DELETION_SYMPTOMS: Final = (Damaged, NotFound, Refused)


@asynccontextmanager
async def explain_deletion(stream: Stream) -> AsyncIterator[None]:
    """Raise `NotFound` in place of an error that comes from the deletion of the stream.

    A queue that vanishes looks like damage. Only the stream's register can tell that the stream was
    deleted, and it is read only after such an error.
    """
    try:
        yield
    except _DELETION_SYMPTOMS as error:
        cause = await deletion_error(stream, error)
        if cause is error:
            raise
        raise cause from error


async def deletion_error(stream: Stream, error: HeadwaterError) -> HeadwaterError:
    """`NotFound` if the error comes from the stream's deletion; otherwise the error itself."""
    if not isinstance(error, _DELETION_SYMPTOMS) or isinstance(error, Trimmed):
        return error
    try:
        config = await StreamRegister(stream.store, stream.name).read(writing=False)
    except HeadwaterError:
        return error  # whether the stream was deleted is unknown
    if config.is_live and config.id == stream.id:
        return error
    again = "" if config.id == stream.id else ", and another one was created under its name"
    return NotFound(
        f"stream {stream.name!r} (id {stream.id}) was deleted{again} while it was in use: stop, or "
        "open it again if it exists again"
    )
