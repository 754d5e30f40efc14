"""`headwater gc` at work: partitions side by side, each in passes until nothing more is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from rich.console import Console

from headwater.buffer.consumer.collection import retention_of
from headwater.buffer.queue.contract import Collected
from headwater.buffer.stream import Stream
from headwater.cli.queue_order import disorder
from headwater.core import limits
from headwater.core.errors import RolledBack

if TYPE_CHECKING:
    from rich.status import Status

PARTITIONS_AT_ONCE: Final = 16
PASSES_MAX: Final = 10_000
_COUNTED: Final = (
    "batches_expired",
    "batches_orphaned",
    "chunks_expired",
    "producers_forgotten",
    "bytes_expired",
    "bytes_orphaned",
    "failed",
    "batches_left",
)


class CollectView:
    """How far it is, on standard error: a line that is drawn over on a terminal, else a remark."""

    def __init__(self, name: str, *, full: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._name = name
        self._full = full
        self._done = 0
        self._total = 0

    def __enter__(self) -> CollectView:
        if self._console.is_terminal:
            from rich.status import Status

            text = f"collecting what {self._name} does not need"
            self._status = Status(text, console=self._console)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, stream: Stream, partitions: int) -> None:
        """So many partitions will be gone through."""
        self._total = partitions
        waits = self._full and stream.config.format == "native"
        turns = -(-partitions // PARTITIONS_AT_ONCE)
        if waits and not self._console.is_terminal:
            self._console.print(
                f"waiting up to {turns * limits.FLOOR_SETTLE_S:,.0f} s until pieces of the queue "
                "that are not needed may go",
                soft_wrap=True,
            )
        self._show()

    def advance(self) -> None:
        """One of them is done."""
        self._done += 1
        self._show()

    def _show(self) -> None:
        if self._status is None:
            return
        waits = f"; each may wait for {limits.FLOOR_SETTLE_S:.0f} s" if self._full else ""
        self._status.update(
            f"collecting what {self._name} does not need: {self._done:,} of {self._total:,} "
            f"partitions{waits}"
        )


async def collect_all(
    stream: Stream, partitions: Sequence[int], *, full: bool, advance: Callable[[], None]
) -> dict[int, Collected]:
    """Collect each of these, several at once: what one waits for, the others wait for meanwhile.

    An error of one is raised when all the others are done.
    """
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def one(partition: int) -> Collected:
        async with slots:
            done = await collect_partition(stream, partition, full=full)
        advance()
        return done

    outcomes = await asyncio.gather(*map(one, partitions), return_exceptions=True)
    reports: dict[int, Collected] = {}
    for partition, outcome in zip(partitions, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        reports[partition] = outcome
    return reports


async def collect_partition(stream: Stream, partition: int, *, full: bool) -> Collected:
    """Bounded passes until one finds nothing more; what they did together."""
    collector, retention = stream.collector(partition), await retention_of(stream)
    total = await collector.collect(retention, full=full)
    last = total
    for _ in range(PASSES_MAX):
        if last.failed or not _found_much(last):
            break
        last = await collector.collect(retention)
        total = _added(total, last)
    return await _kept(stream, partition, total)


async def _kept(stream: Stream, partition: int, total: Collected) -> Collected:
    """With what is kept as one look tells it: a consumer went on while the passes counted."""
    state = await stream.looker(partition).state()
    wrong = disorder(state)
    if wrong is not None:
        raise RolledBack(f"partition {partition} of {stream.name}: {wrong}")
    return msgspec.structs.replace(
        total,
        kept_pending=state.pending,
        kept_retained=state.acked_sequence - state.floor_sequence,
        floor_sequence=state.floor_sequence,
        floor_lsn=state.floor_lsn,
    )


def _found_much(report: Collected) -> bool:
    """Whether another pass may find more: a pass itself leaves an empty chunk for the next."""
    batches = report.batches_expired + report.batches_orphaned + report.batches_left
    return batches > 0 or report.is_cut_short


def _added(total: Collected, last: Collected) -> Collected:
    sums = {name: getattr(total, name) + getattr(last, name) for name in _COUNTED}
    return msgspec.structs.replace(last, **sums)
