"""A streaming query's reading: where it begins, what the next micro-batch is, what is done.

Always holds:

- nothing is opened before `latest` is asked, which only a started query does;
- where the group begins is kept in the store before it is told: it is told the same every time;
- a micro-batch's end is told once and kept by Spark; `plan` gives the same rows for the same two
  offsets, today and after a restart, for as long as they are retained;
- `commit` acknowledges what Spark has written down as done, and nothing else;
- a checkpoint that is not the newest one of its group is refused (`checkpoint.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from headwater.buffer.consumer import QueuePosition
from headwater.buffer.consumer.group import NO_STEP, OtherQuery
from headwater.core import runtime
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import FOLLOW_POLL_BASE_S, FOLLOW_POLL_CAP_S
from headwater.spark.options import ReadOptions
from headwater.spark.options.values import LATEST
from headwater.spark.source import bounds
from headwater.spark.source.bounds import beyond_the_end, data_loss_before
from headwater.spark.source.checkpoint import (
    CURE,
    NOT_READ,
    CheckpointGuard,
    Membership,
    gather_limited,
)
from headwater.spark.source.feed import BufferFeed, Feed, PendingBatches
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
"""How often streams and partitions that came since are looked for."""
CLOSE_AFTER_S: Final = 1.0
"""So long after the last record a query that goes on has its last micro-batch acknowledged."""
REPORT_S: Final = 5.0
"""How old a reported end may be where less than all is known."""


class MicroBatches:
    """The reading half of one query. Lives where Spark keeps the query's source."""

    def __init__(self, store: Store, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._membership = Membership(options.group_id, take_over=options.take_over)
        self._polling = Polling(is_local=store.is_local)
        self._feeds: dict[StreamPartition, Feed] = {}
        self._known: dict[StreamPartition, PendingBatches] = {}
        self._ids: dict[str, str] = {}
        self._refreshed_s: float | None = None
        self._initial: Offset | None = None
        self._fixed: dict[StreamPartition, QueuePosition] | None = None
        self._committed: dict[StreamPartition, QueuePosition] = {}
        self._guard = CheckpointGuard(options.group_id)
        self._told: Offset | None = None
        self._planned: Offset | None = None
        self._quiet_since_s = runtime.monotonic_s()
        self._ends: tuple[float, dict[StreamPartition, QueuePosition]] | None = None
        self._turn = 0

    async def initial(self) -> Offset:
        """Where the group stands, or begins if it is not known. Asked twice, told the same."""
        if self._initial is None:
            await self._refresh()
            places = await self._begin(list(self._feeds.values()))
            self._initial = Offset(places, dict(self._ids), True, self._guard.token())
        return self._initial

    async def fix_end(self) -> None:
        """From here on nothing counts that is appended later (AvailableNow)."""
        await self._refresh()
        self._fixed = await self._latest_places()

    async def latest(self, start: Offset, limits: Limits) -> Offset:
        """The end of the micro-batch that begins at `start`; `start` itself if there is none."""
        self._told = await self._next(start, limits)
        return self._told

    async def latest_unasked(self) -> Offset:
        """For Spark 4.1, which does not say where the micro-batch begins, nor how much it holds.

        It begins where the last one ended, or where the group stands: what lies between that and
        the checkpoint is nothing new.
        """
        if self._planned is None and self._initial is None:
            await self._refresh()
            # A new checkpoint asks for the initial offset first: this one is gone on with.
            places = await self._begin(list(self._feeds.values()), is_new=False)
            claim = await self._guard.stored(self._feeds)
            self._initial = Offset(
                places, dict(self._ids), claim.step.closed, claim.query, claim.step.number
            )
        return await self.latest(self._planned or await self.initial(), Limits())

    async def _next(self, start: Offset, limits: Limits) -> Offset:
        await self._refresh()
        self._check_ids(start)
        here = {part: start.places[part] for part in self._feeds if part in start.places}
        added = [feed for part, feed in self._feeds.items() if part not in start.places]
        is_new = not here.keys() <= self._known.keys()
        if is_new:
            await self._check_ends(here, "the checkpoint")
        await self._guard.enter(start, self._feeds)
        try:
            await self._membership.join([self._feeds[part] for part in here], here, start.query)
        except OtherQuery as error:
            raise self._guard.fenced(min(here)) from error
        if is_new or self._fixed is not None or self._polling.is_due:
            await self._look(start, here, limits)
        ends = self._ends_of(here, limits)
        for feed in added:
            # Said where it begins before anything of it is read: the next micro-batch begins there.
            ends[feed.part] = await self._begin_added(feed)
        if ends:
            self._quiet_since_s = runtime.monotonic_s()
            found = start.moved(ends, self._ids)
            await gather_limited(self._guard.claim(feed, found) for feed in added)
            return found
        quiet = runtime.monotonic_s() - self._quiet_since_s >= CLOSE_AFTER_S
        if start.closed or not (quiet or self._fixed is not None):
            return start
        return start.marked()

    async def plan(self, start: Offset, end: Offset) -> list[SlicePartition]:
        """The tasks that read everything from `start` to `end`."""
        await self._refresh()
        self._check_ids(start)
        self._check_ids(end)
        self._check_order(start, end)
        self._guard.check_follows(start, end)
        await self._guard.check(end, self._feeds)
        planned: list[tuple[Feed, list[Slice]]] = []
        for part, until in sorted(end.places.items()):
            since = start.places.get(part)
            if since is None and part in self._feeds:
                # Added since. It begins at its end, but on Spark 4.1: there the end was found
                # without knowing that the checkpoint lacks it, and the group's place is the start.
                since = await self._feeds[part].place_of(self._options.group_id)
            if since is None or since >= until:
                continue
            if part not in self._feeds:
                raise Refused(
                    f"{part}: the checkpoint has a micro-batch with records of it that is to be "
                    f"run again, and the query does not read it now: {NOT_READ}. {CURE}"
                )
            planned.append((self._feeds[part], await self._slices(end, part, since)))
        await self._guard.count(end, self._feeds)
        self._planned = end
        return pack(planned, self._options)

    async def commit(self, end: Offset) -> None:
        """Everything before `end` is processed. Spark has the next micro-batch written down."""
        await self._refresh()
        self._check_ids(end)
        # Told and written down by now: counted with the same write.
        told = end if self._told is None or self._told.query != end.query else self._told
        counting = self._guard.counting(end, self._feeds)

        async def one(part: StreamPartition, place: QueuePosition) -> None:
            if self._committed.get(part) == place:
                return
            step = told.last_step if part == counting else NO_STEP
            try:
                await self._membership.commit(self._feeds[part], place, query=end.query, step=step)
            except OtherQuery as error:
                raise self._guard.fenced(part) from error
            self._committed[part] = place
            if part == counting:
                self._guard.counted(told)

        await gather_limited(
            one(part, place) for part, place in end.places.items() if part in self._feeds
        )

    async def report(self) -> Offset:
        """The end of everything, for the query's progress: from memory, or nearly."""
        if all(known.is_all for known in self._known.values()):
            places = {part: known.end for part, known in self._known.items()}
            return Offset(places, self._ids)
        now_s = runtime.monotonic_s()
        if self._ends is None or now_s - self._ends[0] >= REPORT_S:
            self._ends = (now_s, await self._latest_places())
        return Offset(self._ends[1], self._ids)

    # What there is to read

    async def _refresh(self) -> None:
        """Look for streams and partitions, now and then."""
        now_s = runtime.monotonic_s()
        if self._refreshed_s is not None and (
            self._fixed is not None or now_s - self._refreshed_s < REFRESH_S
        ):
            return
        streams = await subscribed_streams(self._store, self._options)
        for stream, part in parts_of(streams, self._options):
            if part not in self._feeds:
                gives_up = self._options.on_bad_batch == "deadLetter"
                self._feeds[part] = BufferFeed(stream, part.partition, gives_up=gives_up)
                self._ids[part.stream] = stream.id
        self._refreshed_s = now_s

    def _check_ids(self, offset: Offset) -> None:
        for stream, known in self._ids.items():
            if offset.ids.get(stream, known) != known:
                raise Refused(
                    f"stream {stream!r} was deleted and made again since the checkpoint was "
                    "written, and has other records at the same offsets: give the query a new "
                    "checkpoint"
                )

    def _check_order(self, start: Offset, end: Offset) -> None:
        for part, until in sorted(end.places.items()):
            since = start.places.get(part, until)
            if since > until:
                raise Refused(
                    f"{part}: the micro-batch would begin at offset {since.lsn} and end at "
                    f"{until.lsn}. Another query of group {self._options.group_id!r} went on from "
                    "here, or the checkpoint is an older copy: give the query a new checkpoint, "
                    "or a new checkpoint and a groupId of its own"
                )

    async def _check_ends(
        self, places: Mapping[StreamPartition, QueuePosition], whose: str
    ) -> None:
        """Refuse places beyond the end, before anything is changed by them."""
        parts = sorted(places)
        bounds = await gather_limited(self._feeds[part].bounds() for part in parts)
        for part, found in zip(parts, bounds, strict=True):
            if places[part] > found.latest:
                raise beyond_the_end(part, places[part], found.latest, whose)

    async def _begin(
        self, feeds: list[Feed], *, is_new: bool = True
    ) -> dict[StreamPartition, QueuePosition]:
        """Where the group stands in each partition; a partition that came later: its oldest."""
        group = self._options.group_id
        kept = await gather_limited(feed.place_of(group) for feed in feeds)
        places = {feed.part: place for feed, place in zip(feeds, kept, strict=True) if place}
        await self._check_ends(places, f"group {group!r}")
        missing = [feed for feed in feeds if feed.part not in places]
        if is_new and places and self._options.starting_option is not None:
            LOG.warning(
                "%s is ignored: group %r is known, and goes on where it stands (%s). To read from "
                "elsewhere, give the query a groupId of its own",
                self._options.starting_option,
                group,
                "; ".join(f"{part}: offset {place.lsn}" for part, place in sorted(places.items())),
            )
        if missing:
            resolved = await self._resolve([one for one in feeds if one.part in places], missing)
            for feed in missing:
                first = resolved.get(feed.key) or (await feed.bounds()).oldest
                places[feed.part] = await feed.begin(group, first)
        return places

    async def _resolve(self, known: list[Feed], missing: list[Feed]) -> dict[str, QueuePosition]:
        """Where the group begins in the partitions that it began with; nothing of later ones.

        All of it is kept in the first register that is written. Whoever dies before the others are
        would else be followed by one that takes them for partitions that came later.
        """
        group = self._options.group_id
        if not known:
            bounds.check_named(self._options, self._feeds)
            found = await gather_limited(self._first_place(feed) for feed in missing)
            together = {feed.key: place for feed, place in zip(missing, found, strict=True)}
            await missing[0].begin(group, found[0], together=together)
            known = missing[:1]
        resolved: dict[str, QueuePosition] = {}
        for told in await gather_limited(feed.begun_together(group) for feed in known):
            resolved |= told
        return resolved

    async def _first_place(self, feed: Feed) -> QueuePosition:
        options = self._options
        if options.take_over and options.starting_option is None:
            owner = await feed.owner()
            if owner.group:
                return owner.acked  # to take over is to go on where the other one stood
        return await bounds.starting_place(feed, options, LATEST)

    async def _begin_added(self, feed: Feed) -> QueuePosition:
        kept = await feed.place_of(self._options.group_id)
        if kept is not None:
            return kept
        return await feed.begin(self._options.group_id, (await feed.bounds()).oldest)

    async def _latest_places(self) -> dict[StreamPartition, QueuePosition]:
        feeds = list(self._feeds.values())
        bounds = await gather_limited(feed.bounds() for feed in feeds)
        return {feed.part: found.latest for feed, found in zip(feeds, bounds, strict=True)}

    # What comes next

    async def _look(
        self, start: Offset, here: dict[StreamPartition, QueuePosition], limits: Limits
    ) -> None:
        """Ask the queues for more, and whether this is still their owner."""
        await self._membership.check(self._feeds[part] for part in here)
        found = await gather_limited(self._learn(start, part, limits) for part in here)
        self._polling.found(any(found))

    async def _learn(self, start: Offset, part: StreamPartition, limits: Limits) -> bool:
        place = start.places[part]
        known = self._known.get(part)
        if known is None:
            known = self._known[part] = PendingBatches(self._feeds[part], place)
        known.begin_at(place)
        if self._fixed is not None and known.end >= self._fixed.get(part, place):
            return False
        while True:
            try:
                return await known.learn(rows=limits.rows, size_bytes=limits.size_bytes)
            except Trimmed as trimmed:
                # Once more, if more of it goes meanwhile.
                oldest = await self._after_loss(start, part, place, trimmed)
                known.begin_at(oldest, instead_of=place)

    def _ends_of(
        self, here: dict[StreamPartition, QueuePosition], asked_for: Limits
    ) -> dict[StreamPartition, QueuePosition]:
        """Where each partition's part of the next micro-batch ends, if it has one."""
        parts = [part for part in here if part in self._known]
        waiting = []
        for part in parts:
            known = self._known[part]
            known.begin_at(here[part])
            until = None if self._fixed is None else self._fixed.get(part, here[part])
            waiting.append(known.until(until))
        self._turn += 1
        found = micro_batch_ends(waiting, asked_for, turn=self._turn)
        return {
            part: end
            for part, end in zip(parts, found, strict=True)
            if end is not None and end > here[part]
        }

    async def _slices(
        self, end: Offset, part: StreamPartition, since: QueuePosition
    ) -> list[Slice]:
        until = end.places[part]
        known = self._known.get(part)
        if known is None or not known.begins_at(since):
            known = PendingBatches(self._feeds[part], since)
        while True:
            try:
                return await known.all_until(until)
            except Trimmed as trimmed:
                # Once more, if more of it goes meanwhile.
                oldest = await self._after_loss(end, part, since, trimmed)
                known = PendingBatches(self._feeds[part], oldest)

    async def _after_loss(
        self, offset: Offset, part: StreamPartition, wanted: QueuePosition, trimmed: Trimmed
    ) -> QueuePosition:
        """The oldest place, where it may be gone on with."""
        # What another query of this group has read and let expire is not lost.
        await self._guard.check_again(offset, self._feeds)
        oldest = (await self._feeds[part].bounds()).oldest
        loss = data_loss_before(part, wanted, oldest, self._store.url)
        if self._options.fail_on_data_loss:
            raise loss from trimmed
        LOG.warning("%s", loss)
        return oldest


def pack(planned: Iterable[tuple[Feed, list[Slice]]], options: ReadOptions) -> list[SlicePartition]:
    """Tasks for slices, by their size."""
    several = list(planned)
    found = plan_tasks(
        [slices for _, slices in several],
        target_bytes=options.max_partition_bytes,
        min_tasks=options.min_partitions,
    )
    return [
        SlicePartition(feed.part, feed.origin, slices)
        for (feed, _), of_part in zip(several, found, strict=True)
        for slices in of_part
    ]


# When to ask the store again: Spark asks every 10 ms, and a store charges for each question.


LOCAL_BASE_S: Final = 0.01
LOCAL_CAP_S: Final = 0.5


class Polling:
    """Ever longer waits while nothing comes, none when something did."""

    def __init__(self, *, is_local: bool) -> None:
        self._base_s = LOCAL_BASE_S if is_local else FOLLOW_POLL_BASE_S
        self._cap_s = LOCAL_CAP_S if is_local else FOLLOW_POLL_CAP_S
        self._wait_s = self._base_s
        self._due_s = runtime.monotonic_s()

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return runtime.monotonic_s() >= self._due_s

    def found(self, anything: bool) -> None:
        """What the last question brought."""
        if anything:
            self._wait_s = self._base_s
            self._due_s = runtime.monotonic_s()
            return
        self._due_s = runtime.monotonic_s() + self._wait_s
        self._wait_s = min(2 * self._wait_s, self._cap_s)
