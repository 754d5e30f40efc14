"""Of a deleted stream nothing is led, listed or copied any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.stream import delete_stream
from headwater.buffer.stream.config import StreamConfig, StreamRegister
from headwater.core.errors import Fenced, Unavailable
from headwater.tier import PartitionDeleteState, TopicIdPartition, TopicMetadataManager
from headwater.tier.errors import StreamGone
from headwater.tier.manager import publish_deletion
from tests.tier.jobs.given import ORDERS, Led, Place, in_time

FINISHED = PartitionDeleteState.FINISHED
ANOTHER = "00000000-0000-0000-0000-000000000002"


async def streamed(place: Place, stream_id: str = str(ORDERS.topic_id)) -> None:
    """Let the store have the stream that is led."""
    made = StreamConfig(id=stream_id, name=ORDERS.name, created_ms=0)
    await StreamRegister(place.store, ORDERS.name).update(lambda _: made)


async def deleted(place: Place) -> None:
    await delete_stream(place.store, ORDERS.name)


async def deleted_and_made_again(place: Place) -> None:
    await deleted(place)
    await streamed(place, ANOTHER)


async def tiered() -> Led:
    place = Place()
    await streamed(place)
    return await place.lead(4).write(3).round()


@pytest.mark.parametrize(("goes", "advised"), [(deleted, True), (deleted_and_made_again, False)])
def test_a_leader_whose_stream_is_gone_stops_visibly_and_copies_nothing_more(
    goes: Callable[[Place], Awaitable[None]], advised: bool
) -> None:
    async def main() -> None:
        led = await tiered()
        await goes(led.place)
        led.write(3)
        objects, events = led.place.object_names(), len(led.place.log.events_of(0))

        with pytest.raises(StreamGone, match="Stop its leader"):
            await asyncio.wait_for(led.manager.run(), 60.0)

        assert not led.manager.leads
        problem = led.manager.problems["look at the stream"]
        assert isinstance(problem, StreamGone)
        assert ("headwater stream delete" in str(problem)) is advised
        with pytest.raises(StreamGone):
            await led.manager.run_once()
        with pytest.raises(StreamGone):
            await led.manager.scrub(repair=True)
        assert (led.place.object_names(), len(led.place.log.events_of(0))) == (objects, events)
        assert (led.wal.oldest_lsn(), led.wal.current_lsn()) == (4, 6)

    in_time(main)


def test_nobody_begins_to_lead_a_stream_that_is_gone() -> None:
    async def main() -> None:
        led = await tiered()
        await deleted(led.place)
        events = len(led.place.log.events_of(0))

        with pytest.raises(StreamGone):
            await led.place.lead(5).write(3).manager.run_once()
        assert len(led.place.log.events_of(0)) == events

    in_time(main)


def test_while_it_cannot_be_told_whether_the_stream_is_there_the_jobs_do_their_work() -> None:
    async def main() -> None:
        led = await tiered()

        async def unknown() -> None:
            raise Unavailable("no connection")

        look, led.led.register.check_stream = led.led.register.check_stream, unknown  # type: ignore[method-assign]
        await led.write(3).manager.run_once()
        assert list(led.manager.problems) == ["look at the stream"]
        assert led.covered() == [range(1, 4), range(4, 7)]

        led.led.register.check_stream = look  # type: ignore[method-assign]
        await led.round()

    in_time(main)


async def known_of(place: Place) -> TopicMetadataManager:
    manager = await TopicMetadataManager.start(place.log)
    await manager.reconcile_assignment({0})
    await manager.wait_ready(0)
    return manager


def test_what_is_deleted_is_listed_no_more_and_a_leader_that_goes_on_is_fenced() -> None:
    async def main() -> None:
        led = await tiered()
        other = TopicIdPartition(ORDERS.topic_id, ORDERS.name, 1)
        assert await publish_deletion(led.place.log, [ORDERS, other], FINISHED) == 1

        manager = await known_of(led.place)
        assert manager.partition(ORDERS).segments() == []
        assert manager.partition(ORDERS).publisher_epoch == 5
        assert manager.partition(other).publisher_epoch is None
        with pytest.raises(Fenced):
            await led.write(3).manager.run_once()
        await manager.refresh(0)
        assert manager.partition(ORDERS).segments() == []
        assert await publish_deletion(led.place.log, [ORDERS], FINISHED) == 0
        await manager.close()

    in_time(main)


@pytest.mark.parametrize("first", PartitionDeleteState)
def test_a_deletion_is_taken_up_again_at_every_step(first: PartitionDeleteState) -> None:
    async def main() -> None:
        led = await tiered()
        before = len(led.place.log.events_of(0))
        await publish_deletion(led.place.log, [ORDERS], first)
        await publish_deletion(led.place.log, [ORDERS], first)
        await publish_deletion(led.place.log, [ORDERS], FINISHED)

        assert len(led.place.log.events_of(0)) == before + 3
        manager = await known_of(led.place)
        assert manager.partition(ORDERS).segments() == []
        assert manager.partition(ORDERS).delete_state is None
        await manager.close()

    in_time(main)


def test_a_leader_that_is_fenced_by_the_deletion_says_that_its_stream_is_gone() -> None:
    async def main() -> None:
        led = await tiered()
        look = led.led.register.check_stream
        asked: list[None] = []

        async def too_early() -> None:
            asked.append(None)
            if len(asked) > 1:
                await look()

        led.led.register.check_stream = too_early  # type: ignore[method-assign]
        await deleted(led.place)
        await publish_deletion(led.place.log, [ORDERS], FINISHED)
        led.write(3)

        with pytest.raises(StreamGone):
            await asyncio.wait_for(led.manager.run(), 60.0)
        assert len(asked) == 2

    in_time(main)
