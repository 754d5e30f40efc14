"""The ownership of a partition, for whoever reads it by other means: a planner on a cluster.

    ownership = await Ownership.open(stream, 0, "billing", acked_through=41)
    …                                  # descriptors from a Looker, batches fetched elsewhere
    await ownership.acknowledge(57)    # everything through batch 57 was processed

Always holds:

- only the one that opened last acknowledges; every other is told who took over, and when;
- garbage is collected for as long as this lives and is the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from headwater.buffer.consumer.dead_letter import write_dead_letter
from headwater.buffer.consumer.metrics import ConsumerMetrics
from headwater.buffer.consumer.own_process import OwnProcess
from headwater.buffer.consumer.source import consumable, retention_of
from headwater.buffer.consumer.sweeper import Sweeper
from headwater.buffer.queue.contract import Taker, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.deleted import telling_of_deletion
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError
from headwater.core.limits import GC_INTERVAL_S


class TakenOver(Fenced):
    """Another consumer was opened: says by whom, and when."""

    def __init__(self, message: str, *, group: str = "", by: str = "") -> None:
        super().__init__(message)
        self.group = group
        """Whose ownership it was."""
        self.by = by
        """The group that has it; the same one if it was opened once more; empty if not known."""


class Ownership:
    """One life of a partition's owner, without the reading half of a consumer."""

    def __init__(
        self, stream: Stream, partition: int, group: str, taker: Taker, sweeper: Sweeper | None
    ) -> None:
        """Use `Ownership.open`."""
        self.stream = stream
        self.partition = partition
        self.group = group
        self._taker = taker
        self._sweeper = sweeper
        self._process = OwnProcess("ownership")
        self._asking = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        stream: Stream,
        partition: int,
        group: str,
        *,
        take_over: bool = False,
        acked_through: int | None = None,
        gc: bool = True,
        gc_interval_s: float = GC_INTERVAL_S,
    ) -> Ownership:
        """Become the owner, and fence whoever was.

        `acked_through` also acknowledges through that batch. `Refused` if another group owns
        the partition and `take_over` is false, or on a stream that nodes consume.
        """
        consumable(stream, partition, group)
        taker = stream.taker(partition)
        metrics = ConsumerMetrics(taker.counters)
        sweeper = None
        if gc:
            collector = stream.collector(partition)
            retention = partial(retention_of, stream)
            sweeper = Sweeper(collector, retention, metrics, interval_s=gc_interval_s)
        async with telling_of_deletion(stream):
            await taker.open(group, take_over=take_over, last_acked_sequence=acked_through)
        ownership = cls(stream, partition, group, taker, sweeper)
        if sweeper is not None:
            sweeper.start(ownership)
        return ownership

    def __repr__(self) -> str:
        return f"<{self.group!r} owns {self.stream.name}/{self.partition}, epoch {self.epoch}>"

    @property
    def epoch(self) -> int:
        """The number that this opening gave it: no later one has it."""
        return self._taker.epoch

    async def check(self) -> None:
        """Raise `TakenOver` unless this is still the owner."""
        await self._ask(self._taker.check_fence)

    async def acknowledge(self, sequence: int) -> None:
        """Everything through this batch was processed; lower than before changes nothing."""
        await self._ask(lambda: self._taker.dequeue(sequence))

    async def give_up(self, error: Uncounted) -> None:
        """Go on without a batch whose rows nobody can count: a note of it first, then for ever."""
        lost = error.descriptor
        await self.check()
        cause = f"{type(error).__name__}: {error}"
        letter = await write_dead_letter(self.stream, self.partition, lost, cause)
        await self._ask(lambda: self._taker.give_up(lost.sequence, rows=letter.rows))

    async def close(self) -> None:
        """Stop collecting. Acknowledges nothing, and gives the ownership to nobody."""
        if self._sweeper is not None and not self._process.is_left:
            await self._sweeper.close()

    async def _ask(self, question: Callable[[], Awaitable[None]]) -> None:
        self._process.check()
        async with self._asking:
            try:
                async with telling_of_deletion(self.stream):
                    await question()
            except Fenced as error:
                if self._sweeper is not None:
                    self._sweeper.stop()  # the successor collects
                raise await self._taken_over(error) from error

    async def _taken_over(self, error: Fenced) -> TakenOver:
        try:
            state = await self.stream.looker(self.partition).state()
        except HeadwaterError:
            # Who it was cannot be read now; that there was a later opening is certain.
            return TakenOver(
                f"stream {self.stream.name!r}, partition {self.partition}: another consumer was "
                f"opened and fenced this one of group {self.group!r} (epoch {self.epoch})",
                group=self.group,
            )
        at = runtime.utc_text(state.opened_ms, "milliseconds")
        when = f" at {at}" if state.opened_ms else ""
        return TakenOver(
            f"stream {self.stream.name!r}, partition {self.partition}: group {state.group!r} "
            f"opened the consumer{when} (epoch {state.epoch}) and fenced this one of group "
            f"{self.group!r} (epoch {self.epoch})",
            group=self.group,
            by=state.group,
        )
