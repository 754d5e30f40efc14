"""A damaged log of events begins anew, and comes to what it came to before."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, Refused
from headwater.store import MemoryBackend
from headwater.tier import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentState,
    encode_event,
)
from headwater.tier.eventlog import Compactor
from headwater.tier.jobs.copying import copy_local
from headwater.tier.reader import LogReader
from headwater.tier.segments import ObjectStorage
from tests.tier.eventlog.stored_given import GRACE_S
from tests.tier.given import copy_finished, copy_started
from tests.tier.jobs.given import in_time
from tests.tier.jobs.sealed_wal import SealedWal
from tests.tier.rebuild.given import Tier

DELAY_S = 1.0


async def plain(tier: Tier) -> None:
    tier.write(10, 10, 10, term=1)
    await (await (await tier.lead(1)).round()).stop()


async def several_epochs(tier: Tier) -> None:
    await plain(tier)
    for epoch in (2, 3):
        tier.write(10, 5, term=epoch)
        await (await (await tier.lead(epoch)).round()).stop()


async def merged(tier: Tier) -> None:
    """Twice, so that some of the parts are removed and others only unlisted."""
    await several_epochs(tier)
    leader = await tier.lead(4, merge_below_bytes=1 << 20, merge_segments=3, delete_delay_ms=1_000)
    await leader.round()
    await runtime.sleep(DELAY_S + 1)
    await leader.round()
    assert leader.tier.metrics.removed_objects
    tier.write(10, 10, 10, term=4)
    await leader.round()
    assert leader.tier.led.metadata.state().unfinished()
    await leader.stop()


async def uploaded_again(tier: Tier) -> None:
    """The same LSNs in parts that were cut elsewhere."""
    await plain(tier)
    leader = await (await tier.lead(2)).round()
    await copy_local(leader.tier.led, range(6, 26))
    await leader.stop()


async def expired(tier: Tier) -> None:
    await several_epochs(tier)
    kept_bytes = (
        sum(one.size_bytes for one in (await tier.known()).partition(tier.orders).segments()) // 2
    )
    leader = await (await tier.lead(4, retention_bytes=kept_bytes)).round()
    assert leader.tier.led.first_lsn > 1
    await leader.stop()


async def being_deleted(tier: Tier) -> None:
    """The first of its objects are gone."""
    await plain(tier)
    leader = await (await tier.lead(2)).round()
    led = leader.tier.led
    await led.publisher.partition_deletion(PartitionDeleteState.MARKED)
    await led.publisher.partition_deletion(PartitionDeleteState.STARTED)
    first = led.metadata.state().segments_part(0, 1)[0][0]
    await led.unlist(first)
    await led.storage.delete(first.segment_id)
    await led.publisher.object_removed(first.segment_id)
    await leader.stop()


async def deleted_and_copied_again(tier: Tier) -> None:
    await plain(tier)
    leader = await (await tier.lead(2)).round()
    assert await leader.tier.delete_partition()
    await leader.stop()
    await (await (await tier.lead(3)).round()).stop()


async def led_by_two(tier: Tier) -> None:
    """The first one goes on when it is over, and copies what the second one copies later."""
    await plain(tier)
    tier.write(10, term=1)
    leader = await tier.lead(2)
    await leader.tier._begin()
    await copy_without_leading(tier, range(31, 41))
    await (await leader.round()).stop()


async def copy_without_leading(tier: Tier, lsns: range) -> SegmentId:
    """A copy and its events, under epoch 1, which is over."""
    stale = (await tier.lead(1)).tier.led
    prepared = await stale.storage.prepare(
        lsns.start, lsns.stop - 1, stale.local_groups(lsns.start, lsns.stop - 1)
    )
    await stale.storage.copy(prepared)
    for event in (copy_started(prepared), copy_finished(prepared)):
        await (await tier.log()).publish(0, encode_event(event), publisher_epoch=1)
    return prepared.metadata.segment_id


HISTORIES = [
    plain,
    several_epochs,
    merged,
    uploaded_again,
    expired,
    deleted_and_copied_again,
    led_by_two,
]
History = Callable[[Tier], Awaitable[None]]


async def after(history: History) -> Tier:
    tier = await Tier.make()
    await history(tier)
    return tier


@pytest.mark.parametrize("history", [*HISTORIES, being_deleted])
def test_whichever_event_is_lost_the_cover_is_what_it_was(history: History) -> None:
    async def main() -> None:
        tier = await after(history)
        before, deletion = (
            await tier.cover(),
            (await tier.known()).partition(tier.orders).delete_state,
        )
        assert before
        # A log whose last event is lost is one that ends before it: nothing tells.
        for key in tier.event_keys()[:-1]:
            event = await tier.store.get(key)
            await tier.backend.delete(key)
            prefix, rebuilt = await tier.rebuild()
            assert await tier.cover(prefix) == before, key
            anew = (await tier.known(prefix)).partition(tier.orders).delete_state
            stopped = rebuilt.partitions[0].deletion_stopped
            assert anew is deletion or (anew is None and stopped)
            assert rebuilt.missing == (f"{key}: gone, and later events are not",)
            await tier.backend.put(key, bytes(event.data))

    in_time(main)


@pytest.mark.parametrize("history", HISTORIES)
def test_segments_alone_say_what_the_cover_was(history: History) -> None:
    async def main() -> None:
        tier = await after(history)
        prefix, rebuilt = await tier.rebuild(alone=True)
        assert await tier.cover(prefix) == await tier.cover()
        [told] = rebuilt.partitions
        assert (told.gaps, told.unreadable, told.foreign) == ((), (), ())

    in_time(main)


@pytest.mark.parametrize("history", HISTORIES)
def test_whatever_events_are_lost_every_record_is_read(history: History) -> None:
    async def main() -> None:
        tier = await after(history)
        records = await tier.hashes(await tier.known())
        objects = dict(tier.backend._objects)
        for seed in range(20):
            choice = random.Random(seed)
            keys = tier.event_keys()
            for key in choice.sample(keys[:-1], choice.randrange(1, len(keys))):
                if choice.random() < 0.5:
                    await tier.backend.delete(key)
                else:
                    await tier.backend.put(key, b"HWE1 and then nothing")
            prefix, _ = await tier.rebuild()
            assert await tier.hashes(await tier.known(prefix)) == records, seed
            for key in keys:
                await tier.backend.put(key, bytes(_data(objects[key])))

    in_time(main)


def _data(stored: object) -> bytes:
    return bytes(stored.data)  # type: ignore[attr-defined]


@pytest.mark.parametrize("history", [*HISTORIES, being_deleted])
def test_a_log_of_which_nothing_is_missing_comes_to_the_same(history: History) -> None:
    async def main() -> None:
        tier = await after(history)
        led = (await tier.lead(9)).tier.led
        tier.write(10, term=9)
        last_lsn = tier.wal.current_lsn()
        groups = led.local_groups(last_lsn - 9, last_lsn)
        await led.storage.copy(await led.storage.prepare(last_lsn - 9, last_lsn, groups))
        prefix, rebuilt = await tier.rebuild()
        before, anew = await tier.known(), await tier.known(prefix)
        assert rebuilt.missing == ()
        assert anew.partition(tier.orders).segments() == before.partition(tier.orders).segments()
        assert (
            anew.partition(tier.orders).delete_state is before.partition(tier.orders).delete_state
        )
        assert await tier.cover(prefix) == await tier.cover()

    in_time(main)


def test_the_next_leader_and_a_reader_go_on_with_it() -> None:
    async def main() -> None:
        tier = await after(merged)
        records = await tier.hashes(await tier.known())
        await tier.backend.delete(tier.event_keys()[3])
        prefix, _ = await tier.rebuild(alone=True)

        stale = await tier.lead(3, prefix=prefix)
        with pytest.raises(Fenced):
            await stale.tier.run_once()
        await stale.stop()
        leader = await (await tier.lead(5, prefix=prefix, delete_delay_ms=1_000)).round()
        covering = leader.tier.led.metadata.refreshed_cover
        reader = LogReader(ObjectStorage(tier.store), covering, leader.tier.led.register.first_lsn)
        read = [group async for group in reader.read(1, 61)]
        assert (read[0].first_lsn, read[-1].last_lsn) == (1, 60)
        # What was merged is unlisted again, and goes when the delay is over.
        unlisted = [one.state for one in leader.tier.led.metadata.state().unfinished()]
        assert set(unlisted) == {SegmentState.DELETE_STARTED}
        await runtime.sleep(DELAY_S + 1)
        await leader.round()
        assert leader.tier.led.metadata.state().unfinished() == []
        seen = await leader.tier.scrub(repair=False)
        assert seen.findings == ()
        await leader.stop()
        assert await tier.hashes(await tier.known(prefix)) == records

    in_time(main)


def test_a_deletion_that_may_have_ended_is_stopped_and_told() -> None:
    async def main() -> None:
        tier = await after(being_deleted)
        await tier.backend.delete(tier.event_keys()[-2])
        prefix, rebuilt = await tier.rebuild()
        assert rebuilt.partitions[0].deletion_stopped
        assert (await tier.known(prefix)).partition(tier.orders).delete_state is None

    in_time(main)


@pytest.mark.parametrize("lost", ["the first of its events", "what stood between them"])
def test_a_deletion_that_goes_on_behind_what_is_missing_goes_on(lost: str) -> None:
    async def main() -> None:
        tier = await after(plain)
        log = await tier.log()
        for state in (PartitionDeleteState.MARKED, PartitionDeleteState.STARTED):
            event = encode_event(PartitionDelete(tier.orders, 1, 0, state))
            await log.publish(0, event, publisher_epoch=1)
            await log.publish(0, b"no event")
        if lost == "the first of its events":
            await tier.backend.delete(tier.event_keys()[-4])
        await tier.backend.delete(tier.event_keys()[-1])
        prefix, rebuilt = await tier.rebuild()
        known = await tier.known(prefix)
        assert known.partition(tier.orders).delete_state is PartitionDeleteState.STARTED
        assert not rebuilt.partitions[0].deletion_stopped

    in_time(main)


def test_the_newest_leader_fences_older_ones_though_its_event_is_lost() -> None:
    async def main() -> None:
        tier = await after(plain)
        await (await (await tier.lead(3)).round()).stop()
        await (await tier.log()).publish(0, b"no event")
        *_, began, _ = tier.event_keys()
        await tier.backend.delete(began)
        prefix, rebuilt = await tier.rebuild()
        assert rebuilt.partitions[0].leader_epoch == 3
        assert (await tier.known(prefix)).partition(tier.orders).publisher_epoch == 3
        stale = await tier.lead(2, prefix=prefix)
        with pytest.raises(Fenced):
            await stale.tier.run_once()
        await stale.stop()

    in_time(main)


def test_a_segment_without_an_object_hides_none_that_has_one() -> None:
    async def main() -> None:
        tier = await after(plain)
        before = await tier.cover()
        tier.wal = SealedWal()
        tier.write(20, term=2)
        leader = await (await tier.lead(2)).round()
        await copy_local(leader.tier.led, range(1, 11))
        await copy_local(leader.tier.led, range(11, 21))
        hiding = (await tier.cover())[0][0]
        await leader.tier.led.storage.delete(SegmentId(tier.orders, hiding))
        await leader.stop()
        await tier.backend.delete(tier.event_keys()[0])
        prefix, rebuilt = await tier.rebuild()
        assert (await tier.cover(prefix))[0] == before[0]
        assert rebuilt.partitions[0].gone == (str(hiding),)

    in_time(main)


def test_what_a_leader_said_that_was_over_still_does_not_count() -> None:
    async def main() -> None:
        tier = await after(plain)
        await (await (await tier.lead(2)).round()).stop()
        tier.write(10, term=1)
        await copy_without_leading(tier, range(31, 41))
        before = await tier.cover()
        assert before[-1][1].stop == 31
        await tier.backend.delete(tier.event_keys()[1])
        prefix, _ = await tier.rebuild()
        assert await tier.cover(prefix) == before

    in_time(main)


def test_an_object_that_holds_nothing_more_is_left_to_the_scrub() -> None:
    async def main() -> None:
        tier = await after(plain)
        led = (await tier.lead(2)).tier.led
        await led.storage.copy(await led.storage.prepare(1, 20, led.local_groups(1, 20)))
        before = (await tier.known()).partition(tier.orders).segments()
        await tier.backend.delete(tier.event_keys()[0])
        prefix, _ = await tier.rebuild()
        assert (await tier.known(prefix)).partition(tier.orders).segments() == before

    in_time(main)


def test_a_copy_that_never_ended_is_listed_only_where_its_end_may_be_lost() -> None:
    async def main() -> None:
        tier = await after(plain)
        leader = await (await tier.lead(2)).round()
        tier.write(10, term=2)
        led = leader.tier.led
        prepared = await led.storage.prepare(31, 40, led.local_groups(31, 40))
        await led.publisher.copy_started(prepared)
        await led.storage.copy(prepared)
        await leader.stop()
        before = await tier.cover()
        assert before[-1][1].stop == 31
        earlier = tier.event_keys()[2]
        event = await tier.store.get(earlier)
        await tier.backend.delete(earlier)
        prefix, _ = await tier.rebuild()
        assert await tier.cover(prefix) == before
        await tier.backend.put(earlier, bytes(event.data))

        await (await tier.log()).publish(0, b"no event")
        prefix, rebuilt = await tier.rebuild()
        assert await tier.cover(prefix) == [
            *before,
            (prepared.metadata.segment_id.id, range(31, 41)),
        ]
        [key] = [
            key for key in tier.backend._objects if str(prepared.metadata.segment_id.id) in key
        ]
        await tier.backend.put(key, b"half of it")
        prefix, rebuilt = await tier.rebuild()
        assert await tier.cover(prefix) == before
        assert rebuilt.partitions[0].unreadable == (f"{key} is not what its event says",)

    in_time(main)


def test_what_cannot_be_listed_is_told() -> None:
    async def main() -> None:
        tier = await after(plain)
        folder = f"streams/orders/0/segments/{tier.orders.topic_id}"
        first, second, _ = sorted(key for key in tier.backend._objects if key.endswith(".parquet"))
        await _flip(tier.backend, second, -20)
        await tier.backend.put(f"{folder}/notes.txt", b"foreign")
        renamed = f"{folder}/{uuid.UUID(int=7)}.parquet"
        await tier.backend.put(renamed, _data(tier.backend._objects[first]))
        prefix, rebuilt = await tier.rebuild(alone=True)
        [told] = rebuilt.partitions
        assert told.foreign == (f"{folder}/notes.txt",)
        for key, what in zip((renamed, second), sorted(told.unreadable), strict=True):
            assert key in what
        assert told.gaps == ((11, 20),)
        assert [lsns for _, lsns in await tier.cover(prefix)] == [range(1, 11), range(21, 31)]

        # An event that says that it is there keeps it listed, so that readers are told.
        await tier.backend.delete(tier.event_keys()[0])
        prefix, rebuilt = await tier.rebuild()
        assert rebuilt.partitions[0].gaps == ()

    in_time(main)


async def _flip(backend: MemoryBackend, key: str, at: int) -> None:
    data = bytearray(_data(backend._objects[key]))
    data[at] ^= 1
    await backend.put(key, bytes(data))


@pytest.mark.parametrize("lost", ["floor", "snapshot", "event"])
def test_a_compacted_log_of_which_a_part_is_lost(lost: str) -> None:
    async def main() -> None:
        tier = await after(several_epochs)
        compactor = Compactor(await tier.log())
        await compactor.compact(0, every_events=1)
        await runtime.sleep(GRACE_S)
        await compactor.compact(0, every_events=1)
        tier.write(10, 10, term=4)
        await (await (await tier.lead(4)).round()).stop()
        before = await tier.cover()
        keys = [key for key in tier.backend._objects if key.startswith("metadata/0/")]
        names = {
            "floor": next(key for key in keys if key.endswith("floor.json")),
            "snapshot": next(key for key in keys if "snapshot" in key),
            "event": tier.event_keys()[-2],
        }
        other = f"metadata/0/snapshot-{99:020d}-{0:032x}"
        await tier.backend.put(other, await _snapshot_of_another_log(tier))
        await tier.backend.delete(names[lost])
        prefix, rebuilt = await tier.rebuild()
        assert await tier.cover(prefix) == before
        assert names[lost] in rebuilt.missing[0]
        told = [f"{other} is a snapshot of another log or metadata partition"]
        assert list(rebuilt.missing[1:]) == ([] if lost == "event" else told)
        assert bool(rebuilt.partitions[0].from_objects) is (lost == "snapshot")

    in_time(main)


async def _snapshot_of_another_log(tier: Tier) -> bytes:
    prefix, _ = await tier.rebuild()
    [key] = [key for key in tier.backend._objects if key.startswith(f"{prefix}/0/snapshot")]
    return _data(tier.backend._objects[key])


def test_only_an_empty_log_is_begun() -> None:
    async def main() -> None:
        tier = await after(plain)
        prefix, _ = await tier.rebuild()
        tier._anew -= 1
        with pytest.raises(Refused, match="choose an unused prefix"):
            await tier.rebuild()
        assert prefix == "anew-1"

    in_time(main)
