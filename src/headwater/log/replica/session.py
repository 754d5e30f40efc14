"""The session of a replica with its leader: requests, the fence in front of answers, metrics.

Always holds: the term of an answer is checked before the answer is used. An answer of an overtaken
leader is `Fenced`. The term of a new leader is stored on disk first, and its answer is used only if
it answers a registration, because the copy was compared with another leader's log. A missing answer
is `Unavailable`, and so is any failure of the source or the connection: the replica tries again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final, TypeVar

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.metrics import Histogram, Metrics
from headwater.log import metric_names
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import (
    AcknowledgeResponse,
    BootstrapResponse,
    PullResponse,
    RegisterResponse,
    ReplicationSource,
)
from headwater.log.primary.slot import is_comparable
from headwater.log.replica.comparing import ComparedRecords
from headwater.log.replica.contract import ReplicaConfig


class ReplicaMetrics(Metrics):
    """Counts and durations of one replica, since it was opened."""

    exported: ClassVar = metric_names.REPLICA

    def __init__(self) -> None:
        self.registrations = 0
        self.pulls = 0
        self.empty_pulls = 0
        """Pulls after which the replica was where it had been."""
        self.records_applied = 0
        self.records_lost = 0
        """LSNs that were sent as lost."""
        self.records_compared = 0
        """Records that were sent again and are the same."""
        self.records_not_comparable = 0
        """Records that were sent again, of which the copy no longer has hashes."""
        self.acknowledgements = 0
        self.apply_errors = 0
        self.divergences = 0
        self.gaps = 0
        """Answers that did not follow what was there; nothing of them was applied."""
        self.fenced = 0
        """Answers of leaders that were overtaken, and refusals because of another session."""
        self.retries: Counter[str] = Counter()
        """By kind of error."""
        self.bootstraps: Counter[str] = Counter()
        """Completed, by what they began from: own, image, log."""
        self.bootstraps_refused = 0
        self.apply_seconds = Histogram()
        self.reads_waited_seconds = Histogram()
        """Of readers with a bookmark that were served."""
        self.reads_sent_elsewhere = 0

    def count_compared(self, compared: ComparedRecords) -> None:
        self.records_not_comparable += compared.unknown
        self.records_compared += compared.same


class Prefetch:
    """At most one pull ahead of its use."""

    def __init__(self, pull: Callable[[int], Coroutine[Any, Any, PullResponse]]) -> None:
        self._pull = pull
        self._since_lsn = 0
        self._pulling: asyncio.Task[PullResponse] | None = None

    def pull_ahead(self, pulled: PullResponse) -> None:
        """Pull what follows an answer, if there is more."""
        if self._pulling is None and pulled.groups and pulled.through_lsn < pulled.current_lsn:
            self._since_lsn = pulled.through_lsn
            self._pulling = runtime.spawn(self._pull(self._since_lsn), name="prefetch")

    async def take(self, since_lsn: int) -> PullResponse | None:
        """The answer for this LSN, or its error; None if another LSN was pulled."""
        if self._pulling is None or self._since_lsn != since_lsn:
            await self.drop()
            return None
        pulling, self._pulling = self._pulling, None
        return await pulling

    async def drop(self) -> None:
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)


AnswerT = TypeVar(
    "AnswerT",
    bound=RegisterResponse | PullResponse | AcknowledgeResponse | BootstrapResponse,
)
_SOURCE_ERRORS: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict)
"""Errors that a source raises on purpose."""


class LeaderSession:
    """The session with a source, and the fence in front of its answers."""

    def __init__(
        self,
        name: str,
        source: ReplicationSource,
        config: ReplicaConfig,
        check_term: Callable[[int], Awaitable[None]],
    ) -> None:
        self._name = name
        self._source = source
        self._config = config
        self._check_term = check_term
        self._registration: RegisterResponse | None = None
        self._acknowledged: Acknowledgement | None = None
        self._acknowledged_s = 0.0

    @property
    def registration(self) -> RegisterResponse:
        if self._registration is None:
            raise Bug(f"replica {self._name!r} is not registered")
        return self._registration

    def reaches(self, lsn: int) -> bool:
        answer = self.registration
        return is_comparable(lsn, confirmed_lsn=answer.confirmed_lsn, oldest_lsn=answer.oldest_lsn)

    async def register(self, position_lsn: int) -> RegisterResponse:
        """Register; the following requests use the session of the answer."""
        self._registration = None
        answer = await self._request(
            self._source.register(self._name, position_lsn, region=self._config.region)
        )
        self._registration, self._acknowledged = answer, None
        return answer

    async def pull(self, since_lsn: int, *, wait_s: float) -> PullResponse:
        config = self._config
        return await self._request(
            self._source.pull(
                self._name,
                since_lsn,
                session=self.registration.session,
                max_records=config.max_records,
                max_bytes=config.max_bytes,
                wait_s=wait_s,
            ),
            wait_s=wait_s,
        )

    async def acknowledge(self, progress: Acknowledgement) -> bool:
        """Send the progress if it changed, and from time to time if not; whether it was sent."""
        now_s = runtime.monotonic_s()
        is_due = now_s - self._acknowledged_s >= self._config.ack_interval_s
        if progress == self._acknowledged and not is_due:
            return False
        await self._request(
            self._source.acknowledge(self._name, progress, session=self.registration.session)
        )
        self._acknowledged, self._acknowledged_s = progress, now_s
        return True

    async def begin_bootstrap(self, image_lsn: int | None) -> BootstrapResponse:
        return await self._request(
            self._source.begin_bootstrap(
                self._name, image_lsn=image_lsn, session=self.registration.session
            )
        )

    async def complete_bootstrap(self, lsn: int) -> AcknowledgeResponse:
        self._acknowledged = None
        return await self._request(
            self._source.complete_bootstrap(self._name, lsn, session=self.registration.session)
        )

    async def _request(self, answering: Awaitable[AnswerT], *, wait_s: float = 0.0) -> AnswerT:
        timeout_s = self._config.call_timeout_s + wait_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answering
        except TimeoutError as error:
            raise Unavailable(f"the source did not answer within {timeout_s:.0f} s") from error
        except _SOURCE_ERRORS:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, HeadwaterError) else repr(error)
            raise Unavailable(f"the source failed, and is tried again: {what}") from error
        await self._check_term(answer.term)
        if self._registration is not None and answer.term != self._registration.term:
            raise NotFound(
                f"the leader of term {answer.term} answers to a session of term "
                f"{self._registration.term}: register again"
            )
        return answer
