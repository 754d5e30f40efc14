"""One run of a query in its group: its epochs, its positions, and which checkpoint it has.

Spark tells a source neither the query's id nor the number of a micro-batch. So every offset carries
a token, drawn when a query without a checkpoint determines its start, and the number of
micro-batches since. The group's record in each stream has the token of the newest checkpoint, and
the record in the first stream the count.

Always holds:

- a run starts once in each stream, by one update of the group's record, which checks the token, the
  count and the number of resets, and gives the run an epoch. Only then it takes the partitions;
- what counts is the position that taking a partition returned: the run before acknowledges until
  then. If that is beyond the checkpoint, nothing is read;
- from the start on, everything that an earlier run or another checkpoint counts or commits is
  refused;
- a micro-batch, with or without rows, is counted after Spark has stored it and before it is read: a
  checkpoint that is behind the count is an older copy. From an older copy, micro-batches would be
  planned again with other rows under the same numbers, and a sink that identifies them by their
  numbers would skip those rows.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from headwater.buffer.collection import GarbageCollection
from headwater.buffer.consumer.ownership import Sweeper, check_consumable
from headwater.buffer.consumer.progress import ConsumerMetrics, UnknownGroup
from headwater.buffer.group import (
    GroupEpoch,
    GroupRecord,
    GroupRegister,
    OtherCheckpoint,
)
from headwater.buffer.group.record import QUERY, utc_words
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused, RolledBack
from headwater.core.limits import GC_INTERVAL_S
from headwater.spark.source.feed import PartitionFeed
from headwater.spark.source.offset import Offset, StreamPartition

LOG: Final = logging.getLogger("headwater.spark")
CONCURRENT_REQUESTS_MAX: Final = 16
"""The most requests at the same time."""
SIGN_OF_LIFE_S: Final = 60.0
"""How often an idle query records that it runs. Twice as long without it counts as stopped."""
ADVICE: Final = (
    "To continue from the group's position, give the query a new checkpoint; to read again, a "
    "new checkpoint, a groupId of its own and startingOffsets"
)
TWICE: Final = "If one query reads the stream twice, give the second read a groupId of its own"
NOT_READ: Final = "deleted, or not in the options any more"


class QueryFenced(Fenced):
    """The group is not this run's any more. Says what happened, and what to do."""


class GroupState(NamedTuple):
    """A group in one stream, as stored."""

    record: GroupRecord
    positions: dict[int, int]
    """The first LSN of each partition that is not processed."""


class CheckpointToken(NamedTuple):
    """Which checkpoint a group belongs to, and how far that is."""

    query: str
    step: int
    closed: bool


