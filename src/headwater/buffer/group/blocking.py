"""`BlockingGroupConsumer`: a member of a group for code without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.ownership import ProcessGuard
from headwater.buffer.consumer.positions import ReadBound
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.group.admin import GroupLag
from headwater.buffer.group.consumer import GroupConsumer
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import NotOpen
from headwater.core import portal
from headwater.core.errors import HeadwaterError, Refused
from headwater.core.portal import Portal
from headwater.store import Store

T = TypeVar("T")


class BlockingGroupConsumer:
    """`GroupConsumer` for blocking code. Its calls run in the process's portal.

    with headwater.blocking.Consumer("s3://bucket/root", "orders", group="billing") as consumer:
        for batch in consumer:
            process(batch.records)
            consumer.ack(batch)

    A `poll` that Ctrl-C interrupts passes no batch: the next one returns it.
    """

    def __init__(
        self,
        source: str | Store | Stream,
        name: str | None = None,
        group: str = "default",
        **options: Any,
    ) -> None:
        """As `GroupConsumer`."""
        self._consumer = GroupConsumer(source, name, group, **options)
        parts: Any = NotOpen("consumer")
        self._portal: Portal = parts
        self._process: ProcessGuard = parts
        self._polled: ConsumedBatch | None = None
        """A batch that was polled, until the caller has it."""

    def open(self) -> BlockingGroupConsumer:
        """Join the group; returns the consumer. May be repeated."""
        home = portal.shared()
        home.call(self._consumer.open())
        self._portal, self._process = home, ProcessGuard("consumer")
        return self

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._consumer.is_open

    def __enter__(self) -> BlockingGroupConsumer:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except HeadwaterError as closing:
            if error is None:
                raise
            error.add_note(f"closing the consumer failed as well: {closing}")

    def __iter__(self) -> BlockingGroupConsumer:
        return self

    def __next__(self) -> ConsumedBatch:
        batch = self.poll()
        assert batch is not None  # without a timeout it waits
        return batch

    def __repr__(self) -> str:
        return repr(self._consumer)

    @property
    def stream(self) -> Stream:
        """The stream, with the partitions that it had when it was last looked at."""
        return self._consumer.stream

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._consumer.group

    @property
    def member(self) -> str:
        """The id of this member in the group."""
        return self._consumer.member

    @property
    def metrics(self) -> ConsumerMetrics:
        """The consumer's metrics."""
        return self._consumer.metrics

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions that this member reads at present."""
        return self._consumer.assignment

    def poll(self, timeout_s: float | None = None) -> ConsumedBatch | None:
        """The next batch of any partition; None if there is none within `timeout_s`."""
        if self._polled is None:
            self._call(self._poll(timeout_s))
        batch, self._polled = self._polled, None
        return batch

    async def _poll(self, timeout_s: float | None) -> None:
        """Poll, and keep the batch: an interrupt may end the call before it returns."""
        self._polled = await self._consumer.poll(timeout_s)

    def ack(self, batch: ConsumedBatch) -> None:
        """Acknowledge everything of the batch's partition through this batch."""
        self._call(self._consumer.ack(batch))

    def flush(self) -> None:
        """Store all acknowledgements."""
        self._call(self._consumer.flush())

    def seek(self, partition: int, where: ReadBound) -> None:
        """Read a partition from here on."""
        self._call(self._seek(partition, where))

    async def _seek(self, partition: int, where: ReadBound) -> None:
        await self._consumer.seek(partition, where)
        if self._polled is not None and self._polled.partition == partition:
            self._polled = None

    def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until `resume`."""
        self._process.check()
        self._consumer.pause(*partitions)

    def resume(self, *partitions: int) -> None:
        """Deliver these partitions again; all of them if none is named."""
        self._call(self._resume(*partitions))

    async def _resume(self, *partitions: int) -> None:
        self._consumer.resume(*partitions)

    def position(self, partition: int) -> int:
        """The LSN of the record that is delivered next."""
        return self._call(self._consumer.position(partition))

    def committed(self, partition: int) -> int:
        """The first LSN that is not acknowledged, as stored."""
        return self._call(self._consumer.committed(partition))

    def lag(self) -> GroupLag:
        """What is not acknowledged in the partitions of this member."""
        return self._call(self._consumer.lag())

    def close(self) -> None:
        """Store all acknowledgements, and leave the group. Does nothing in a forked child."""
        if self._consumer.is_open and not self._process.is_left:
            self._call(self._consumer.close())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._process.check()
        except Refused:
            coroutine.close()
            raise
        return self._portal.call(coroutine)
