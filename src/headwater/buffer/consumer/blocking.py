"""A consumer for code that blocks: the same calls, without `await`."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from headwater.buffer.consumer.backlog import Lag
from headwater.buffer.consumer.consumed import ConsumedBatch
from headwater.buffer.consumer.consumer import Consumer
from headwater.buffer.consumer.fetch import FetchHandle
from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.consumer.own_process import OwnProcess
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.errors import HeadwaterError, Refused
from headwater.store import Store

T = TypeVar("T")


class BlockingConsumer:
    """`Consumer` behind a thread of its own. Every call means what it means there."""

    def __init__(self, consumer: Consumer) -> None:
        """Use `BlockingConsumer.open`."""
        self._consumer = consumer
        self._portal = portal.shared()
        self._process = OwnProcess("consumer")

    @classmethod
    def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        partition: int = 0,
        group: str = "default",
        **options: Any,
    ) -> BlockingConsumer:
        """As `Consumer.open`."""
        opening = Consumer.open(source, name, partition, group, **options)
        return cls(portal.shared().call(opening))

    def __enter__(self) -> BlockingConsumer:
        return self

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

    def __len__(self) -> int:
        return len(self._consumer)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._consumer)

    @property
    def stream(self) -> Stream:
        """The stream as it was when the consumer was opened."""
        return self._consumer.stream

    @property
    def partition(self) -> int:
        """Whose queue it owns."""
        return self._consumer.partition

    @property
    def epoch(self) -> int:
        """The number that this consumer's opening gave it: no later one has it."""
        return self._consumer.epoch

    @property
    def last_acked_sequence(self) -> int | None:
        """The last batch that was acknowledged."""
        return self._consumer.last_acked_sequence

    @property
    def last_handed_out_sequence(self) -> int | None:
        """The last batch that was delivered or handed out."""
        return self._consumer.last_handed_out_sequence

    @property
    def metrics(self) -> ConsumerMetrics:
        """What the consumer counted."""
        return self._consumer.metrics

    @property
    def conflict_rate(self) -> float:
        """Of a hundred conditional writes to the queue, how many lost a race."""
        return self._consumer.conflict_rate

    def next_batch(self) -> ConsumedBatch | None:
        """The next batch; None if there is none at present."""
        return self._call(self._consumer.next_batch())

    def next_descriptors(self, max_count: int) -> list[Descriptor]:
        """Up to so many descriptors of the batches that follow."""
        return self._call(self._consumer.next_descriptors(max_count))

    def fetch_handle(self) -> FetchHandle:
        """What fetches batches by their descriptors, in any task, thread or process."""
        return self._consumer.fetch_handle()

    def fetch_descriptor(self, descriptor: Descriptor) -> ConsumedBatch:
        """Fetch one batch by its descriptor."""
        return self._call(self._consumer.fetch_descriptor(descriptor))

    def ack(self, sequence: int) -> None:
        """Acknowledge the batch that follows the last one acknowledged."""
        self._call(self._consumer.ack(sequence))

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch through this one, in the queue first."""
        self._call(self._consumer.ack_through(sequence))

    def flush(self) -> None:
        """Let the queue know of everything acknowledged."""
        self._call(self._consumer.flush())

    def lag(self) -> Lag:
        """What is not acknowledged, looked up in the queue."""
        return self._call(self._consumer.lag())

    def close(self) -> None:
        """Flush and stop, as `Consumer.close`; in a forked child there is nothing to close."""
        if not self._process.is_left:
            self._call(self._consumer.close())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._process.check()
        except Refused:
            coroutine.close()
            raise
        return self._portal.call(coroutine)
