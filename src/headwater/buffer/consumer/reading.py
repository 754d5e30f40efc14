"""Where a reading begins and ends, in LSNs.

A position is an LSN, "earliest", "latest", or a time. A time becomes the LSN of the first retained
record that was ingested at or after it; producers' clocks may disagree, so a record ingested later
may stand before it, and one ingested earlier after it. Records are never reordered or left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer.fetch import FetchHandle
from headwater.buffer.consumer.unreadable import UnreadableBatch
from headwater.buffer.queue.contract import QueueState, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.streams import looking_at
from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Refused, Trimmed
from headwater.store import Store

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
POSITIONS: Final = 'an LSN, "earliest", "latest", or a time such as 2026-01-31T08:00:00Z'

ReadBound = int | str | date | None
"""An LSN, "earliest", "latest", a time (ISO 8601 as text), or None for the default.

A datetime is a date to Python; a date alone is its first moment.
"""
ReadBounds = ReadBound | Mapping[int, ReadBound]
"""One bound, or one for each partition."""


def check_bounds(stream: Stream, position: ReadBounds) -> None:
    """Refuse a mapping that says something of a partition that the stream does not have."""
    if not isinstance(position, Mapping):
        return
    known = range(stream.partitions)
    unknown = [key for key in position if isinstance(key, bool) or key not in known]
    if unknown:
        raise Refused(
            f"a position for {', '.join(map(repr, unknown))}: stream {stream.name!r} has "
            f"partitions 0 to {stream.partitions - 1}"
        )


def bound_of(position: ReadBounds, partition: int) -> ReadBound:
    """What a position says of one partition."""
    if isinstance(position, Mapping):
        return position.get(partition)
    return position


async def resolve_start(
    stream: Stream, partition: int, place: ReadBound, state: QueueState, *, skips: bool = False
) -> int:
    """The first LSN to read. `Trimmed` if it was asked for by number and is gone; its floor is
    the oldest LSN.

    `skips`: a batch that cannot be read is passed over when its turn comes, and no obstacle here.
    """
    found = await _resolve(stream, partition, EARLIEST if place is None else place, state, skips)
    if found < state.floor_lsn:
        raise Trimmed(
            f"stream {stream.name!r}, partition {partition}: LSN {found} is not retained any more; "
            f'the oldest one is {state.floor_lsn} (start="earliest" begins there)',
            floor=state.floor_lsn,
        )
    return found


@asynccontextmanager
async def trimmed_by_lsn(stream: Stream, partition: int) -> AsyncIterator[None]:
    """Raises a queue's `Trimmed`, whose floor is a sequence, as a reader's: with an LSN."""
    try:
        yield
    except Trimmed as error:
        floor_lsn = (await stream.looker(partition).state()).floor_lsn
        raise Trimmed(
            f"stream {stream.name!r}, partition {partition}: what comes next went with the "
            f"retention; the oldest LSN is {floor_lsn} (start={floor_lsn} goes on there)",
            floor=floor_lsn,
        ) from error


async def resolve_end(
    stream: Stream, partition: int, place: ReadBound, state: QueueState, *, skips: bool = False
) -> int:
    """The first LSN not to read."""
    return await _resolve(stream, partition, LATEST if place is None else place, state, skips)


async def lsn_at_time(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    time: int | str | date,
    partition: int = 0,
) -> int | None:
    """The LSN of the first retained record ingested at or after a time; None if there is none.

    The time is a datetime or date, ISO 8601 as text, or milliseconds since 1970.
    """
    time_ms = time_ms_of(time) if isinstance(time, str | date) else whole_number("time", time)
    async with looking_at(source, name) as stream:
        return await _lsn_at_time(stream, partition, time_ms)


async def _lsn_at_time(stream: Stream, partition: int, time_ms: int) -> int | None:
    looker = stream.looker(partition)
    sequence = await looker.sequence_at_time(time_ms)
    if sequence is None:
        return None
    async with trimmed_by_lsn(stream, partition):
        found = await looker.after(sequence - 1, 1)
    if not found:
        return None
    descriptor = found[0]
    if descriptor.min_ms >= time_ms:
        return descriptor.first_lsn
    handle = FetchHandle.of(stream, partition)
    calls = (await handle.fetch_calls(descriptor)).columns
    late = pc.greater_equal(calls.column("ingestion_time_ms"), time_ms)
    call = max(int(pc.index(late, pa.scalar(True)).as_py()), 0)
    return descriptor.first_lsn + int(calls.column("start_index")[call].as_py())


async def _resolve(
    stream: Stream, partition: int, place: ReadBound, state: QueueState, skips: bool
) -> int:
    if not isinstance(place, str | date):
        lsn = _lsn(place)
        if lsn < 1:
            raise Refused(f"LSN {lsn}: the first record of a partition has LSN 1")
        return lsn
    if place == EARLIEST:
        return state.floor_lsn
    if place == LATEST:
        return state.next_lsn
    try:
        found = await _lsn_at_time(stream, partition, time_ms_of(place))
    except (UnreadableBatch, Uncounted) as error:
        if not skips:
            raise
        found = error.descriptor.first_lsn
    return state.next_lsn if found is None else found


def _lsn(given: Any) -> int:
    try:
        return whole_number("LSN", given)
    except Refused:
        raise Refused(f"{given!r} is no position: {POSITIONS}") from None


def time_ms_of(time: str | date) -> int:
    """Milliseconds since 1970 of a time; without a zone it is UTC."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError as error:
            raise Refused(f"{time!r} is no position: {POSITIONS}") from error
    if not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)
