"""Drivers of streaming queries, which ask a source what Spark asks, in Spark's own order.

Spark 4.2 and 4.3: `latestOffset` from where the last micro-batch ended; its end is written down;
the one before is committed to the source; `partitions`; tasks; the sink; the batch is written down
as done. `initialOffset` is asked twice for the first one, and again when that is run again. Spark
4.1 asks `latestOffset` without a start, and `initialOffset` when it plans the first micro-batch;
with AvailableNow it asks that before, and runs one micro-batch.

What a driver has written down is there for the next one, and only one driver may write each line:
a zombie that comes late with another one ends with that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headwater.core import runtime
from headwater.spark.options import ReadOptions
from headwater.spark.source.executor import SliceReader
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset
from headwater.spark.source.slices import Limits, SlicePartition
from headwater.spark.source.streams import source_schema, subscribed_streams
from headwater.spark.versions import spark_schema
from headwater.store import Store
from tests.torture.spark_world import Delivered, Held, Life, SparkWorld


class Overtaken(Exception):
    """Another driver of the same checkpoint has written this down."""


@dataclass
class Notes:
    """A checkpoint: what Spark has written down, and the sink that knows the query by it."""

    offsets: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    delivered: Delivered = field(default_factory=Delivered)

    def before(self, number: int) -> Notes:
        """A copy from before a micro-batch; the sink is as it is."""
        offsets = {one: offset for one, offset in self.offsets.items() if one < number}
        return Notes(offsets, {one for one in self.done if one < number}, self.delivered)


def lives_of(offset: Offset) -> dict[Life, int]:
    """The LSN that comes next in each partition."""
    return {
        life_of(offset, part.stream, part.partition): lsn for part, lsn in offset.positions.items()
    }


def life_of(offset: Offset, stream: str, partition: int) -> Life:
    return Life(Held(stream, offset.ids[stream], partition), offset.resets[stream])


class Driver:
    """One run of a query."""

    def __init__(
        self,
        world: SparkWorld,
        options: ReadOptions,
        notes: Notes,
        *,
        is_41: bool,
        available_now: bool,
    ) -> None:
        self.world = world
        self.options = options
        self.notes = notes
        self._is_41 = is_41
        self._available_now = available_now
        self._offsets = dict(notes.offsets)
        self._is_replay = bool(notes.offsets) and max(notes.offsets) not in notes.done
        self._store: Store = world.store()
        self._source = MicroBatches(self._store, options)
        self._executor: SliceReader | None = None

    async def run(self) -> None:
        """Micro-batches, until nothing is new if that is what is asked for."""
        streams = await subscribed_streams(self._store, self.options)
        shape = source_schema(streams, self.options)
        self._executor = SliceReader(self.options, spark_schema(shape.columns(self.options)), shape)
        if self._available_now and not self._is_41:
            await self._source.prepare_available_now()
        ran = 0
        while True:
            await self._pause()
            if self._is_replay:
                self._is_replay = False
                await self._execute(max(self._offsets))
            elif self._is_41 and self._available_now and ran:
                return
            elif await self._construct():
                ran += 1
                await self._execute(max(self._offsets))
            elif self._available_now:
                return
            else:
                await runtime.sleep(self.world.random.choice((0.1, 0.6, 2.0, 30.0)))

    async def _construct(self) -> bool:
        """Write the next micro-batch down, and commit the one before; False if nothing is new."""
        number = len(self._offsets)
        start = None
        if not self._is_41 or (self._available_now and not number):
            start = await self._start_of(number)
            await self._pause()
        if number:
            # What lies before is done: a run that starts acknowledges it.
            self.world.commits(self.options.group_id, lives_of(await self._start_of(number)))
        if self._is_41:
            found = await self._source.latest_without_start()
        else:
            assert start is not None
            found = await self._source.latest(start, self._limits())
        self.world.started(self.options.group_id, self._epochs())
        end = json.dumps(found.to_json())
        before = json.dumps(start.to_json()) if start else self._offsets.get(number - 1)
        if not self._is_41:
            await self._source.report()
        await self._pause()
        if end == before and not (self._is_41 and not number):
            return False
        if number in self.notes.offsets:
            raise Overtaken(f"offsets/{number}")
        await self._told(number, start or await self._start_of(number), found)
        if number in self.notes.offsets:
            raise Overtaken(f"offsets/{number}")
        self.notes.offsets[number] = self._offsets[number] = end
        await self._pause()
        if number:
            await self._commit(Offset.from_json(json.loads(self._offsets[number - 1])))
        return True

    async def _told(self, number: int, start: Offset, end: Offset) -> None:
        """Let the world know what is about to be written down."""
        world, group, query = self.world, self.options.group_id, self.notes.delivered
        since, until = lives_of(start), lives_of(end)
        if await self._is_refused(number, start, end):
            query.refused.add(number)
            return
        query.refused.discard(number)
        added = {life: lsn for life, lsn in until.items() if life not in since}
        floors = {life: await self._floor(life.held) for life in added}
        if self._is_41:
            world.groups[group].is_crowded |= not world.groups[group].begun
            # Its micro-batch has the first records as well: it does not know what was added.
            added = {life: await self._place(life) for life in added}
        if not number:
            # Spark 4.1 may come too late with it: that is refused before anything is read.
            world.begins(group, since, query, exact=not self._is_41)
            if not self._is_41:
                world.replaces(group, query)
        for life, lsn in added.items():
            world.joins(group, life, lsn, floors[life], query)

    async def _is_refused(self, number: int, start: Offset, end: Offset) -> bool:
        """Whether what is about to be written down is refused before anything of it is read.

        `latestOffset` may take long: another checkpoint of the group may have claimed what this one
        began with, and may be far by now. Spark 4.1 asks without a start, so its source cannot know
        that a stream was made again, nor that all streams of the checkpoint are gone, and the
        group's positions with them: then the group is one that is not known, and begins again.
        """
        if self._is_41:
            known = start.ids.items()
            is_other = any(end.ids.get(name, stream_id) != stream_id for name, stream_id in known)
            resets = start.resets.items()
            is_other |= any(end.resets.get(name, count) != count for name, count in resets)
            return is_other or start.query != end.query
        if number:
            return False
        for name in sorted(start.streams):
            stream = self.world.streams.get(name)
            if stream is not None and stream.id == start.ids[name]:
                kept = await self.world.group(self.options.group_id, name)
                return (
                    kept is None
                    or kept.record.resets != end.resets[name]
                    or kept.record.query != end.query
                )
        return False

    async def _floor(self, held: Held) -> int:
        return await self.world.floor(held) if held in self.world.live() else 1 << 60

    async def _place(self, life: Life) -> int:
        """Where the group stands in a partition, as it is kept."""
        held = life.held
        if held not in self.world.live():
            return 1
        kept = await self.world.group(self.options.group_id, held.stream)
        return kept.positions[held.partition] if kept is not None else 1

    async def _commit(self, end: Offset) -> None:
        positions = lives_of(end)
        self.world.commits(self.options.group_id, positions)
        fenced = await self.world.fenced(self.options.group_id, positions, self._epochs())
        await self._source.commit(end)
        self.world.check(not fenced, f"{fenced} was committed by a run that was replaced")
        self.world.committed(self.options.group_id, positions, self.notes.delivered)

    def _epochs(self) -> dict[str, int]:
        """The epoch of this run in each stream, by the stream's id."""
        source = self._source
        epochs = source._group._epochs
        return {source._ids[name]: epoch.number for name, epoch in epochs.items()}

    async def _execute(self, number: int) -> None:
        end = Offset.from_json(json.loads(self._offsets[number]))
        start = await self._start_of(number)
        was_reset = await self.world.was_reset(self.options.group_id, lives_of(end))
        tasks = await self._source.plan(start, end)
        self.world.started(self.options.group_id, self._epochs())
        self.world.check(not was_reset, f"{number} was planned after a reset of {self.options}")
        await self._pause()
        rows: dict[Life, list[tuple[int, int]]] = {}
        for task in tasks:
            life = life_of(end, task.stream, task.partition)
            rows.setdefault(life, []).extend(await self._read(task))
        if not self.options.fail_on_data_loss:
            for life in lives_of(end):
                if life.held in self.world.live():
                    floor = await self.world.floor(life.held)
                    self.world.passes(self.options.group_id, life, floor)
        await self._pause()
        self.world.sinks(
            self.options.group_id,
            self.notes.delivered,
            number,
            rows,
            exact=self.options.fail_on_data_loss,
        )
        await self._pause()
        if number in self.notes.done:
            raise Overtaken(f"commits/{number}")
        self.notes.done.add(number)

    async def _read(self, task: SlicePartition) -> list[tuple[int, int]]:
        """LSN and value of each row of a task."""
        assert self._executor is not None
        reading, rows = self._executor.open(task, self._store)
        found: list[tuple[int, int]] = []
        mark, column = ("_", "n") if self.world.typed else ("", "value")
        try:
            while pieces := await reading.next_slices():
                for batch in rows.build(pieces):
                    lsns = batch.column(f"{mark}offset").to_pylist()
                    values = [int(value) for value in batch.column(column).to_pylist()]
                    found += zip(lsns, values, strict=True)
        finally:
            await reading.close()
        return found

    async def _start_of(self, number: int) -> Offset:
        if number:
            return Offset.from_json(json.loads(self._offsets[number - 1]))
        kept: Any = json.loads(json.dumps((await self._source.initial()).to_json()))
        found = Offset.from_json(kept)
        self.world.told(self.options.group_id, lives_of(found))
        return found

    def _limits(self) -> Limits:
        options = self.options
        return Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger)

    async def _pause(self) -> None:
        """An instant at which the driver may die, or rest while another one is started."""
        random = self.world.random
        await runtime.sleep(random.random() * (20.0 if random.random() < 0.05 else 0.01))
