"""What is not known of an event is not known until an answer says so."""

from __future__ import annotations

import pytest

from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.tier import EventOutcome
from tests.tier.jobs.given import Place, in_time


@pytest.mark.parametrize("error", [Unavailable("no connection"), Refused("not assigned")])
def test_an_event_that_may_have_landed_is_not_settled_by_an_attempt_that_did_not(
    error: HeadwaterError,
) -> None:
    async def main() -> None:
        led = await Place().lead(merge_below_bytes=0).write(3).round()
        voice, publish = led.led.voice, led.metadata.publish
        answers: list[HeadwaterError] = [OutcomeUnknown("nobody answered"), error]

        async def unlucky(event: object, *, publisher_epoch: int) -> EventOutcome:
            raise answers.pop(0)

        led.metadata.publish = unlucky  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await voice.unlist(led.metadata.segments()[0])
        with pytest.raises(type(error)):
            await voice.settle()
        known = [voice.is_settled]

        led.metadata.publish = publish  # type: ignore[method-assign]
        await voice.settle()
        known.append(voice.is_settled)
        assert known == [False, True]
        assert led.covered() == []

    in_time(main)