class QueryGroup:
    """The group of a query, as one run of the query reads it."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.taken: dict[StreamPartition, int] = {}
        """The position of each partition that this run took, as its taking returned it."""
        self._own = ""
        self._is_new = False
        """Whether this process drew its token: then the checkpoint is new."""
        self._query = ""
        """The token that this run started with."""
        self._registers: dict[str, GroupRegister] = {}
        self._epochs: dict[str, GroupEpoch] = {}
        self._seen_s: dict[str, float] = {}
        self._counted = ("", 0)
        self._collection = BackgroundCollection(group)

    # Before the start

    def token(self) -> str:
        """The token of this process, for a checkpoint that is new."""
        if not self._own:
            self._own, self._is_new = runtime.new_token().hex(), True
        return self._own

    async def states(self, streams: Iterable[Stream]) -> dict[str, GroupState]:
        """The group in the streams where it has begun."""

        async def one(stream: Stream) -> GroupState | None:
            try:
                async with explain_deletion(stream):
                    return GroupState(*await self._register(stream).positions())
            except UnknownGroup:
                return None

        several = list(streams)
        found = await runtime.gather_each(one, several, at_once=CONCURRENT_REQUESTS_MAX)
        return {
            stream.name: state
            for stream, state in zip(several, found, strict=True)
            if state is not None
        }

    async def begin(self, stream: Stream, begins: Mapping[int, int]) -> GroupState:
        """Let the group begin in a stream at these LSNs, unless it has begun; returns where."""
        async with explain_deletion(stream):
            register = self._register(stream)
            await register.begin(QUERY, begins)
            return GroupState(*await register.positions())

    def stored_token(self, states: Mapping[str, GroupState]) -> CheckpointToken:
        """The newest checkpoint and its last micro-batch; this process's own if there is none.

        For Spark 4.1, which does not say where a micro-batch begins, so that the group's position
        has to be used. The offset that Spark passes later shows whether that was right.
        """
        records = [state.record for _, state in sorted(states.items())]
        # A stream that was created since, or where the group was reset, has none.
        query = next((record.query for record in records if record.query), "")
        if not query:
            return CheckpointToken(self.token(), 0, closed=True)
        self._own, self._is_new = query, False
        last = max((one for one in records if one.query == query), key=lambda one: one.step)
        return CheckpointToken(query, last.step, last.closed or not last.step)

    # The start

    def is_started(self, stream: str) -> bool:
        """Whether this run has an epoch in a stream."""
        return stream in self._epochs

    def resets(self) -> dict[str, int]:
        """How often the group had been reset in each stream when this run started there."""
        return {name: epoch.resets for name, epoch in self._epochs.items()}

    async def start(self, offset: Offset, feeds: Iterable[PartitionFeed]) -> None:
        """Start in the streams of these partitions, and take those that are not taken yet.

        Refuses the offset of another checkpoint, of an older copy of this one, or from before a
        reset. A stream that the offset does not have is new to the query.
        """
        if self._query not in ("", offset.query):
            raise self._other_checkpoint(min(offset.streams, default=""))
        for name in sorted(offset.streams & self._epochs.keys()):
            # On Spark 4.1 a run may have started where the group is now, with an older checkpoint.
            if offset.resets[name] != self._epochs[name].resets:
                raise self._reset(name)
        several = list(feeds)
        streams = {feed.part.stream: feed.stream for feed in several}
        unstarted = [streams[name] for name in sorted(streams) if name not in self._epochs]
        # What is refused comes before what fences the run that is being refused for.
        for stream in unstarted:
            check_consumable(stream, 0, self.group)
            async with self._explaining(stream, offset):
                record = await self._register(stream).read()
                self._check_record(stream.name, record, offset)
        for name, stream in sorted(streams.items()):
            of_stream = [feed for feed in several if feed.part.stream == name]
            async with self._explaining(stream, offset):
                await self._start_one(stream, of_stream, offset)
        self._query = offset.query

    async def _start_one(self, stream: Stream, feeds: list[PartitionFeed], offset: Offset) -> None:
        name, register = stream.name, self._register(stream)
        epoch = self._epochs.get(name)
        if epoch is None:
            epoch = await register.start_query(
                offset.query,
                is_new=True,  # if `check` passes, the group is this checkpoint's or may become it
                check=lambda record: self._check_record(name, record, offset),
            )
            self._seen_s[name] = runtime.monotonic_s()
        epoch_taken = epoch

        async def take(feed: PartitionFeed) -> int:
            return (await register.take(feed.part.partition, epoch_taken)).lsn

        untaken = [feed for feed in feeds if feed.part not in self.taken]
        found = await runtime.gather_each(take, untaken, at_once=CONCURRENT_REQUESTS_MAX)
        for feed, lsn in zip(untaken, found, strict=True):
            if lsn > offset.positions.get(feed.part, lsn):
                raise self._beyond(feed.part, offset)
        for feed, lsn in zip(untaken, found, strict=True):
            self.taken[feed.part] = lsn
            self._collection.start(feed)
        if name not in self._epochs and stream.config.required_group != self.group:
            LOG.info(
                "retention of stream %r does not wait for group %r: the query reads exactly once "
                "what is retained. To keep records until it has processed them: headwater stream "
                "alter %s %s --required-group %s",
                name,
                self.group,
                shlex.quote(stream.store.url),
                name,
                self.group,
            )
        self._epochs[name] = epoch

    def _is_new_to(self, stream: str, offset: Offset) -> bool:
        """Whether the checkpoint has planned nothing of a stream yet."""
        is_new_checkpoint = self._is_new and offset.query == self._own
        return is_new_checkpoint or stream not in offset.streams

    def _check_record(self, stream: str, record: GroupRecord, offset: Offset) -> None:
        """Refuse the offset if the group's record shows that another one is newer."""
        if record.resets != offset.resets.get(stream, record.resets):
            raise self._reset(stream, record)
        if record.query == offset.query:
            if record.step > offset.step:
                raise self._older_copy(stream)
        elif record.query and not self._is_new_to(stream, offset):
            raise self._other_checkpoint(stream, record)

    # While it runs

    async def check(self) -> None:
        """Raise `QueryFenced` if this run is not the group's last one any more.

        One request for each stream. From time to time the check also records that the query runs.
        """

        async def one(name: str) -> None:
            register, now_s = self._registers[name], runtime.monotonic_s()
            async with self._explaining(register.stream):
                if now_s - self._seen_s[name] < SIGN_OF_LIFE_S:
                    await register.check({0: self._epochs[name]})
                else:
                    await register.beat(self._epochs[name])
                    self._seen_s[name] = now_s

        await runtime.gather_each(one, sorted(self._epochs), at_once=CONCURRENT_REQUESTS_MAX)

    async def count(self, end: Offset) -> None:
        """Count a micro-batch that is in the checkpoint and about to be read."""
        name = min((name for name in end.streams if name in self._epochs), default=None)
        if name is None or (end.query, end.step) == self._counted:
            return
        register = self._registers[name]
        async with self._explaining(register.stream):
            try:
                await register.count(self._epochs[name], end.step, closed=end.closed)
            except OtherCheckpoint as error:
                raise self._older_copy(name) from error
        self._seen_s[name] = runtime.monotonic_s()
        self._counted = end.query, end.step

    async def acknowledge(self, part: StreamPartition, lsn: int) -> None:
        """Record that everything before an LSN is processed."""
        register = self._registers[part.stream]
        async with self._explaining(register.stream):
            await register.acknowledge(part.partition, self._epochs[part.stream], lsn)

    def check_resets(self, start: Offset, end: Offset) -> None:
        """Refuse a micro-batch whose start is from before a reset, or its end."""
        for stream in sorted(start.streams & end.streams):
            if start.resets[stream] != end.resets[stream]:
                raise self._reset(stream)

    def check_follows(self, start: Offset, end: Offset) -> None:
        """Refuse a micro-batch whose start and end do not belong together.

        They do if they are equal or one step apart. For the first micro-batch, the start may be
        from this process and the end from an earlier one, because Spark asks again for the start.
        """
        if start == end or (start.query == end.query and end.step == start.step + 1):
            return
        is_same_step = (start.query, start.step) == (end.query, end.step)
        if is_same_step and start.positions.keys() != end.positions.keys():
            return  # Spark 4.1, where partitions were added or removed while the query was away
        first = min(end.streams, default="")
        if start.query == end.query:
            if start.streams and min(start.streams) not in end.streams:
                raise self._streams_gone(start, end)  # the stream that counted the micro-batches
            raise self._older_copy(first)
        if start.query != self._own:
            if not start.streams & end.streams:
                raise self._streams_gone(start, end)
            raise self._other_checkpoint(first)

    # Errors

    @asynccontextmanager
    async def _explaining(
        self, stream: Stream, offset: Offset | None = None
    ) -> AsyncIterator[None]:
        """Say in place of an error of the register what happened to the group, and what to do."""
        try:
            async with explain_deletion(stream):
                yield
        except (Fenced, UnknownGroup) as error:
            self._collection.stop()  # the successor collects
            if isinstance(error, QueryFenced):
                raise
            raise await self._explanation(stream, offset, error) from error
        except RolledBack as error:
            raise RolledBack(
                f"{error}. Restore it from a backup and start this query again; or give the query "
                "a new checkpoint, which reads again from where the group is then"
            ) from error

    async def _explanation(
        self, stream: Stream, offset: Offset | None, error: HeadwaterError
    ) -> HeadwaterError:
        name = stream.name
        try:
            record = await self._register(stream).read()
        except UnknownGroup:
            return self._deleted(name)
        except HeadwaterError:
            return QueryFenced(f"{error}. Start this query again: it then says what to do")
        epoch = self._epochs.get(name)
        if epoch is not None:
            resets, query = epoch.resets, self._query
        else:
            assert offset is not None
            resets, query = offset.resets.get(name, record.resets), offset.query
        if record.resets != resets:
            return self._reset(name, record)
        if record.query != query:
            return self._other_checkpoint(name, record)
        number = "" if epoch is None else f" (epoch {epoch.number})"
        return QueryFenced(
            f"stream {name!r}: another run of this query of group {self.group!r} was started at "
            f"{utc_words(record.changed_ms)} (epoch {record.epoch}) and fenced this one{number}: "
            f"stop one of them. {TWICE}"
        )

    def _other_checkpoint(self, stream: str, record: GroupRecord | None = None) -> QueryFenced:
        when = "" if record is None else f" (at {utc_words(record.changed_ms)})"
        return QueryFenced(
            f"{_named(stream)}: group {self.group!r} continues with another checkpoint, which was "
            f"started after this one{when}. {ADVICE}. {TWICE}"
        )

    def _reset(self, stream: str, record: GroupRecord | None = None) -> QueryFenced:
        when = "" if record is None else f" at {utc_words(record.changed_ms)}"
        return QueryFenced(
            f"{_named(stream)}: group {self.group!r} was reset{when}, and its position is not that "
            "of the checkpoint any more (headwater group reset, or delete). Give the query a new "
            "checkpoint to continue from there"
        )

    def _deleted(self, stream: str) -> QueryFenced:
        return QueryFenced(
            f"{_named(stream)}: group {self.group!r} was deleted (headwater group delete). Give "
            "the query a new checkpoint: the group then begins again, by startingOffsets"
        )

    def _beyond(self, part: StreamPartition, offset: Offset) -> HeadwaterError:
        """The group has processed more of a partition than the offset says."""
        if not self._is_new_to(part.stream, offset):
            return self._older_copy(part.stream)
        return QueryFenced(
            f"{part}: another query of group {self.group!r} has gone on from offset "
            f"{offset.positions[part]:,} while this one was starting, and nothing was read. Start "
            "it again to continue from there; if both are to run, give one a groupId of its own"
        )

    def _streams_gone(self, start: Offset, end: Offset) -> Refused:
        """Only on Spark 4.1: later versions pass the start of a micro-batch first."""
        gone = sorted(start.streams - end.streams)
        streams = ", ".join(map(repr, gone)) or "no stream"
        return Refused(
            f"the checkpoint has {streams}, and the query reads none of it now: {NOT_READ}. On "
            f"Spark 4.1 it cannot continue with other streams. {ADVICE}"
        )

    def _older_copy(self, stream: str) -> Refused:
        return Refused(
            f"{_named(stream)}: group {self.group!r} has come further than the checkpoint, which "
            "is an older copy. From it, micro-batches would get other rows under the same numbers, "
            f"and sinks that know them by their numbers would take those rows for written. {ADVICE}"
        )

    def _register(self, stream: Stream) -> GroupRegister:
        """The group's register in a stream, with the partitions that the stream has now."""
        known = self._registers.get(stream.name)
        if known is None or known.stream.partitions < stream.partitions:
            known = self._registers[stream.name] = GroupRegister(stream, self.group)
        return known


class BackgroundCollection:
    """The garbage collection of a started query: in each partition that it took, until it is fenced
    or its reader is gone."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._sweepers: dict[StreamPartition, Sweeper] = {}

    def start(self, feed: PartitionFeed) -> None:
        """Collect in a partition from now on."""
        if feed.part in self._sweepers:
            return
        stream, partition = feed.stream, feed.part.partition
        metrics = ConsumerMetrics()
        metrics.register(stream=stream.name, partition=partition, group=self._group)
        sweeper = self._sweepers[feed.part] = Sweeper(
            GarbageCollection(stream, partition).run_pass, metrics, interval_s=GC_INTERVAL_S
        )
        sweeper.start(self)

    def stop(self) -> None:
        """Stop, without waiting for running passes."""
        for sweeper in self._sweepers.values():
            sweeper.stop()


def _named(stream: str) -> str:
    return f"stream {stream!r}" if stream else "no stream yet"
