"""Plans the micro-batches of a streaming query.

Always holds:

- no consumer is opened before `latest` is called, which only a started query does;
- where the group begins is stored before it is returned, so every call returns the same;
- the end of a micro-batch is returned once and kept by Spark; `plan` gives the same rows for the
  same two offsets, also after a restart, for as long as they are retained;
- `commit` acknowledges only what Spark has recorded as done;
- a checkpoint that is not the newest one of its group is refused (`checkpoint.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from headwater.buffer.consumer.progress import NO_STEP, OtherQuery
from headwater.buffer.queue.contract import QueuePosition
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
    starting_position,
)
from headwater.spark.source.checkpoint import (
    ADVICE,
    NOT_READ,
    CheckpointGuard,
    Membership,
    gather_limited,
)
from headwater.spark.source.feed import PartitionFeed, PendingBatches
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
        self._membership = Membership(options.group_id, take_over=options.take_over)
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
        self._refreshed_s: float | None = None
        self._initial: Offset | None = None
        self._available_now_end: dict[StreamPartition, QueuePosition] | None = None
        self._committed: dict[StreamPartition, QueuePosition] = {}
        self._guard = CheckpointGuard(options.group_id)
        self._latest_end: Offset | None = None
        self._planned: Offset | None = None
        self._quiet_since_s = runtime.monotonic_s()
        self._reported_end: tuple[float, dict[StreamPartition, QueuePosition]] | None = None
        self._turn = 0
        self._metrics = SourceMetrics().register(group=options.group_id)

    async def initial(self) -> Offset:
        """The position of the group, or where a new group begins. Every call returns the same."""
        if self._initial is None:
            await self._refresh()
            positions = await self._begin(list(self._feeds.values()))
            self._initial = Offset(positions, dict(self._ids), True, self._guard.token())
        return self._initial

    async def prepare_available_now(self) -> None:
        """End the query at the present end of the streams (AvailableNow)."""
        await self._refresh()
        self._available_now_end = await self._latest_positions()

    async def latest(self, start: Offset, limits: Limits) -> Offset:
        """The end of the micro-batch that begins at `start`; `start` itself if there is none."""
        self._latest_end = await self._next(start, limits)
        return self._latest_end

    async def latest_without_start(self) -> Offset:
        """`latest` for Spark 4.1, which passes neither the start of the micro-batch nor a limit.

        It begins where the last one ended, or at the position of the group: the records between
        that and the checkpoint's offset are in the micro-batch that Spark runs again.
        """
        if self._planned is None and self._initial is None:
            await self._refresh()
            # A new checkpoint asks for the initial offset first, so this is an old one.
            positions = await self._begin(list(self._feeds.values()), is_new_checkpoint=False)
            claim = await self._guard.stored(self._feeds)
            self._initial = Offset(
                positions, dict(self._ids), claim.step.closed, claim.query, claim.step.number
            )
        return await self.latest(self._planned or await self.initial(), Limits())

    async def _next(self, start: Offset, limits: Limits) -> Offset:
        # The order of these steps:
        # 1. the streams and partitions as they are now, which all other steps compare with;
        # 2. what is refused comes before what changes something: the positions of a stream that was
        #    created again, and positions beyond the end, must not be claimed or acknowledged;
        # 3. the claim comes before the ownership, because to own acknowledges what is before the
        #    start: an older copy of the checkpoint is refused before it does that;
        # 4. batches are listed by the owner, which may skip what cannot be counted;
        # 5. the claim of added partitions comes before Spark stores their positions.
        await self._refresh()
        self._check_ids(start)
        here = {part: start.positions[part] for part in self._feeds if part in start.positions}
        added = [feed for part, feed in self._feeds.items() if part not in start.positions]
        is_first_look = not here.keys() <= self._pending.keys()
        if is_first_look:
            await self._check_ends(here, "the checkpoint")
        await self._guard.enter(start, self._feeds)
        try:
            await self._membership.join([self._feeds[part] for part in here], here, start.query)
        except OtherQuery as error:
            raise self._guard.fenced(min(here)) from error
        is_due = runtime.monotonic_s() >= self._poll_due_s
        if is_first_look or is_due or self._available_now_end is not None:
            await self._poll(start, here, limits)
        ends = self._next_ends(here, limits)
        for feed in added:
            # Recorded where it begins before any of it is read; the next micro-batch reads it.
            ends[feed.part] = await self._begin_added(feed)
        if ends:
            self._quiet_since_s = runtime.monotonic_s()
            end = start.next(ends, self._ids)
            await gather_limited(self._guard.claim(feed, end) for feed in added)
            return end
        is_quiet = runtime.monotonic_s() - self._quiet_since_s >= CLOSE_AFTER_S
        if start.closed or not (is_quiet or self._available_now_end is not None):
            return start
        return start.closed_next()

    async def plan(self, start: Offset, end: Offset) -> list[SlicePartition]:
        """The tasks that read everything from `start` to `end`."""
        await self._refresh()
        self._check_ids(start)
        self._check_ids(end)
        self._check_order(start, end)
        self._guard.check_follows(start, end)
        await self._guard.check(end, self._feeds)
        planned: list[tuple[PartitionFeed, list[Slice]]] = []
        for part, until in sorted(end.positions.items()):
            since = start.positions.get(part)
            if since is None and part in self._feeds:
                # A new partition. It begins at its end, except on Spark 4.1: there `latest` did not
                # know that the checkpoint lacks it, so it begins at the group's position.
                since = await self._feeds[part].position_of(self._options.group_id)
            if since is None or since >= until:
                continue
            if part not in self._feeds:
                raise Refused(
                    f"{part}: the checkpoint has a micro-batch with records of it that is to be "
                    f"run again, and the query does not read it now: {NOT_READ}. {ADVICE}"
                )
            planned.append((self._feeds[part], await self._slices(end, part, since)))
        await self._guard.count(end, self._feeds)
        self._planned = end
        self._metrics.micro_batches += 1
        return to_tasks(planned, self._options)

    async def commit(self, end: Offset) -> None:
        """Everything before `end` is processed: Spark has recorded the next micro-batch."""
        await self._refresh()
        self._check_ids(end)
        # The next micro-batch is recorded too, so the same write counts it.
        last = self._latest_end
        recorded = end if last is None or last.query != end.query else last
        counting_part = self._guard.counting_part(end, self._feeds)

        async def one(part: StreamPartition, position: QueuePosition) -> None:
            if self._committed.get(part) == position:
                return
            step = recorded.last_step if part == counting_part else NO_STEP
            try:
                await self._membership.commit(
                    self._feeds[part], position, query=end.query, step=step
                )
            except OtherQuery as error:
                raise self._guard.fenced(part) from error
            self._committed[part] = position
            if part == counting_part:
                self._guard.note_count(recorded)

        await gather_limited(
            one(part, position) for part, position in end.positions.items() if part in self._feeds
        )

    async def report(self) -> Offset:
        """The end of the streams for the query's progress. Mostly sends no request."""
        if all(pending.is_at_end for pending in self._pending.values()):
            positions = {part: pending.end for part, pending in self._pending.items()}
            return Offset(positions, self._ids)
        now_s = runtime.monotonic_s()
        if self._reported_end is None or now_s - self._reported_end[0] >= REPORT_S:
            self._reported_end = (now_s, await self._latest_positions())
        return Offset(self._reported_end[1], self._ids)

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
                skips_uncounted = self._options.on_bad_batch == "deadLetter"
                self._feeds[part] = PartitionFeed(
                    stream, part.partition, skips_uncounted=skips_uncounted
                )
                self._ids[part.stream] = stream.id
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
                    f"{part}: the micro-batch would begin at offset {since.lsn} and end at "
                    f"{until.lsn}. Another query of group {self._options.group_id!r} went on from "
                    "here, or the checkpoint is an older copy: give the query a new checkpoint, "
                    "or a new checkpoint and a groupId of its own"
                )

    async def _check_ends(
        self, positions: Mapping[StreamPartition, QueuePosition], whose: str
    ) -> None:
        """Refuse positions beyond the end, before they change anything."""
        parts = sorted(positions)
        bounds = await gather_limited(self._feeds[part].bounds() for part in parts)
        for part, bound in zip(parts, bounds, strict=True):
            if positions[part] > bound.latest:
                raise beyond_the_end(part, positions[part], bound.latest, whose)

    async def _begin(
        self, feeds: list[PartitionFeed], *, is_new_checkpoint: bool = True
    ) -> dict[StreamPartition, QueuePosition]:
        """The group's position in each partition; the oldest record of a partition added later."""
        group = self._options.group_id
        stored = await gather_limited(feed.position_of(group) for feed in feeds)
        positions = {
            feed.part: position for feed, position in zip(feeds, stored, strict=True) if position
        }
        await self._check_ends(positions, f"group {group!r}")
        missing = [feed for feed in feeds if feed.part not in positions]
        if is_new_checkpoint and positions and self._options.starting_option is not None:
            LOG.warning(
                "%s is ignored: group %r is known and continues from its position (%s). To read "
                "from elsewhere, give the query a groupId of its own",
                self._options.starting_option,
                group,
                "; ".join(
                    f"{part}: offset {position.lsn}" for part, position in sorted(positions.items())
                ),
            )
        if missing:
            resolved = await self._resolve_start(
                [feed for feed in feeds if feed.part in positions], missing
            )
            for feed in missing:
                first = resolved.get(feed.key) or (await feed.bounds()).oldest
                positions[feed.part] = await feed.begin(group, first)
        return positions

    async def _resolve_start(
        self, begun: list[PartitionFeed], missing: list[PartitionFeed]
    ) -> dict[str, QueuePosition]:
        """Where the group begins in the partitions of its first start; none for later partitions.

        The first register that is written stores all of them. Otherwise, if the query died before
        it wrote the others, the next run would take those for partitions that were added later.
        """
        group = self._options.group_id
        if not begun:
            check_partitions_named(self._options, self._feeds)
            firsts = await gather_limited(self._first_position(feed) for feed in missing)
            together = {feed.key: first for feed, first in zip(missing, firsts, strict=True)}
            await missing[0].begin(group, firsts[0], together=together)
            begun = missing[:1]
        resolved: dict[str, QueuePosition] = {}
        for positions in await gather_limited(feed.starting_positions(group) for feed in begun):
            resolved |= positions
        return resolved

    async def _first_position(self, feed: PartitionFeed) -> QueuePosition:
        options = self._options
        if options.take_over and options.starting_option is None:
            owner = await feed.owner()
            if owner.group:
                return owner.acked  # continue where the other group was
        return await starting_position(feed, options, LATEST)

    async def _begin_added(self, feed: PartitionFeed) -> QueuePosition:
        position = await feed.position_of(self._options.group_id)
        if position is not None:
            return position
        return await feed.begin(self._options.group_id, (await feed.bounds()).oldest)

    async def _latest_positions(self) -> dict[StreamPartition, QueuePosition]:
        feeds = list(self._feeds.values())
        bounds = await gather_limited(feed.bounds() for feed in feeds)
        return {feed.part: bound.latest for feed, bound in zip(feeds, bounds, strict=True)}

    # The next micro-batch

    async def _poll(
        self, start: Offset, here: dict[StreamPartition, QueuePosition], limits: Limits
    ) -> None:
        """List new batches, and check that the ownership is still ours."""
        await self._membership.check(self._feeds[part] for part in here)
        listed = await gather_limited(self._fetch_part(start, part, limits) for part in here)
        if any(listed):
            self._poll_backoff.reset()
            self._poll_due_s = runtime.monotonic_s()
        else:
            self._poll_due_s = runtime.monotonic_s() + self._poll_backoff.next_s()

    async def _fetch_part(self, start: Offset, part: StreamPartition, limits: Limits) -> bool:
        position = start.positions[part]
        pending = self._pending.get(part)
        if pending is None:
            pending = self._pending[part] = PendingBatches(self._feeds[part], position)
        pending.restart_at(position)
        if self._available_now_end is not None and pending.end >= self._available_now_end.get(
            part, position
        ):
            return False
        while True:
            try:
                return await pending.fetch(rows=limits.rows, size_bytes=limits.size_bytes)
            except Trimmed as trimmed:
                # Again, in case more was deleted meanwhile.
                oldest = await self._after_loss(start, part, position, trimmed)
                pending.restart_at(oldest, instead_of=position)

    def _next_ends(
        self, here: dict[StreamPartition, QueuePosition], limits: Limits
    ) -> dict[StreamPartition, QueuePosition]:
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
        return {
            part: end
            for part, end in zip(parts, ends, strict=True)
            if end is not None and end > here[part]
        }

    async def _slices(
        self, end: Offset, part: StreamPartition, since: QueuePosition
    ) -> list[Slice]:
        until = end.positions[part]
        pending = self._pending.get(part)
        if pending is None or not pending.starts_at(since):
            pending = PendingBatches(self._feeds[part], since)
        while True:
            try:
                return await pending.fetch_until(until)
            except Trimmed as trimmed:
                # Again, in case more was deleted meanwhile.
                oldest = await self._after_loss(end, part, since, trimmed)
                pending = PendingBatches(self._feeds[part], oldest)

    async def _after_loss(
        self, offset: Offset, part: StreamPartition, wanted: QueuePosition, trimmed: Trimmed
    ) -> QueuePosition:
        """The oldest position, if the query may continue there."""
        # Records that another query of this group has read are not lost.
        await self._guard.check_again(offset, self._feeds)
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
