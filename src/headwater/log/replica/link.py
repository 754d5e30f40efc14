"""The session of a replica with its leader: requests, the fence, and checking what was pulled.

An LSN says how far a copy is, and not which records it holds: a leader that lost its last records,
or never had those of its predecessor, writes others under the same LSNs. So a copy that registers
with a leader pulls its last records again and compares them by hash, before it applies,
acknowledges or shows anything after them. Where the leader's log ends below the copy, the copy
waits. Nothing can be compared where the log begins after the copy's end, or where the copy no
longer has hashes.

Always holds: the term of an answer is checked before the answer is used. An answer of an overtaken
leader is `Fenced`. The term of a new leader is stored on disk first, and its answer is used only if
it answers a registration, because the copy was compared with another leader's log. A missing answer
is `Unavailable`, and so is any failure of the source or the connection: the replica tries again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow.compute as pc

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
from headwater.log.record.group import Group
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.contract import LogGap, ReplicaConfig, Target


class SplitPull(NamedTuple):
    """An answer, split at the copy's last LSN."""

    repeated: list[Group]
    """To be compared."""
    new: list[Group]
    """To be applied."""
    through_lsn: int
    """The copy's LSN after that; never lower than before."""


def split_pull(
    pulled: PullResponse,
    applied_lsn: int,
    *,
    filtered: bool,
    compared_lsn: int,
) -> SplitPull:
    """Split an answer; `LogGap` if it does not follow `compared_lsn` without a gap.

    `compared_lsn` is how much of the copy was found in the log: nothing new is applied before
    everything was compared.

    The end counts, too: `through_lsn` beyond the last group is a gap. With `filtered` the source
    skips records on purpose, and neither is a gap. An empty copy is at LSN 0, and gets LSN 1 first.
    """
    groups = pulled.groups
    for before, after in itertools.pairwise(groups):
        if after.first_lsn <= before.last_lsn:
            raise LogGap(f"LSN {after.first_lsn} was sent after {before.last_lsn}")
    if any(group.term > pulled.term for group in groups):
        raise Fenced(
            f"the leader of term {pulled.term} sends records of a later one: it was overtaken"
        )
    last_lsn = groups[-1].last_lsn if groups else min(applied_lsn, pulled.through_lsn)
    if pulled.through_lsn < last_lsn:
        raise LogGap(f"LSN {last_lsn} was sent in an answer through {pulled.through_lsn}")
    if not filtered:
        _check_dense(pulled, compared_lsn)
    repeated = [part for group in groups if (part := group.between(1, applied_lsn)) is not None]
    new = [part for group in groups if (part := group.after(applied_lsn)) is not None]
    return SplitPull(repeated, new, max(applied_lsn, pulled.through_lsn))


def _check_dense(pulled: PullResponse, applied_lsn: int) -> None:
    reached_lsn = applied_lsn
    for place, group in enumerate(pulled.groups):
        if group.first_lsn > reached_lsn + 1 or (place and group.first_lsn != reached_lsn + 1):
            raise LogGap(f"the copy ends at LSN {reached_lsn}, and {group.first_lsn} was sent next")
        reached_lsn = group.last_lsn
    if pulled.through_lsn > reached_lsn:
        raise LogGap(
            f"the answer goes through LSN {pulled.through_lsn}, and {reached_lsn} is its last "
            "record"
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """How much of a copy is left to compare with its leader's log."""

    after_lsn: int
    """Records at or below need not be compared: the next pull is for what follows."""
    through_lsn: int
    """Up to here the copy may hold other records than the log."""

    @classmethod
    def of_copy(
        cls, answer: RegisterResponse, through_lsn: int, compare_records: int
    ) -> Verification:
        """For a copy that ends at `through_lsn`: everything that it did not acknowledge to this
        log, and `compare_records` more, as far as the log reaches back."""
        wanted_lsn = min(answer.confirmed_lsn, answer.current_lsn, through_lsn - compare_records)
        after_lsn = max(0, answer.oldest_lsn - 1, wanted_lsn)
        return cls(min(after_lsn, through_lsn), through_lsn)

    @property
    def is_done(self) -> bool:
        """Whether the copy is a prefix of the log, as far as that can be compared."""
        return self.after_lsn >= self.through_lsn

    def verified_lsn(self, lsn: int) -> int:
        """How much of everything through `lsn` was found in the log."""
        return lsn if self.is_done else min(lsn, self.after_lsn)

    def waits_for(self, current_lsn: int) -> str | None:
        """A description of what it waits for, if the log ends here; None if it does not wait."""
        if self.is_done or current_lsn >= self.through_lsn:
            return None
        return (
            f"the log ends at LSN {current_lsn}, and this copy at {self.through_lsn}: it waits "
            "until the log is there, and compares before it goes on"
        )

    def reached(self, lsn: int) -> Verification:
        """The verification after everything through this LSN was found to be the same."""
        return replace(self, after_lsn=max(self.after_lsn, lsn))


UNVERIFIED = Verification(0, 1)
"""Before the first registration."""


class ComparedRecords(NamedTuple):
    same: int
    unknown: int
    """Records of which the copy no longer has hashes."""
    differs_lsn: int | None
    """The first LSN under which the copy holds another."""


async def compare_groups(target: Target, groups: Sequence[Group]) -> ComparedRecords:
    same = unknown = 0
    for run in _dense_runs(groups):
        first_lsn, last_lsn = run[0].first_lsn, run[-1].last_lsn
        own = await target.hashes(first_lsn, last_lsn)
        theirs = await hashes_between(run, first_lsn, last_lsn)
        place = pc.index(pc.fill_null(pc.not_equal(own, theirs), False), True).as_py()
        if place >= 0:
            return ComparedRecords(same, unknown, first_lsn + place)
        same += len(own) - own.null_count
        unknown += own.null_count
    return ComparedRecords(same, unknown, None)


def _dense_runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Runs without a gap; there are several if records were skipped."""
    before = itertools.accumulate((len(group) for group in groups), initial=0)
    placed = zip(groups, before, strict=False)
    for _, run in itertools.groupby(placed, lambda one: one[0].first_lsn - one[1]):
        yield [group for group, _ in run]


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

    def begin(self, pulled: PullResponse) -> None:
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
