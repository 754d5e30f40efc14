"""A scrub finds what is wrong, mends what it can, and never removes the only copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from headwater.core.errors import Denied, Fenced, Unavailable
from headwater.tier import SegmentMetadata, SegmentState
from headwater.tier.cache import PartitionCache
from headwater.tier.errors import NotReady
from headwater.tier.jobs import LogStartRegister, TierConfig, Tiering
from headwater.tier.jobs.copying import copy_local
from headwater.tier.jobs.scrub import Flaw, ScrubResult, scrub_partition
from headwater.tier.segments import SegmentIndex
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.jobs.given import FAR, ORDERS, Led, Place, in_time
from tests.tier.jobs.plain_storage import PlainStorage, plain_key
from tests.tier.jobs.sealed_wal import SealedWal

FINISHED = SegmentState.COPY_FINISHED
KEEP_LOCAL = 1 << 30


async def tiered(*sizes: int, local_retention_bytes: int = KEEP_LOCAL) -> Led:
    led = Place().lead(local_retention_bytes=local_retention_bytes)
    return await led.write(*sizes).round()


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        scrubbed = await led.manager.scrub(repair=False)

        assert (scrubbed.findings, scrubbed.segments, scrubbed.objects) == ((), 2, 2)
        assert scrubbed.size_bytes == sum(one.size_bytes for one in led.metadata.state().segments())

    in_time(main)


def test_what_is_missing_or_damaged_is_told_and_copied_again_from_the_local_log() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        await led.damage(0, None)
        await led.damage(2, b"[]")
        found = await led.manager.scrub(repair=False)
        assert [(one.kind, one.lsns) for one in found.findings] == [
            (Flaw.MISSING, range(1, 4)),
            (Flaw.CORRUPT, range(7, 10)),
        ]
        assert not found.is_clean

        assert (await led.manager.scrub(repair=True)).is_clean
        assert (await led.manager.scrub(repair=False)).findings == ()
        assert led.covered() == [range(1, 4), range(4, 7), range(7, 10)]

    in_time(main)


def test_what_the_local_log_no_longer_has_is_told_as_lost_and_stays_listed() -> None:
    async def main() -> None:
        led = await tiered(3, 3, local_retention_bytes=0)
        await led.damage(0, None)
        scrubbed = await led.manager.scrub(repair=True)

        assert not scrubbed.is_clean
        assert led.states() == [FINISHED, FINISHED]

    in_time(main)


def test_what_the_local_log_has_of_a_damaged_segment_is_saved() -> None:
    async def main() -> None:
        led = await tiered(6)
        await led.wal.prune_through(4)
        await led.damage(0, None)

        assert not (await led.manager.scrub(repair=True)).is_clean
        assert led.covered() == [range(1, 5), range(5, 7)]

    in_time(main)


def test_a_damaged_segment_that_is_not_read_any_more_is_only_unlisted() -> None:
    async def main() -> None:
        led = await tiered(3, local_retention_bytes=0)
        [older] = led.metadata.state().segments()
        prepared = await led.storage.prepare(1, 3, led.storage.fetch(older, 1, 4))
        await led.led.publisher.copy_started(prepared)
        await led.storage.copy(prepared)
        await led.led.publisher.copy_finished(prepared)
        await led.place.backend.delete(plain_key(older.segment_id))

        assert (await led.manager.scrub(repair=True)).is_clean
        assert sorted(led.states()) == [FINISHED, SegmentState.DELETE_STARTED]

    in_time(main)


def test_a_gap_is_told_and_filled() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        await led.led.publisher.unlist(led.metadata.state().segments()[1])
        found = (await led.manager.scrub(repair=False)).findings
        assert [(one.kind, one.lsns) for one in found] == [(Flaw.GAP, range(4, 7))]

        assert (await led.manager.scrub(repair=True)).is_clean
        assert led.covered() == [range(1, 4), range(4, 7), range(7, 10)]

    in_time(main)


def test_an_object_that_no_event_names_goes_after_a_grace() -> None:
    async def main() -> None:
        led = await tiered(3)
        late = await led.storage.prepare(1, 3, led.led.local_groups(1, 3))
        await led.storage.copy(late)
        assert (await led.manager.scrub(repair=True)).findings == ()

        await asyncio.sleep(25 * 3600.0)
        [found] = (await led.manager.scrub(repair=True)).findings

        assert (found.kind, found.repaired) == (Flaw.ORPHAN, True)
        assert len(led.place.object_names()) == 1

    in_time(main)


def test_what_may_be_the_last_good_copy_of_damaged_lsns_is_never_removed() -> None:
    async def main() -> None:
        led = await tiered(3, local_retention_bytes=0)
        groups = led.storage.fetch(led.metadata.state().segments()[0], 1, 4)
        late = await led.storage.prepare(1, 3, groups)
        await led.storage.copy(late)
        await led.damage(0, b"[]")
        await asyncio.sleep(25 * 3600.0)

        damaged, stray = (await led.manager.scrub(repair=True)).findings

        assert (damaged.kind, damaged.repaired) == (Flaw.CORRUPT, False)
        assert (stray.kind, stray.lsns, stray.repaired) == (Flaw.UNCLAIMED, range(1, 4), False)
        assert len(led.place.object_names()) == 2

    in_time(main)


def test_the_only_copy_of_something_is_never_removed() -> None:
    async def main() -> None:
        led = await tiered(3)
        await asyncio.sleep(25 * 3600.0)
        elsewhere = Place()
        elsewhere.backend, elsewhere.store = led.place.backend, led.place.store
        misled = elsewhere.lead(2, wal=SealedWal(first_lsn=4))

        [found] = (await misled.manager.scrub(repair=True)).findings

        assert (found.kind, found.lsns, found.repaired) == (Flaw.UNCLAIMED, range(1, 4), False)
        assert len(led.place.object_names()) == 1

    in_time(main)


def test_an_object_that_cannot_be_read_and_that_no_event_names_goes() -> None:
    async def main() -> None:
        led = await tiered(3)
        stray = "plain/00000000-0000-0000-0000-000000000009"
        await led.place.backend.put(stray, b"[")
        await asyncio.sleep(25 * 3600.0)

        assert (await led.manager.scrub(repair=True)).is_clean
        assert len(led.place.object_names()) == 1

    in_time(main)


class Trickling(PlainStorage):
    """Lists while somebody copies."""

    led: Led

    async def objects(self):  # type: ignore[no-untyped-def]
        prepared = await self.prepare(4, 6, self.led.led.local_groups(4, 6))
        await self.led.led.publisher.copy_started(prepared)
        await self.copy(prepared)
        async for found in super().objects():
            yield found


def test_a_copy_under_way_is_no_orphan() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        trickling = Trickling(led.place.store, led.led.leader.partition)
        trickling.led = led
        led.led.storage = trickling
        led.manager.configure(TierConfig(orphan_grace_ms=0))

        assert (await led.manager.scrub(repair=True)).findings == ()
        assert len(led.place.object_names()) == 3

    in_time(main)


def test_a_leader_that_was_overtaken_takes_nothing_for_lost() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        await led.place.lead(2, wal=SealedWal(first_lsn=7), retention_bytes=0).round()

        with pytest.raises(Fenced):
            await led.manager.scrub(repair=False)

    in_time(main)


def test_sound_copies_of_an_older_term_take_the_place_of_a_damaged_segment() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(5).write(5).round()
        wal = SealedWal()
        wal.append(5, term=3)
        wal.seal()
        led = await place.lead(7, wal=wal, local_retention_bytes=KEEP_LOCAL).round()
        await led.damage(0, b"[]")

        assert (await led.manager.scrub(repair=True)).is_clean

        [piece] = led.metadata.state().cover(0, FAR)
        assert piece.segment.epochs == ((3, 1),)
        await led.storage.verify(piece.segment)
        assert (await led.manager.scrub(repair=True)).findings == ()

    in_time(main)


def test_what_sound_segments_have_is_not_copied_again() -> None:
    async def main() -> None:
        place = Place()
        await place.lead(3).write(5).round()
        led = place.lead(5, wal=SealedWal(), local_retention_bytes=KEEP_LOCAL)
        led.write(5)
        await led.led.begin()
        await copy_local(led.led, range(1, 6))
        newer = led.metadata.state().cover(0, FAR)[0].segment.segment_id
        await place.backend.put(plain_key(newer), b"[]")

        assert (await led.manager.scrub(repair=True)).is_clean
        assert len(led.metadata.state().segments()) == 2
        assert led.metadata.state().cover(0, FAR)[0].segment.segment_id != newer

    in_time(main)


class Looked(PlainStorage):
    """Something happens while a scrub reads."""

    meanwhile: Callable[[], Awaitable[object]]

    async def verify(self, segment: SegmentMetadata) -> SegmentIndex:
        happens, self.meanwhile = self.meanwhile, _nothing
        await happens()
        index: SegmentIndex = await super().verify(segment)
        return index


async def _nothing() -> None:
    """Nothing more."""


def outside(led: Led, meanwhile: Callable[[], Awaitable[object]]) -> Awaitable[ScrubResult]:
    """A scrub by somebody who only looks, in the middle of which something happens."""
    storage = Looked(led.place.store, ORDERS)
    storage.meanwhile = meanwhile
    log_start = LogStartRegister(led.place.store, ORDERS)
    metadata = FollowedPartition(led.place.log, ORDERS)
    return scrub_partition(metadata, storage, log_start, orphan_grace_ms=0)


GIVEN_UP: dict[str, dict[str, Any]] = {
    "merged": {"merge_segments": 2},
    "expired": {"retention_bytes": 0},
    "given up": {"tiering": Tiering.DELETE},
}


@pytest.mark.parametrize("how", GIVEN_UP)
def test_a_copy_that_goes_while_it_is_looked_at_is_no_damage(how: str) -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, delete_delay_ms=0)
        await led.write(3, 3, 3).round()

        async def goes() -> None:
            led.manager.configure(TierConfig(delete_delay_ms=0, **GIVEN_UP[how]))
            await led.round()
            await led.round()
            assert len(led.place.object_names()) < 3

        assert (await outside(led, goes)).findings == ()

    in_time(main)


def test_a_partition_that_is_deleted_while_it_is_looked_at_is_no_damage() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        assert (await outside(led, led.manager.delete_partition)).findings == ()

    in_time(main)


def test_what_could_not_be_looked_at_is_told_and_keeps_nothing_from_being_looked_at() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        await led.damage(2, None)
        verify = led.storage.verify

        async def closed(segment: SegmentMetadata) -> None:
            if segment.start_offset == 1:
                raise Denied("not for you")
            await verify(segment)

        led.storage.verify = closed
        found = (await led.manager.scrub(repair=True)).findings

        assert [(one.kind, one.lsns, one.repaired) for one in found] == [
            (Flaw.UNKNOWN, range(1, 4), False),
            (Flaw.MISSING, range(7, 10), True),
        ]

    in_time(main)


def test_what_cannot_be_mended_keeps_nothing_from_being_mended() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        await led.damage(0, None)
        await led.damage(1, None)
        prepare = led.storage.prepare

        async def refusing(first_lsn: int, *how: Any, **more: Any) -> Any:
            if first_lsn == 1:
                raise Denied("the disk is not to be read")
            return await prepare(first_lsn, *how, **more)

        led.storage.prepare = refusing
        first, second = (await led.manager.scrub(repair=True)).findings

        assert (first.repaired, second.repaired) == (False, True)
        assert "not to be read" in first.detail

    in_time(main)


def test_a_gap_is_filled_sealed_part_by_sealed_part() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3, 3)
        merged = led.place.lead(2, wal=led.wal, merge_segments=3, local_retention_bytes=KEEP_LOCAL)
        await merged.round()
        [first, *_] = [one for one in merged.metadata.state().segments() if one.state is FINISHED]
        await merged.place.backend.delete(plain_key(first.segment_id))

        assert (await merged.manager.scrub(repair=True)).is_clean
        assert merged.covered() == [range(1, 4), range(4, 7), range(7, 10), range(10, 13)]

    in_time(main)


def test_the_log_is_copied_while_a_scrub_reads() -> None:
    async def main() -> None:
        led = await tiered(3)
        storage = Looked(led.place.store, ORDERS)
        storage.meanwhile = lambda: led.write(3).round()
        led.led.storage = led.storage = storage

        assert (await led.manager.scrub(repair=True)).findings == ()
        assert led.covered() == [range(1, 4), range(4, 7)]

    in_time(main)


def test_what_expires_while_the_rest_is_looked_at_is_no_gap() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3, 3).round()
        last_bytes = led.metadata.state().segments()[2].size_bytes

        async def goes() -> None:
            retained = TierConfig(
                merge_below_bytes=0, retention_bytes=last_bytes, delete_delay_ms=0
            )
            led.manager.configure(retained)
            await led.round()
            await led.round()
            assert led.covered() == [range(7, 10)]

        assert (await outside(led, goes)).findings == ()

    in_time(main)


def test_a_partition_that_is_being_deleted_lacks_nothing() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        publish, middle = led.metadata.publish, led.metadata.state().segments()[1].segment_id

        async def of_the_middle(event: Any, **how: Any) -> Any:
            if getattr(event, "segment_id", middle) != middle:
                raise Unavailable("no connection")
            return await publish(event, **how)

        led.metadata.publish = of_the_middle  # type: ignore[method-assign]
        assert not await led.manager.delete_partition()
        led.metadata.publish = publish  # type: ignore[method-assign]
        assert led.covered() == [range(1, 4), range(7, 10)]

        for repair in (False, True):
            assert (await led.manager.scrub(repair=repair)).findings == ()

    in_time(main)


def test_what_was_found_is_told_although_the_rest_could_not_be_looked_at() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        await led.damage(0, None)

        def never(*how: Any) -> Any:
            raise NotReady("not yet", partition=0)

        with mock.patch.object(PartitionCache, "cover_part", never):
            found = (await led.manager.scrub(repair=False)).findings

        assert [one.kind for one in found] == [Flaw.MISSING, Flaw.UNKNOWN]

    in_time(main)
