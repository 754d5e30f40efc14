"""Plans the micro-batches of a streaming query.

Always holds:

- nothing is started or taken before `latest` or `plan` is called, which only a started query does;
- where the group begins is stored before it is returned, so every call returns the same;
- the end of a micro-batch is returned once and kept by Spark; `plan` gives the same rows for the
  same two offsets, also after a restart, for as long as they are retained;
- `commit` acknowledges only what Spark has recorded as done;
- a checkpoint that is not the newest one of its group is refused (`checkpoint.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headwater.buffer.group.record import begin_of, group_command
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S
from headwater.core.retry import PollBackoff
from headwater.spark.metrics import SourceMetrics
from headwater.spark.option_values import LATEST
from headwater.spark.options import ReadOptions
from headwater.spark.source.bounds import (
    beyond_the_end,
    check_partitions_named,
    data_loss_before,
    starting_lsn,
)
from headwater.spark.source.checkpoint import (
    ADVICE,
    CONCURRENT_REQUESTS_MAX,
    NOT_READ,
    GroupState,
    QueryGroup,
)
from headwater.spark.source.feed import Bounds, PartitionFeed, PendingBatches
from headwater.spark.source.offset import Offset, StreamPartition
from headwater.spark.source.slices import (
    Limits,
    Slice,
    SlicePartition,
    micro_batch_ends,
    plan_tasks,
)
from headwater.spark.source.streams import parts_of, subscribed_streams
from headwater.store import Store

LOG: Final = logging.getLogger("headwater.spark")
REFRESH_S: Final = 60.0
"""How often new streams and partitions are looked for."""
CLOSE_AFTER_S: Final = 1.0
"""So long after the last record, an empty micro-batch makes Spark commit the last one."""
REPORT_S: Final = 5.0
"""How old a reported end may be while not all batches are listed."""
LOCAL_POLL_BASE_S: Final = 0.01
LOCAL_POLL_CAP_S: Final = 0.5


class MicroBatches:
    """The source of one query, in the process where Spark runs the query's source."""

    def __init__(self, store: Store, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._group = QueryGroup(options.group_id)
        # Spark asks every 10 ms, and a store charges for each request.
        self._poll_backoff = (
            PollBackoff(LOCAL_POLL_BASE_S, LOCAL_POLL_CAP_S)
            if store.is_local
            else PollBackoff(FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S)
        )
        self._poll_due_s = runtime.monotonic_s()
        self._feeds: dict[StreamPartition, PartitionFeed] = {}
        self._pending: dict[StreamPartition, PendingBatches] = {}
        self._ids: dict[str, str] = {}
        self._streams: dict[str, Stream] = {}
        """The streams with the partitions that they had when they were last looked for."""
        self._refreshed_s: float | None = None
        self._initial: Offset | None = None
        self._available_now_end: dict[StreamPartition, int] | None = None
        self._committed: dict[StreamPartition, int] = {}
        self._planned: Offset | None = None
        self._quiet_since_s = runtime.monotonic_s()
        self._reported_end: tuple[float, dict[StreamPartition, int]] | None = None
        self._turn = 0
        self._metrics = SourceMetrics().register(group=options.group_id)

    async def initial(self) -> Offset:
        """The position of the group, or where a new group begins. Every call returns the same."""
        if self._initial is None:
            await self._refresh()
            states = await self._begin()
            self._initial = self._offset_at(states, query=self._group.token())
        return self._initial

    async def prepare_available_now(self) -> None:
        """End the query at the present end of the streams (AvailableNow)."""
        await self._refresh()
        self._available_now_end = await self._latest_positions()

    async def latest(self, start: Offset, limits: Limits) -> Offset:
        """The end of the micro-batch that begins at `start`; `start` itself if there is none."""
        # The order of these steps:
        # 1. the streams and partitions as they are now, which all other steps compare with;
        # 2. what is refused comes before what changes something: an offset in a stream that was
        #    created again, or beyond the end, must not fence the run that is going on;
        # 3. the start comes before anything is listed: from then on no other run commits;
        # 4. what lies before the start is processed: Spark asks only once it has recorded that;
        # 5. added partitions are taken before Spark stores their positions.
        await self._refresh()
        self._check_ids(start)
        here = {part: start.positions[part] for part in self._feeds if part in start.positions}
        added = [feed for part, feed in self._feeds.items() if part not in start.positions]
        is_first_look = not here.keys() <= self._pending.keys()
        if is_first_look:
            await self._check_ends(here, "the checkpoint")
        await self._start(start)
        if is_first_look:
            # The run before may have died before Spark committed what it had recorded as done.
            await self._acknowledge(start)
        if added:
            await self._take_added(start, added)
        is_due = runtime.monotonic_s() >= self._poll_due_s
        if is_first_look or is_due or self._available_now_end is not None:
            await self._poll(here, limits)
        ends = self._next_ends(here, limits)
        # They are read by the next micro-batch.
        ends |= {feed.part: self._group.taken[feed.part] for feed in added}
        if ends:
            self._quiet_since_s = runtime.monotonic_s()
            return start.next(ends, self._ids, self._group.resets())
        is_quiet = runtime.monotonic_s() - self._quiet_since_s >= CLOSE_AFTER_S
        if start.closed or not (is_quiet or self._available_now_end is not None):
            return start
        return start.closed_next()

    async def latest_without_start(self) -> Offset:
        """`latest` for Spark 4.1, which passes neither the start of the micro-batch nor a limit.

        It begins where the last one ended, or at the position of the group: the records between
        that and the checkpoint's offset are in the micro-batch that Spark runs again.
        """
        if self._planned is None and self._initial is None:
            await self._refresh()
            # A new checkpoint asks for the initial offset first, so this is an old one.
            states = await self._begin(is_new_checkpoint=False)
            token = self._group.stored_token(states)
            self._initial = self._offset_at(
                states, query=token.query, step=token.step, closed=token.closed
            )
        return await self.latest(self._planned or await self.initial(), Limits())

    async def plan(self, start: Offset, end: Offset) -> list[SlicePartition]:
        """The tasks that read everything from `start` to `end`."""
        await self._refresh()
        self._check_ids(start)
        self._check_ids(end)
        self._group.check_resets(start, end)
        self._check_order(start, end)
        self._group.check_follows(start, end)
        await self._start(end)
        planned: list[tuple[PartitionFeed, list[Slice]]] = []
        for part, until in sorted(end.positions.items()):
            # A new partition begins at its end, except on Spark 4.1: there `latest` did not know
            # that the checkpoint lacks it, so it begins at the group's position.
            since = start.positions.get(part, self._group.taken.get(part))
            if since is None or since >= until:
                continue
            if part not in self._feeds:
                raise Refused(
                    f"{part}: the checkpoint has a micro-batch with records of it that is to be "
                    f"run again, and the query does not read it now: {NOT_READ}. {ADVICE}"
                )
            planned.append((self._feeds[part], await self._slices(part, since, until)))
        await self._group.count(end)
        self._planned = end
        self._metrics.micro_batches += 1
        return to_tasks(planned, self._options)

    async def commit(self, end: Offset) -> None:
        """Everything before `end` is processed: Spark has recorded the next micro-batch."""
        await self._refresh()
        self._check_ids(end)
        if end.positions.keys() & self._feeds.keys():
            await self._start(end)
            await self._acknowledge(end)

    async def _acknowledge(self, offset: Offset) -> None:
        """Record that everything before an offset is processed."""

        async def one(part: StreamPartition) -> None:
            lsn = offset.positions[part]
            if self._committed.get(part, self._group.taken[part]) < lsn:
                await self._group.acknowledge(part, lsn)
                self._committed[part] = lsn

        read = [part for part in sorted(offset.positions) if part in self._feeds]
        await runtime.gather_each(one, read, at_once=CONCURRENT_REQUESTS_MAX)

    async def report(self) -> Offset:
        """The end of the streams for the query's progress. Mostly sends no request."""
        if all(pending.is_at_end for pending in self._pending.values()):
            positions = {part: pending.end_lsn for part, pending in self._pending.items()}
            return Offset(positions, self._ids, {})
        now_s = runtime.monotonic_s()
        if self._reported_end is None or now_s - self._reported_end[0] >= REPORT_S:
            self._reported_end = (now_s, await self._latest_positions())
        return Offset(self._reported_end[1], self._ids, {})

    # Streams, partitions and their positions

    async def _refresh(self) -> None:
        """Look for new streams and partitions from time to time."""
        now_s = runtime.monotonic_s()
        if self._refreshed_s is not None and (
            self._available_now_end is not None or now_s - self._refreshed_s < REFRESH_S
        ):
            return
        streams = await subscribed_streams(self._store, self._options)
        for stream, part in parts_of(streams, self._options):
            if part not in self._feeds:
                gives_up = self._options.on_bad_batch == "deadLetter"
                self._feeds[part] = PartitionFeed(
                    stream, part.partition, gives_up_as=self._options.group_id if gives_up else ""
                )
                self._ids[part.stream] = stream.id
                self._streams[part.stream] = stream
        self._refreshed_s = now_s

    def _check_ids(self, offset: Offset) -> None:
        for stream, stream_id in self._ids.items():
            if offset.ids.get(stream, stream_id) != stream_id:
                raise Refused(
                    f"stream {stream!r} was deleted and created again after the checkpoint was "
                    "written, and has other records at the same offsets: give the query a new "
                    "checkpoint"
                )

    def _check_order(self, start: Offset, end: Offset) -> None:
        for part, until in sorted(end.positions.items()):
            since = start.positions.get(part, until)
            if since > until:
                raise Refused(
                    f"{part}: the micro-batch would begin at offset {since} and end at "
                    f"{until}. Another query of group {self._options.group_id!r} went on from "
                    "here, or the checkpoint is an older copy: give the query a new checkpoint, "
                    "or a new checkpoint and a groupId of its own"
                )

    async def _check_ends(self, positions: Mapping[StreamPartition, int], whose: str) -> None:
        """Refuse positions beyond the end, before they change anything."""
        parts = sorted(positions)
        for part, bounds in zip(parts, await self._bounds(parts), strict=True):
            if bounds.is_counted and positions[part] > bounds.latest:
                raise beyond_the_end(part, positions[part], bounds.latest, whose)

    async def _bounds(self, parts: Sequence[StreamPartition]) -> list[Bounds]:
        async def one(part: StreamPartition) -> Bounds:
            return await self._feeds[part].bounds()

        return await runtime.gather_each(one, parts, at_once=CONCURRENT_REQUESTS_MAX)

    async def _begin(self, *, is_new_checkpoint: bool = True) -> dict[str, GroupState]:
        """The group in each stream, where it begins by the options if it has not begun."""
        states = await self._group.states(self._streams.values())
        await self._check_ends(self._positions(states), f"group {self._options.group_id!r}")
        if is_new_checkpoint and states and self._options.starting_option is not None:
            self._warn_ignored(states)
        missing = [stream for name, stream in self._streams.items() if name not in states]
        # Where a query of the group has run, a stream that it does not know came later. If none
        # has, its first start was cut short.
        is_added = any(state.record.query for state in states.values())
        if missing and not is_added:
            names = {stream.name for stream in missing}
            needed = [part for part in self._feeds if part.stream in names]
            check_partitions_named(self._options, self._feeds, needed=needed)
        for stream in missing:
            begins = await self._begins(stream, is_added=is_added)
            states[stream.name] = await self._group.begin(stream, begins)
        return states

    async def _begins(self, stream: Stream, *, is_added: bool = False) -> dict[int, int]:
        """Where the group begins in each partition of a stream: in those that the query does not
        read, and in a stream that came after its first start, at the oldest record."""

        async def one(partition: int) -> int:
            feed = self._feeds.get(StreamPartition(stream.name, partition))
            if feed is None or is_added:
                return (await PartitionFeed(stream, partition).bounds()).oldest
            return await starting_lsn(feed, self._options, LATEST)

        partitions = range(stream.partitions)
        found = await runtime.gather_each(one, partitions, at_once=CONCURRENT_REQUESTS_MAX)
        return dict(zip(partitions, found, strict=True))

    def _warn_ignored(self, states: Mapping[str, GroupState]) -> None:
        positions, first = self._positions(states), min(states)
        LOG.warning(
            "%s is ignored: group %r is known and continues from its position (%s). To continue "
            "elsewhere, stop the query, reset the group (%s --to-… --execute) and give the query a "
            "new checkpoint; or give the query a groupId of its own",
            self._options.starting_option,
            self._options.group_id,
            "; ".join(f"{part}: offset {lsn}" for part, lsn in sorted(positions.items())),
            group_command("reset", self._streams[first], self._options.group_id),
        )

    def _positions(self, states: Mapping[str, GroupState]) -> dict[StreamPartition, int]:
        """The positions in the partitions that the query reads."""
        return {
            part: states[part.stream].positions.get(
                part.partition, begin_of(part.partition, states[part.stream].record.begins)
            )
            for part in self._feeds
            if part.stream in states
        }

    def _offset_at(
        self, states: Mapping[str, GroupState], *, query: str, step: int = 0, closed: bool = True
    ) -> Offset:
        resets = {name: state.record.resets for name, state in states.items()}
        return Offset(self._positions(states), dict(self._ids), resets, closed, query, step)

    async def _start(self, offset: Offset) -> None:
        """Start in the streams of this offset, if that is not done."""
        names = offset.streams
        await self._group.start(
            offset, [feed for part, feed in self._feeds.items() if part.stream in names]
        )

    async def _take_added(self, start: Offset, added: list[PartitionFeed]) -> None:
        """Take partitions that the checkpoint does not have, and begin in streams that are new."""
        for stream in {feed.part.stream: feed.stream for feed in added}.values():
            if not self._group.is_started(stream.name):
                await self._group.begin(stream, await self._begins(stream, is_added=True))
        await self._group.start(start, added)
        positions = {feed.part: self._group.taken[feed.part] for feed in added}
        await self._check_ends(positions, f"group {self._options.group_id!r}")

    async def _latest_positions(self) -> dict[StreamPartition, int]:
        parts = sorted(self._feeds)
        bounds = await self._bounds(parts)
        return {part: one.latest for part, one in zip(parts, bounds, strict=True)}

    # The next micro-batch

    async def _poll(self, here: Mapping[StreamPartition, int], limits: Limits) -> None:
        """List new batches, and check that no other run was started."""
        await self._group.check()

        async def one(part: StreamPartition) -> bool:
            return await self._fetch_part(part, here[part], limits)

        listed = await runtime.gather_each(one, here, at_once=CONCURRENT_REQUESTS_MAX)
        if any(listed):
            self._poll_backoff.reset()
            self._poll_due_s = runtime.monotonic_s()
        else:
            self._poll_due_s = runtime.monotonic_s() + self._poll_backoff.next_s()

    async def _fetch_part(self, part: StreamPartition, position: int, limits: Limits) -> bool:
        pending = self._pending.get(part)
        if pending is None:
            pending = self._pending[part] = PendingBatches(self._feeds[part], position)
        pending.restart_at(position)
        if self._available_now_end is not None and pending.end_lsn >= self._available_now_end.get(
            part, position
        ):
            return False
        while True:
            try:
                return await pending.fetch(rows=limits.rows, size_bytes=limits.size_bytes)
            except Trimmed as trimmed:
                # Again, in case more was deleted meanwhile.
                oldest = await self._after_loss(part, position, trimmed)
                pending.restart_at(oldest, instead_of=position)

    def _next_ends(
        self, here: dict[StreamPartition, int], limits: Limits
    ) -> dict[StreamPartition, int]:
        """Where the next micro-batch ends in each partition that has records for it."""
        parts = [part for part in here if part in self._pending]
        waiting = []
        for part in parts:
            pending = self._pending[part]
            pending.restart_at(here[part])
            until = (
                None
                if self._available_now_end is None
                else self._available_now_end.get(part, here[part])
            )
            waiting.append(pending.up_to(until))
        self._turn += 1
        ends = micro_batch_ends(waiting, limits, turn=self._turn)
        # Where nothing follows records that are lost, the group moves past them without rows.
        moved = {part: self._pending[part].start_lsn for part in parts}
        moved |= {part: end for part, end in zip(parts, ends, strict=True) if end is not None}
        return {part: end for part, end in moved.items() if end > here[part]}

    async def _slices(self, part: StreamPartition, since: int, until: int) -> list[Slice]:
        pending = self._pending.get(part)
        if pending is None or not pending.starts_at(since):
            pending = PendingBatches(self._feeds[part], since)
        while True:
            try:
                return await pending.fetch_until(until)
            except Trimmed as trimmed:
                # Again, in case more was deleted meanwhile.
                oldest = await self._after_loss(part, since, trimmed)
                pending = PendingBatches(self._feeds[part], oldest)

    async def _after_loss(self, part: StreamPartition, wanted: int, trimmed: Trimmed) -> int:
        """The oldest LSN, if the query may continue there."""
        # Records that another run of this group has read are not lost.
        await self._group.check()
        oldest = (await self._feeds[part].bounds()).oldest
        loss = data_loss_before(part, wanted, oldest, self._store.url)
        if self._options.fail_on_data_loss:
            raise loss from trimmed
        LOG.warning("%s", loss)
        return oldest


def to_tasks(
    planned: Iterable[tuple[PartitionFeed, list[Slice]]], options: ReadOptions
) -> list[SlicePartition]:
    """Divide slices into tasks by their size."""
    by_feed = list(planned)
    tasks = plan_tasks(
        [slices for _, slices in by_feed],
        target_bytes=options.max_partition_bytes,
        min_tasks=options.min_partitions,
    )
    return [
        SlicePartition(feed.part, feed.stream_config, slices)
        for (feed, _), of_part in zip(by_feed, tasks, strict=True)
        for slices in of_part
    ]
