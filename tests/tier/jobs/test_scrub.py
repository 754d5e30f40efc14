"""A scrub finds what is wrong, mends what it can, and never removes the only copy."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core.errors import Fenced
from headwater.tier import SegmentState
from headwater.tier.jobs import TierConfig
from headwater.tier.jobs.scrub import Kind
from tests.tier.jobs.given import Led, Place, in_time
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
        scrubbed = await led.manager.scrub(mend=False)

        assert (scrubbed.findings, scrubbed.segments, scrubbed.objects) == ((), 2, 2)
        assert scrubbed.size_bytes == sum(one.size_bytes for one in led.metadata.segments())

    in_time(main)


def test_what_is_missing_or_damaged_is_told_and_copied_again_from_the_local_log() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        await led.damage(0, None)
        await led.damage(2, b"[]")
        found = await led.manager.scrub(mend=False)
        assert [(one.kind, one.lsns) for one in found.findings] == [
            (Kind.MISSING, range(1, 4)),
            (Kind.CORRUPT, range(7, 10)),
        ]
        assert not found.is_clean

        assert (await led.manager.scrub(mend=True)).is_clean
        assert (await led.manager.scrub(mend=False)).findings == ()
        assert led.covered() == [range(1, 4), range(4, 7), range(7, 10)]

    in_time(main)


def test_what_the_local_log_no_longer_has_is_told_as_lost_and_stays_listed() -> None:
    async def main() -> None:
        led = await tiered(3, 3, local_retention_bytes=0)
        await led.damage(0, None)
        scrubbed = await led.manager.scrub(mend=True)

        assert not scrubbed.is_clean
        assert led.states() == [FINISHED, FINISHED]

    in_time(main)


def test_what_the_local_log_has_of_a_damaged_segment_is_saved() -> None:
    async def main() -> None:
        led = await tiered(6)
        await led.wal.prune_through(4)
        await led.damage(0, None)

        assert not (await led.manager.scrub(mend=True)).is_clean
        assert led.covered() == [range(1, 5), range(5, 7)]

    in_time(main)


def test_a_damaged_segment_that_is_not_read_any_more_is_only_unlisted() -> None:
    async def main() -> None:
        led = await tiered(3, local_retention_bytes=0)
        [older] = led.metadata.segments()
        prepared = await led.storage.prepare(1, 3, led.storage.fetch(older, 1, 4))
        await led.led.publisher.started(prepared)
        await led.storage.copy(prepared)
        await led.led.publisher.finished(prepared)
        await led.place.backend.delete(plain_key(older.segment_id))

        assert (await led.manager.scrub(mend=True)).is_clean
        assert sorted(led.states()) == [FINISHED, SegmentState.DELETE_STARTED]

    in_time(main)


def test_a_gap_is_told_and_filled() -> None:
    async def main() -> None:
        led = await tiered(3, 3, 3)
        await led.led.publisher.unlist(led.metadata.segments()[1])
        found = (await led.manager.scrub(mend=False)).findings
        assert [(one.kind, one.lsns) for one in found] == [(Kind.GAP, range(4, 7))]

        assert (await led.manager.scrub(mend=True)).is_clean
        assert led.covered() == [range(1, 4), range(4, 7), range(7, 10)]

    in_time(main)


def test_an_object_that_no_event_names_goes_after_a_grace() -> None:
    async def main() -> None:
        led = await tiered(3)
        late = await led.storage.prepare(1, 3, led.led.local_groups(1, 3))
        await led.storage.copy(late)
        assert (await led.manager.scrub(mend=True)).findings == ()

        await asyncio.sleep(25 * 3600.0)
        [found] = (await led.manager.scrub(mend=True)).findings

        assert (found.kind, found.mended) == (Kind.ORPHAN, True)
        assert len(led.place.object_names()) == 1

    in_time(main)


def test_what_may_be_the_last_good_copy_of_damaged_lsns_is_never_removed() -> None:
    async def main() -> None:
        led = await tiered(3, local_retention_bytes=0)
        groups = led.storage.fetch(led.metadata.segments()[0], 1, 4)
        late = await led.storage.prepare(1, 3, groups)
        await led.storage.copy(late)
        await led.damage(0, b"[]")
        await asyncio.sleep(25 * 3600.0)

        damaged, stray = (await led.manager.scrub(mend=True)).findings

        assert (damaged.kind, damaged.mended) == (Kind.CORRUPT, False)
        assert (stray.kind, stray.lsns, stray.mended) == (Kind.UNCLAIMED, range(1, 4), False)
        assert len(led.place.object_names()) == 2

    in_time(main)


def test_the_only_copy_of_something_is_never_removed() -> None:
    async def main() -> None:
        led = await tiered(3)
        await asyncio.sleep(25 * 3600.0)
        elsewhere = Place()
        elsewhere.backend, elsewhere.store = led.place.backend, led.place.store
        misled = elsewhere.lead(2, wal=SealedWal(first_lsn=4))

        [found] = (await misled.manager.scrub(mend=True)).findings

        assert (found.kind, found.lsns, found.mended) == (Kind.UNCLAIMED, range(1, 4), False)
        assert len(led.place.object_names()) == 1

    in_time(main)


def test_an_object_that_cannot_be_read_and_that_no_event_names_goes() -> None:
    async def main() -> None:
        led = await tiered(3)
        stray = "plain/00000000-0000-0000-0000-000000000009"
        await led.place.backend.put(stray, b"[")
        await asyncio.sleep(25 * 3600.0)

        assert (await led.manager.scrub(mend=True)).is_clean
        assert len(led.place.object_names()) == 1

    in_time(main)


class Trickling(PlainStorage):
    """Lists while somebody copies."""

    led: Led

    async def objects(self):  # type: ignore[no-untyped-def]
        prepared = await self.prepare(4, 6, self.led.led.local_groups(4, 6))
        await self.led.led.publisher.started(prepared)
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

        assert (await led.manager.scrub(mend=True)).findings == ()
        assert len(led.place.object_names()) == 3

    in_time(main)


def test_a_leader_that_was_overtaken_takes_nothing_for_lost() -> None:
    async def main() -> None:
        led = await tiered(3, 3)
        await led.place.lead(2, wal=SealedWal(first_lsn=7), retention_bytes=0).round()

        with pytest.raises(Fenced):
            await led.manager.scrub(mend=False)

    in_time(main)
