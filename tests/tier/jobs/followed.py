"""What a leader knows by an in-process log of events, over a bad line to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Unavailable
from headwater.tier import (
    EventOutcome,
    EventRejected,
    MetadataEvent,
    TierCache,
    TopicIdPartition,
    decode_event,
    encode_event,
)
from headwater.tier.cache import PartitionCache
from headwater.tier.errors import NotReady
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.manager import ManagedPartition


@dataclass(frozen=True)
class LineFaults:
    """How often what happens to a request, from 0 to 1."""

    fail: float = 0.0
    """It is not carried out, and the client knows."""
    lose_answer: float = 0.0
    lose_request: float = 0.0
    late: float = 0.0
    """The client is told nothing; the event lands later, unless another one took its place."""
    unready: float = 0.0
    """What is asked is not known for a moment."""

    @classmethod
    def swarm(cls, rates: random.Random) -> LineFaults:
        def rate() -> float:
            return rates.choice((0.0, 0.0, 0.02, 0.2))

        unready = rates.choice((0.0, 0.0, 0.02))
        return cls(rate(), rate(), rate(), rate(), unready)


class FollowedPartition(ManagedPartition):
    """The state over metadata partition 0 of an in-process log."""

    def __init__(
        self,
        log: InProcessEventLog,
        partition: TopicIdPartition,
        *,
        faults: Callable[[], LineFaults] = LineFaults,
        chance: random.Random | None = None,
        spawn: Callable[..., object] | None = None,
        latency_s: float = 0.0,
    ) -> None:
        self.cache = TierCache()
        self.log = log
        self._partition = partition
        self._faults = faults
        self._chance = chance or random.Random(0)
        self._spawn = spawn or runtime.spawn
        self._latency_s = latency_s
        self._verdicts: list[EventOutcome | EventRejected] = []

    async def refresh(self) -> None:
        await self._line()
        self.follow()

    async def publish(self, event: MetadataEvent, *, publisher_epoch: int) -> EventOutcome:
        await self._line()
        payload = encode_event(event)
        if self._strikes("lose_request"):
            raise OutcomeUnknown("nobody answered")
        if self._strikes("late"):
            place = len(self.log.events_of(0))
            late = self._land_late(payload, publisher_epoch, place)
            self._spawn(late, name="an event on its way")
            raise OutcomeUnknown("nobody answered yet")
        offset = await self.log.publish(0, payload, publisher_epoch=publisher_epoch)
        await runtime.sleep(self._chance.random() * self._latency_s)
        if self._strikes("lose_answer"):
            raise OutcomeUnknown("the answer was lost")
        self.follow()
        verdict = self._verdicts[offset]
        if isinstance(verdict, EventRejected):
            raise verdict
        if verdict is EventOutcome.STALE:
            raise Fenced("a newer leader has published")
        return verdict

    def state(self) -> PartitionCache:
        if self._strikes("unready"):
            raise NotReady("what is known is not all", partition=0)
        return self.cache.partition(self._partition)

    def follow(self) -> None:
        """Apply what the log has beyond what was applied."""
        for item in self.log.events_of(0)[len(self._verdicts) :]:
            try:
                outcome: Any = self.cache.apply(decode_event(item.payload), item.publisher_epoch)
            except EventRejected as rejected:
                outcome = rejected
            self._verdicts.append(outcome)

    async def _land_late(self, payload: bytes, publisher_epoch: int, place: int) -> None:
        await runtime.sleep(self._chance.choice((1.0, 100.0, 10_000.0)) * self._chance.random())
        # A log in numbered places takes nothing in a place that is taken.
        if len(self.log.events_of(0)) == place:
            await self.log.publish(0, payload, publisher_epoch=publisher_epoch)

    async def _line(self) -> None:
        await runtime.sleep(self._chance.random() * self._latency_s)
        if self._strikes("fail"):
            raise Unavailable("no connection")

    def _strikes(self, fault: str) -> bool:
        rate: float = getattr(self._faults(), fault)
        return rate > 0 and self._chance.random() < rate
