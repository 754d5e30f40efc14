"""The session of a replica with its leader: requests, the fence, and checking what was pulled.

An LSN says how far a copy is, and not which records it holds: a leader that lost its last records,
or never had those of its predecessor, goes on with others under the same LSNs. So a copy that comes
to a leader pulls its last records again and compares them by hash, before it applies, acknowledges
or shows anything after them. Where the leader's log ends below the copy, the copy waits. Nothing
can be compared where the log begins after the copy's end, or where the copy no longer has hashes.

Always holds: the term of an answer is checked before the answer is used. An answer of an overtaken
leader is `Fenced`. The term of a new leader is stored on disk first, and its answer is used only if
it answers a registration, because the copy was compared with another leader's log. A missing answer
is `Unavailable`, and so is any failure at the source or on the way to it: none of them ends a
copy.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

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
from headwater.core.metrics import Histogram
from headwater.log.primary import (
    Acknowledgement,
    AcknowledgeResponse,
    BootstrapResponse,
    PullResponse,
    RegisterResponse,
    ReplicationSource,
)
from headwater.log.record import Group
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.contract import LogGap, ReplicaConfig, Target
from headwater.log.slots import is_comparable


class SplitPull(NamedTuple):
    """An answer, against what is there."""

    again: list[Group]
    """At or below the last LSN that was applied: to be compared."""
    fresh: list[Group]
    """What follows it, to be applied."""
    through_lsn: int
    """Where the copy stands after that; never below where it stood."""


def split_pull(
    pulled: PullResponse,
    applied_lsn: int,
    *,
    filtered: bool = False,
    compared_lsn: int | None = None,
) -> SplitPull:
    """Sort an answer; `LogGap` if it does not follow `applied_lsn` without a gap.

    `compared_lsn` is for a copy of which only that much was found in the log: the answer has to
    follow that without a gap, so that nothing new comes with what was not compared.

    The end counts, too: a source that says to have sent more than it did leaves a gap behind the
    last group. Only where it passes records over on purpose (`filtered`) is neither of them one.
    An empty copy stands at 0, and is sent LSN 1 first like any other.
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
        _check_dense(pulled, applied_lsn if compared_lsn is None else compared_lsn)
    again = [part for group in groups if (part := group.between(1, applied_lsn)) is not None]
    fresh = [part for group in groups if (part := group.after(applied_lsn)) is not None]
    return SplitPull(again, fresh, max(applied_lsn, pulled.through_lsn))


