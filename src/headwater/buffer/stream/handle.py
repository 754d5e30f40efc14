"""`Stream`: the handle on an open stream, and the queues of its partitions.

Functions that take a stream also take a store or an address. `open_source` and `borrow_store`
turn an address into a store and close it again.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.buffer import layout
from headwater.buffer.queue.contract import (
    Appender,
    Collector,
    QueueConsumer,
    QueueReader,
    Retention,
)
from headwater.buffer.stream import queues
from headwater.buffer.stream.config import (
    BATCH_BYTES,
    LINGER_LOCAL_MS,
    LINGER_MS,
    UNLIMITED,
    StreamConfig,
    StreamRegister,
    check_versions,
)
from headwater.buffer.whole_number import whole_number
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused, Trimmed
from headwater.store import Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.compression import Compression
    from headwater.buffer.stream.fitting import RowFitter


class Stream:
    """A stream as its register said when it was opened. Cheap, and safe to send elsewhere."""

    def __init__(self, store: Store, config: StreamConfig) -> None:
        self.store = store
        self.config = config

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, id={self.id!r}, partitions={self.partitions})"

    @property
    def name(self) -> str:
        """What the stream is called."""
        return self.config.name

    @property
    def id(self) -> str:
        """What tells it from an earlier or later stream of the same name."""
        return self.config.id

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self.config.partitions

    @property
    def compression(self) -> Compression:
        """How its batches are compressed."""
        from headwater.buffer.compression import Compression

        return Compression[self.config.compression.upper()]

    @property
    def linger_ms(self) -> int:
        """How long a producer waits before it flushes."""
        default = LINGER_LOCAL_MS if self.store.is_local else LINGER_MS
        return default if self.config.linger_ms is None else self.config.linger_ms

    @property
    def batch_bytes(self) -> int:
        """How much a producer gathers before it flushes."""
        return BATCH_BYTES if self.config.batch_bytes is None else self.config.batch_bytes

    @property
    def schema_version(self) -> int:
        """The number of the latest schema; 0 if there are no columns."""
        return self.config.schemas[-1].version if self.config.schemas else 0

    @functools.cached_property
    def schema(self) -> pa.Schema | None:
        """The columns, declared or inferred, without the reserved ones; None if there are none."""
        if not self.config.schemas:
            return None
        from headwater.buffer.stream.schema import arrow_schema

        return arrow_schema(self.config.schemas[-1])

    @property
    def is_opaque(self) -> bool:
        """Whether it carries opaque values; neither these nor columns before the first record."""
        return self.config.is_opaque

    @property
    def alter_command(self) -> str:
        """The command that declares a schema."""
        return f"headwater stream alter {shlex.quote(self.store.url)} {self.name} --schema FILE"

    @functools.cached_property
    def _fitting(self) -> RowFitter:
        from headwater.buffer.stream.fitting import OpaqueFitter, SchemaFitter

        if self.schema is None:
            return OpaqueFitter(self.name, is_recorded=self.is_opaque)
        origin = self.config.schemas[-1].origin
        return SchemaFitter(self.name, self.schema_version, self.schema, origin, self.alter_command)

    def appender(self, partition: int, producer_id: str) -> Appender:
        """A producer's door to a partition."""
        self._check_writing()
        self.check_partition(partition)
        return queues.queue_appender(self.store, self.config, partition, producer_id)

    def taker(self, partition: int) -> QueueConsumer:
        """The owning consumer's door to a partition."""
        self._check_writing()
        self.check_partition(partition)
        return queues.queue_consumer(self.store, self.config, partition)

    def looker(self, partition: int) -> QueueReader:
        """Everybody's door to a partition."""
        self.check_partition(partition)
        return queues.queue_reader(self.store, self.config, partition)

    def collector(self, partition: int) -> Collector:
        """The garbage collector's door to a partition."""
        self._check_writing()
        self.check_partition(partition)
        return queues.queue_collector(self.store, self.config, partition)

    def retention(self) -> Retention:
        """How long acknowledged batches stay; what transactions hold, `retention_of` tells.

        On a stream of nodes they are acknowledged once the tier has them: then for the grace alone.
        """
        config = self.config
        if config.consumer == "nodes":
            return Retention(config.gc_grace_ms, None, config.gc_grace_ms)
        return Retention(
            None if config.retention_ms == UNLIMITED else config.retention_ms,
            None if config.retention_bytes == UNLIMITED else config.retention_bytes,
            config.gc_grace_ms,
        )

    def fit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records as the stream carries them.

        Columns are put in order, widened, and added where they may be null. `Refused` shows the
        difference column by column; what is new to the stream is recorded first (`recording`).
        """
        return self._fitting.fit(records)

    def refit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Records that were fitted to an older version of the schema, under this one.

        `Refused` if a value is none of the type that its column has now.
        """
        return self._fitting.refit(records)

    async def recording(self, records: pa.Schema, *, is_fresh: bool = False) -> Stream:
        """The stream, once its register says that it carries records of this schema.

        Nothing is written where it does already, and where it cannot: then `fit` refuses them.
        With `is_fresh`, what this handle knows of the register is not asked for again.
        `Conflict`, `NotFound`: it was deleted.
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
        """The stream as it would be once it recorded records of this schema; writes nothing."""
        from headwater.buffer.stream.schema import taking_in

        config = taking_in(self.config, records, added_ms=runtime.wall_ms())
        return self if config is self.config else self.with_config(config)

    async def settled(self) -> Stream:
        """The stream, with a look at its register if nothing was recorded when it was opened."""
        if self.is_opaque or self.config.is_typed:
            return self
        return await self.reread()

    async def reread(self) -> Stream:
        """The stream as its register says now; itself if another one has the name by now."""
        found = await StreamRegister(self.store, self.name).read_live(writing=False)
        return self.with_config(found) if found.id == self.id else self

    def with_config(self, config: StreamConfig) -> Stream:
        """The same stream, as its register says now."""
        return Stream(self.store, config)

    def dead_letter_prefix(self, partition: int) -> str:
        """Where batches of a partition that could not be read are listed."""
        self.check_partition(partition)
        return layout.dead_letter_prefix(self.name, partition, self.id)

    def _check_writing(self) -> None:
        # Again, since whoever opened it may have asked to read.
        check_versions(self.name, self.config, writing=True)

    def check_partition(self, partition: int) -> None:
        """Refuse a partition that the stream does not have."""
        if not 0 <= whole_number("partition", partition) < self.partitions:
            last = self.partitions - 1
            known = f"partitions 0 to {last}" if last else "the partition 0 alone"
            raise Refused(f"stream {self.name!r} has {known}, not {partition}")


# Where a stream is to be found, as people say it: at an address, in a store, or here it is.


class OpenedSource(NamedTuple):
    """A store or a stream, and what has to be closed afterwards."""

    source: Store | Stream
    owned: Store | None
    """The store, if it was opened here: nobody else has it."""


@asynccontextmanager
async def open_source(source: str | Store | Stream) -> AsyncIterator[OpenedSource]:
    """Opens an address, and closes it again if what follows does not work out."""
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
    """The store, for one thing that is asked of it: an address is opened and closed again."""
    if not isinstance(source, str):
        yield source
        return
    async with open_store(source) as store:
        if store.url.startswith("memory:"):
            raise Refused(
                "what is in memory goes when its store is closed, here at once: open it first, as "
                f"in headwater.open_store({source!r}), and hand that in"
            )
        yield store


def with_own_store(source: str | Store, stream: Stream) -> Stream:
    """A stream that was found while visiting, to go on with.

    That of an address gets a store of its own, which holds nothing before it is used.
    """
    return Stream(open_store(source), stream.config) if isinstance(source, str) else stream


# What is said to whoever still uses a stream that was deleted.
#
# A queue that vanishes under its users looks like damage, and is to be repaired; that of a
# deleted stream is not. Only the stream's register tells the two apart, so it is looked at once
# such an error is there, and never before.


# `Refused` by a published v1 queue that belongs to a later stream: its layout has no place for ids.
_DELETION_SYMPTOMS: Final = (Damaged, NotFound, Refused)


@asynccontextmanager
async def explain_deletion(stream: Stream) -> AsyncIterator[None]:
    """Raises, in the place of an error that says that a queue is gone, why it is."""
    try:
        yield
    except _DELETION_SYMPTOMS as error:
        told = await deletion_error(stream, error)
        if told is error:
            raise
        raise told from error


async def deletion_error(stream: Stream, error: HeadwaterError) -> HeadwaterError:
    """`NotFound` if the error comes of the stream's deletion; otherwise the error itself."""
    if not isinstance(error, _DELETION_SYMPTOMS) or isinstance(error, Trimmed):
        return error
    try:
        config = await StreamRegister(stream.store, stream.name).read(writing=False)
    except HeadwaterError:
        # Nothing is known of a deletion, so the error stands as it is.
        return error
    if config.is_live and config.id == stream.id:
        return error
    again = "" if config.id == stream.id else ", and another one was made under its name"
    return NotFound(
        f"stream {stream.name!r} (id {stream.id}) was deleted{again} while it was in use: stop, or "
        "open it again if it is there again"
    )
