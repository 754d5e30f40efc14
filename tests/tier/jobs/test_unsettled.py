"""While it is not known what became of an event, nothing is decided by what is known."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.tier import EventOutcome, MetadataEvent, SegmentState, SegmentUpdate
from headwater.tier.jobs import TierConfig
from headwater.tier.segment_cover import gaps
from tests.tier.jobs.given import Led, Place, in_time

FINISHED, DELETING = SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED
Publish = Callable[..., Awaitable[EventOutcome]]


class Line:
    """The way to the log of events, with the next answers told beforehand."""

    def __init__(self, led: Led) -> None:
        self.tried: list[MetadataEvent] = []
        self.answers: list[HeadwaterError] = []
        """What comes instead of the next events' landing."""
        self.lost: SegmentState | None = None
        """The answer to the next event of this state is lost; it lands."""
        self._publish = led.metadata.publish
        led.metadata.publish = self.publish  # type: ignore[method-assign]

    async def publish(self, event: MetadataEvent, **how: Any) -> EventOutcome:
        self.tried.append(event)
        if self.answers:
            raise self.answers.pop(0)
        outcome = await self._publish(event, **how)
        if isinstance(event, SegmentUpdate) and event.state is self.lost:
            self.lost = None
            raise OutcomeUnknown("the answer was lost")
        return outcome


@pytest.mark.parametrize("error", [Unavailable("no connection"), Refused("not now")])
def test_an_event_that_does_not_land_the_second_time_may_have_landed_the_first(
    error: HeadwaterError,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        first, second = led.metadata.segments()
        line = Line(led)
        line.answers = [OutcomeUnknown("nobody answered"), error]
        for _ in range(2):
            with pytest.raises(type(line.answers[0])):
                await led.led.voice.unlist(first)
        assert not led.led.voice.is_settled

        line.tried.clear()
        await led.led.voice.unlist(second)
        told = [one.segment_id for one in line.tried if isinstance(one, SegmentUpdate)]
        assert told == [first.segment_id, second.segment_id]

    in_time(main)


def test_what_a_copy_replaced_is_unlisted_though_the_answer_to_its_last_event_was_lost() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        led.manager.configure(TierConfig(merge_segments=2))
        Line(led).lost = FINISHED
        await led.manager.run_once()
        assert "answer was lost" in str(led.manager.problems["merge"])
        assert led.states() == [FINISHED] * 3

        await led.round()
        assert sorted(led.states()) == [FINISHED, DELETING, DELETING]
        assert led.covered() == [range(1, 7)]

    in_time(main)


def test_a_repair_waits_until_it_is_known_what_is_listed() -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3, 3).round()
        small = led.metadata.segments()
        line = Line(led)
        line.lost = FINISHED
        led.manager.configure(TierConfig(merge_segments=2))
        await led.manager.run_once()
        merged = next(one for one in led.metadata.segments() if one not in small)
        await led.damage(led.metadata.segments().index(merged), b"garbage")
        verify = led.storage.verify

        async def unlisted_meanwhile(segment: Any) -> None:
            led.storage.verify = verify
            line.answers = [OutcomeUnknown("nobody answered")]
            with contextlib.suppress(OutcomeUnknown):
                await led.led.unlist(small[0])
            await verify(segment)

        led.storage.verify = unlisted_meanwhile
        scrubbed = await led.manager.scrub(mend=True)

        assert scrubbed.is_clean
        assert led.metadata.find(merged.segment_id).state is DELETING  # type: ignore[union-attr]
        assert gaps(led.metadata.cover(1, 7), 1, 7) == []

    in_time(main)


def test_a_job_ends_with_an_event_of_unknown_outcome() -> None:
    async def main() -> None:
        led = Place().lead(merge_below_bytes=0, retention_bytes=0, delete_delay_ms=0)
        await led.write(1, 1, 1, 1).round()
        assert led.states() == [DELETING] * 4
        line = Line(led)
        line.answers = [OutcomeUnknown("nobody answered")]
        await led.manager.run_once()

        assert "nobody answered" in str(led.manager.problems["clean up"])
        removed = [one for one in line.tried if isinstance(one, SegmentUpdate)]
        assert {one.segment_id for one in removed} == {removed[0].segment_id}
        assert len(led.place.object_names()) == 3, "the others have their turn when that is known"

        assert (await led.round()).states() == []

    in_time(main)