def _check_dense(pulled: PullResponse, applied_lsn: int) -> None:
    reached_lsn = applied_lsn
    for place, group in enumerate(pulled.groups):
        if group.first_lsn > reached_lsn + 1 or (place and group.first_lsn != reached_lsn + 1):
            raise LogGap(f"LSN {reached_lsn} is there, and {group.first_lsn} was sent next")
        reached_lsn = group.last_lsn
    if pulled.through_lsn > reached_lsn:
        raise LogGap(
            f"records through {pulled.through_lsn} were said to be sent, and {reached_lsn} is the "
            "last that came"
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """What is compared, and what is left to compare."""

    after_lsn: int
    """Nothing at or below is to be compared (any more): the next pull asks for what follows."""
    through_lsn: int
    """Up to here the copy may hold other records than the log."""

    @classmethod
    def of_copy(
        cls, told: RegisterResponse, through_lsn: int, compare_records: int
    ) -> Verification:
        """For a copy that ends at `through_lsn` and was told this: all that nobody acknowledged to
        such a log, and some records more, as far as the log reaches back."""
        wanted_lsn = min(told.confirmed_lsn, told.current_lsn, through_lsn - compare_records)
        after_lsn = max(0, told.oldest_lsn - 1, wanted_lsn)
        return cls(min(after_lsn, through_lsn), through_lsn)

    @property
    def is_done(self) -> bool:
        """Whether the copy is a prefix of the log, as far as that can be told."""
        return self.after_lsn >= self.through_lsn

    def proven_lsn(self, lsn: int) -> int:
        """What of everything through `lsn` is the log's."""
        return lsn if self.is_done else min(lsn, self.after_lsn)

    def waits_for(self, current_lsn: int) -> str | None:
        """What it waits for where the log ends here, in words; None if for nothing."""
        if self.is_done or current_lsn >= self.through_lsn:
            return None
        return (
            f"the log ends at LSN {current_lsn}, and this copy at {self.through_lsn}: it waits "
            "until the log is there, and compares before it goes on"
        )

    def reached(self, lsn: int) -> Verification:
        """Everything through this one was sent, and was the same."""
        return replace(self, after_lsn=max(self.after_lsn, lsn))


UNVERIFIED = Verification(0, 1)
"""Before the first leader was heard of."""


class ComparedRecords(NamedTuple):
    """What a copy knows of records that came again."""

    same: int
    unknown: int
    """Records of which it no longer knows what they were."""
    differs_lsn: int | None
    """The first LSN under which it holds another."""


async def compare_groups(target: Target, groups: Sequence[Group]) -> ComparedRecords:
    """Records that are there already: the same, or the copy is not one."""
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
    """The groups in runs without a gap: there is more than one where records were passed over."""
    before = itertools.accumulate((len(group) for group in groups), initial=0)
    placed = zip(groups, before, strict=False)
    for _, run in itertools.groupby(placed, lambda one: one[0].first_lsn - one[1]):
        yield [group for group, _ in run]


class ReplicaMetrics:
    """Counts and durations of one replica, since it was opened."""

    def __init__(self) -> None:
        self.registrations = 0
        self.pulls = 0
        self.empty_pulls = 0
        """Pulls after which the replica was where it had been."""
        self.records_applied = 0
        self.records_lost = 0
        """LSNs that came without their records, which nobody has any more."""
        self.records_compared = 0
        """Records that came again, and were found to be the same."""
        self.records_not_comparable = 0
        """Records that came again, and of which the copy no longer knows what they were."""
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
        """Records came again, and were not found to be others."""
        self.records_not_comparable += compared.unknown
        self.records_compared += compared.same

    def count_applied(self, groups: Sequence[Group]) -> None:
        """These were applied."""
        self.records_applied += sum(len(group) for group in groups)
        self.records_lost += sum(len(one) for one in groups if one.lost is not None)


PullFunction = Callable[[int], Coroutine[Any, Any, PullResponse]]


class Prefetch:
    """At most one pull that nobody waits for yet."""

    def __init__(self, pull: PullFunction) -> None:
        self._pull = pull
        self._since_lsn = 0
        self._asking: asyncio.Task[PullResponse] | None = None

    def begin(self, pulled: PullResponse) -> None:
        """Ask for what follows an answer, if there is more."""
        if self._asking is None and pulled.groups and pulled.through_lsn < pulled.current_lsn:
            self._since_lsn = pulled.through_lsn
            self._asking = runtime.spawn(self._pull(self._since_lsn), name="pull ahead")

    async def take(self, since_lsn: int) -> PullResponse | None:
        """What was asked for, or what went wrong with it; None if that was something else."""
        if self._asking is None or self._since_lsn != since_lsn:
            await self.drop()
            return None
        asking, self._asking = self._asking, None
        return await asking

    async def drop(self) -> None:
        """Nobody needs the answer any more, nor the reason why there is none."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


class _Answer(Protocol):
    @property
    def term(self) -> int:
        """Of the leader that gave it."""


AnswerT = TypeVar("AnswerT", bound=_Answer)
_SOURCE_ERRORS: Final = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict)
"""What a source says to its replica."""
CheckTerm = Callable[[int], Awaitable[None]]


class LeaderSession:
    """A source, the session with it, and the fence in front of its answers."""

    def __init__(
        self, name: str, source: ReplicationSource, config: ReplicaConfig, heed: CheckTerm
    ) -> None:
        self._name = name
        self._source = source
        self._config = config
        self._heed = heed
        self._told: RegisterResponse | None = None
        self._acknowledged: Acknowledgement | None = None
        self._acknowledged_s = 0.0

    @property
    def told(self) -> RegisterResponse:
        """The answer to the registration that counts."""
        if self._told is None:
            raise Bug(f"replica {self._name!r} is not registered")
        return self._told

    def reaches(self, lsn: int) -> bool:
        """Whether the log can go on after a copy that ends here."""
        told = self.told
        return is_comparable(lsn, confirmed_lsn=told.confirmed_lsn, oldest_lsn=told.oldest_lsn)

    @property
    def _session(self) -> str | None:
        return None if self._told is None else self._told.session

    async def register(self, position_lsn: int) -> RegisterResponse:
        """Come, or come back; what follows is said in the session that this gives."""
        self._told = None
        told = await self._ask(
            self._source.register(self._name, position_lsn, region=self._config.region)
        )
        self._told, self._acknowledged = told, None
        return told

    async def pull(self, since_lsn: int, *, wait_s: float) -> PullResponse:
        """What follows, or nothing after `wait_s`."""
        config = self._config
        return await self._ask(
            self._source.pull(
                self._name,
                since_lsn,
                session=self._session,
                max_records=config.max_records,
                max_bytes=config.max_bytes,
                wait_s=wait_s,
            ),
            wait_s=wait_s,
        )

    async def acknowledge(self, progress: Acknowledgement) -> bool:
        """Say how far the copy is, if that changed, and from time to time that it did not.

        Whether it was said.
        """
        now_s = runtime.monotonic_s()
        is_due = now_s - self._acknowledged_s >= self._config.ack_interval_s
        if progress == self._acknowledged and not is_due:
            return False
        await self._ask(self._source.acknowledge(self._name, progress, session=self._session))
        self._acknowledged, self._acknowledged_s = progress, now_s
        return True

    async def begin_bootstrap(self, image_lsn: int | None) -> BootstrapResponse:
        """Have the log kept after an image, or from its beginning."""
        return await self._ask(
            self._source.begin_bootstrap(self._name, image_lsn=image_lsn, session=self._session)
        )

    async def complete_bootstrap(self, lsn: int) -> AcknowledgeResponse:
        """Say that everything through this LSN is here, and on disk."""
        self._acknowledged = None
        return await self._ask(
            self._source.complete_bootstrap(self._name, lsn, session=self._session)
        )

    async def _ask(self, answering: Awaitable[AnswerT], *, wait_s: float = 0.0) -> AnswerT:
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
            raise Unavailable(f"the source failed, and is asked again: {what}") from error
        await self._heed(answer.term)
        if self._told is not None and answer.term != self._told.term:
            raise NotFound(
                f"the leader of term {answer.term} answers to a session of term "
                f"{self._told.term}: register again"
            )
        return answer
