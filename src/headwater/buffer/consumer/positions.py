"""Where reading begins and ends: positions, and the LSNs that they resolve to.

A position is an LSN, "earliest", "latest", or a time. A time becomes the LSN of the first retained
record with this timestamp or a later one, or with `time_by="ingestion"` the first one ingested then
or later. Times need not rise with LSNs, so records with earlier times may follow it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

from headwater.buffer.consumer.dead_letter import UnreadableBatch
from headwater.buffer.queue.contract import Descriptor, QueuePosition, QueueState, TimeBy, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.streams import borrow_stream
from headwater.core.errors import Refused, Trimmed
from headwater.core.settings import whole_number
from headwater.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.consumer.fetcher import FetchHandle


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_US: Final = (1 << 63) - 1
_FINER: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
POSITIONS: Final = 'an LSN, "earliest", "latest", or a time such as 2026-01-31T08:00:00Z'

ReadBound = int | str | date | None
"""An LSN, "earliest", "latest", a time (ISO 8601 as text), or None for the default.

A datetime is a date to Python; a date alone is its first moment.
"""
ReadBounds = ReadBound | Mapping[int, ReadBound]
"""One bound, or one for each partition."""


def check_bounds(stream: Stream, position: ReadBounds) -> None:
    """Refuse a mapping with a partition that the stream does not have."""
    if not isinstance(position, Mapping):
        return
    known = range(stream.partitions)
    unknown = [key for key in position if isinstance(key, bool) or key not in known]
    if unknown:
        raise Refused(
            f"a position for {', '.join(map(repr, unknown))}: stream {stream.name!r} has "
            f"partitions 0 to {stream.partitions - 1}"
        )


def partition_bound(position: ReadBounds, partition: int) -> ReadBound:
    """The position for one partition."""
    if isinstance(position, Mapping):
        return position.get(partition)
    return position


async def resolve_start(
    stream: Stream,
    partition: int,
    place: ReadBound,
    state: QueueState,
    *,
    time_by: TimeBy = "timestamp",
    skips: bool = False,
) -> int:
    """The first LSN to read. `Trimmed` if it is not retained any more.

    `skips`: unreadable batches are skipped when their turn comes, and are no error here.
    """
    place = EARLIEST if place is None else place
    found = await resolve_end(stream, partition, place, state, time_by=time_by, skips=skips)
    if found < state.floor_lsn:
        raise Trimmed(
            f"stream {stream.name!r}, partition {partition}: LSN {found} is not retained any more; "
            f'the oldest one is {state.floor_lsn} (start="earliest" begins there)',
            floor_lsn=state.floor_lsn,
        )
    return found


async def resolve_end(
    stream: Stream,
    partition: int,
    place: ReadBound,
    state: QueueState,
    *,
    time_by: TimeBy = "timestamp",
    skips: bool = False,
) -> int:
    """The first LSN not to read."""
    if place is not None and not isinstance(place, str | date):
        lsn = _lsn(place)
        if lsn < 1:
            raise Refused(f"LSN {lsn}: the first record of a partition has LSN 1")
        return lsn
    if place == EARLIEST:
        return state.floor_lsn
    if place is None or place == LATEST:
        return state.next_lsn
    try:
        found = await position_at_time(stream, partition, time_us_of(place), time_by)
    except (UnreadableBatch, Uncounted) as error:
        if not skips:
            raise
        return error.descriptor.first_lsn
    return state.next_lsn if found is None else found.lsn


async def lsn_at_time(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    time: int | str | date,
    partition: int = 0,
    time_by: TimeBy = "timestamp",
) -> int | None:
    """The LSN of the first retained record with this timestamp or a later one, or None.

    The time is a datetime or date, ISO 8601 as text, or milliseconds since 1970. With
    `time_by="ingestion"`, ingestion times count instead of timestamps.
    """
    if isinstance(time, str | date):
        time_us = time_us_of(time)
    else:
        time_us = whole_number("time", time) * 1000
    check_time_by(time_by)
    async with borrow_stream(source, name) as stream:
        found = await position_at_time(stream, partition, time_us, time_by)
    return None if found is None else found.lsn


async def position_at_time(
    stream: Stream, partition: int, time_us: int, by: TimeBy
) -> QueuePosition | None:
    """The position of the first retained record of this time or later; None if there is none.

    Reads O(log n) chunks, and the batch with the record: nothing of it if all its records are late
    enough, else only its calls for ingestion times, or all of it for timestamps.
    """
    from headwater.buffer.consumer.fetcher import FetchHandle

    if time_us > _LAST_US:
        return None
    time_us = max(time_us, -_LAST_US - 1)
    queue_reader, handle = stream.queue_reader(partition), FetchHandle.of(stream, partition)
    while (batch := await queue_reader.batch_at_time(time_us, by)) is not None:
        try:
            skip = await _rows_before(handle, batch, time_us, by)
        except UnreadableBatch:
            if batch.sequence < (await queue_reader.floor()).sequence:
                continue  # deleted by retention meanwhile: another batch is the first
            raise
        return QueuePosition(batch.sequence, batch.first_lsn + skip)
    return None


async def _rows_before(handle: FetchHandle, batch: Descriptor, time_us: int, by: TimeBy) -> int:
    """The number of records in a batch before the first one of this time or later."""
    if batch.range_us(by)[0] >= time_us:
        return 0
    if by == "timestamp" and batch.min_timestamp_us is not None:
        found = await handle.fetch(batch)
        row = _first_late(found.calls.timestamps_of(found.records), time_us)
        if row is None:
            raise handle.bad_times(batch)
        return row
    calls = await handle.fetch_calls(batch)
    call = _first_late(calls.times, time_us)
    if call is None:
        if batch.format == "native":
            raise handle.bad_times(batch)
        return 0  # in the v1 format, calls may refer to records that the batch does not have
    return int(calls.columns.column("start_index")[call].as_py())


def _first_late(times: pa.Array, time_us: int) -> int | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    late = pc.greater_equal(times.cast(pa.int64()), time_us)
    found = int(pc.index(late, pa.scalar(True)).as_py())
    return None if found < 0 else found


def _lsn(given: Any) -> int:
    try:
        return whole_number("LSN", given)
    except Refused:
        raise Refused(f"{given!r} is not a position: {POSITIONS}") from None


def check_time_by(time_by: str) -> None:
    """Refuse an invalid `time_by`."""
    if time_by not in get_args(TimeBy):
        raise Refused(f'time_by is {time_by!r}: it is "timestamp" or "ingestion"')


def time_us_of(time: str | date) -> int:
    """Microseconds since 1970; a time without a zone is UTC.

    Fractions of a microsecond are rounded up: records of the earlier microsecond come before it.
    """
    between_us = 0
    if isinstance(time, str):
        between_us = 1 if is_finer_than_us(time) else 0
        try:
            time = datetime.fromisoformat(time)
        except ValueError as error:
            raise Refused(f"{time!r} is not a position: {POSITIONS}") from error
    if not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return between_us - (_EPOCH - zoned) // timedelta(microseconds=1)


def is_finer_than_us(time: str) -> bool:
    """Whether the text has digits below a microsecond, which Python ignores."""
    return _FINER.search(time) is not None
