"""From a log to a segment, and what the events say of it."""

from __future__ import annotations

import pytest

from headwater.core.errors import Corrupt, NotSupported, Refused, Trimmed
from headwater.log.record import range_hash
from headwater.log.spool import SpoolConfig
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from headwater.tier import decode_event, encode_event
from headwater.tier.events import stamp, unstamp
from headwater.tier.segments import (
    Receipt,
    SegmentConfig,
    SegmentPlan,
    encode_segment,
    log_range,
    receipt_of,
)
from headwater.tier.segments.footer import read_receipt
from tests.log.given import numbered, opened
from tests.store.scripted import virtual
from tests.tier.given import segment_id
from tests.tier.segments.given import decoded, each, encoded, orders, told

RECEIPT = Receipt(3, 4000, 500, 2, (7, 9), bytes(range(16)))


@virtual
async def test_a_range_of_a_spool_becomes_a_segment_with_the_same_hashes() -> None:
    spool = opened(FaultyDisk(), first_lsn=1, config=SpoolConfig(group_bytes=500))
    for first in range(1, 200, 20):
        await spool.append(numbered(first, 20, size=50), term=first // 100 + 1)
    plan = SegmentPlan(segment_id(1), 31, 150)
    segment = await encode_segment(plan, log_range(spool, 31, 150), SegmentConfig(row_group_rows=7))
    found = decoded(segment.data)
    wanted = [group async for group in log_range(spool, 31, 150)]
    assert range_hash(found) == range_hash(wanted)
    assert segment.description.epochs == ((1, 31), (2, 101))
    await spool.close()


@virtual
async def test_what_was_pruned_or_is_not_written_yet_is_no_segment() -> None:
    wal = MemoryWal()
    wal.append(10)
    await wal.prune_through(4)
    with pytest.raises(Trimmed) as caught:
        await encode_segment(SegmentPlan(segment_id(1), 3, 8), log_range(wal, 3, 8))
    assert caught.value.floor == 5
    with pytest.raises(Refused, match="ends at LSN 10"):
        await encode_segment(SegmentPlan(segment_id(1), 5, 12), log_range(wal, 5, 12))


@virtual
async def test_what_was_pruned_to_the_end_of_the_log_is_trimmed_and_not_unwritten() -> None:
    wal = MemoryWal()
    wal.append(10)
    await wal.prune_through(10)
    with pytest.raises(Trimmed) as caught:
        await encode_segment(SegmentPlan(segment_id(1), 3, 8), log_range(wal, 3, 8))
    assert caught.value.floor == 11


@virtual
async def test_groups_of_any_size_come_through() -> None:
    groups = [orders(1, 30, size=1 << 20), orders(31, 1)]
    plan = SegmentPlan(segment_id(1), 1, 31)
    segment = await encode_segment(plan, each(groups))
    assert range_hash(decoded(segment.data)) == range_hash(groups)


def test_what_recovery_needs_fits_into_the_custom_metadata() -> None:
    custom = RECEIPT.stamped(2**64 - 1)
    assert len(custom) <= 128
    epoch, payload = unstamp(custom)
    assert (epoch, read_receipt(payload)) == (2**64 - 1, RECEIPT)
    without = RECEIPT._replace(sequences=None)
    assert read_receipt(unstamp(without.stamped(1))[1]) == without
    zero = RECEIPT._replace(sequences=(0, 0))
    assert read_receipt(unstamp(zero.stamped(1))[1]) == zero


def test_the_events_of_a_segment_carry_it() -> None:
    segment = encoded([orders(1, 3)], sequences=(7, 9))
    began = segment.started(broker_id=1, event_timestamp_ms=5, publisher_epoch=3)
    ended = segment.finished(broker_id=1, event_timestamp_ms=6, publisher_epoch=4)
    for event in (began, ended):
        assert decode_event(encode_event(event)) == event
    assert receipt_of(began) == segment.receipt
    assert receipt_of(told(segment)) == segment.receipt
    assert segment.receipt.sequences == (7, 9)


def test_a_receipt_of_another_version_or_size_is_not_guessed_at() -> None:
    payload = unstamp(RECEIPT.stamped(1))[1]
    with pytest.raises(NotSupported, match="Upgrade"):
        read_receipt(b"\x02" + payload[1:])
    with pytest.raises(Corrupt, match="57 bytes"):
        read_receipt(payload[:-1])
    assert read_receipt(b"") is None
    assert stamp(1) == stamp(1, b"")
