"""What really happened to a native queue: every write and delete that the store ever applied.

The truth is kept beside the objects and never read by the code under test. Each change is checked
at the instant it is applied, so a broken promise is found where it was broken:

- a chunk is created on a closed one, goes on densely, and never changes once it is closed;
- a producer's sequences are dense, written by the life that opened last, each batch once, and
  the batch is there when its entry is;
- floors, epochs and what is acknowledged only go forward and agree with the chunks;
- nothing at or above the floor is deleted, and the floor does not pass what somebody holds back;
- a producer's mark is that of a batch that was accepted.

What is written at a number below the floor is no part of the queue: a request that was late.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headwater.buffer.queue.contract import AppendedBatch, Collector, Descriptor
from headwater.buffer.queue.native.chunk import Chunk, ChunkEntry, ProducerIncarnation, decode_chunk
from headwater.buffer.queue.native.chunk_log import ConsumerRecord, QueueEnd, QueueFloors
from headwater.buffer.queue.native.producers import ProducerShard, shard_name
from headwater.buffer.queue.retention import Retention
from headwater.core import limits
from headwater.testing import Simulation
from tests.torture.recording import RecordingBackend, Witness, register_value
from tests.torture.surroundings import require

PREFIX = "streams/s/0/ingest/q"
QUEUE_ID = "q"
PASSES_MAX = 400


class Entered(msgspec.Struct, frozen=True):
    """A batch of the queue, as it was appended."""

    entry: ChunkEntry
    producer: str
    chunk: int
    place: AppendedBatch
    appended_ms: int
    """By the store's clock."""


class Truth:
    """The queue as it is, whatever anybody was told."""

    def __init__(
        self,
        simulation: Simulation,
        may_expire: Callable[[int, int], bool],
        *,
        prefix: str = PREFIX,
        queue_id: str = QUEUE_ID,
        on_entered: Callable[[Entered], None] | None = None,
        held_from: Callable[[], int | None] | None = None,
    ) -> None:
        """`may_expire` says of a batch, by its time and the bytes after it, whether any
        collector may let it go. `on_entered` hears of every batch. `held_from` is the LSN from
        which records are held back, None if none are; without it, what is not acknowledged is."""
        self.simulation = simulation
        self.prefix = prefix
        self._queue_id = queue_id
        self._on_entered = on_entered
        self._may_expire = may_expire
        self.held_from = held_from
        self.truncates_before = 0
        """The batch before which a truncation may have been asked for: up to it nothing is kept
        for its age."""
        self.hold_below: str | None = None
        """The floor of the batches stays below this."""
        self.passed_s: dict[int, float] = {}
        """When the floor passed a chunk."""
        self.changed_ms: dict[int, int] = {}
        """When a chunk was last changed, by the store's clock."""
        self.chunks: list[Chunk] = []
        self.entered: list[Entered] = []
        """By sequence."""
        self.sequence_of: dict[str, int] = {}
        """By batch id."""
        self.queue = QueueFloors(queue_id)
        self.end = QueueEnd()
        self.consumer = ConsumerRecord()
        self.marks: dict[str, int] = {}
        self.accepted: dict[str, list[Entered]] = {}
        """By producer, in the order of the queue, since it was last forgotten."""
        self.lives: dict[str, list[str]] = {}
        """By producer: incarnations in the order in which they wrote themselves into its record,
        from the latest whose opening stands in the queue."""
        self.unappended: set[str] = set()
        """Ids of what was told not to be appended, and was not tried again since."""
        self.refused_ids: set[str] = set()
        """Told to be below the floor before they were appended."""
        self.forgotten: dict[str, int] = {}
        self.zombies = 0

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)

    @property
    def _store_ms(self) -> int:
        return self.simulation.runtime.wall_ms()

    @property
    def next_sequence(self) -> int:
        """The sequence that the next batch gets."""
        return len(self.entered)

    @property
    def next_lsn(self) -> int:
        """The LSN that the next record gets."""
        return self.chunks[-1].next_lsn if self.chunks else 1

    @property
    def epoch(self) -> int:
        """That of the consumer that opened last."""
        return self.consumer.epoch

    @property
    def acked_sequence(self) -> int:
        """The first sequence that is not acknowledged."""
        return self.consumer.sequence

    @property
    def floor_sequence(self) -> int:
        """The oldest sequence that is kept."""
        return self.queue.floor_sequence

    def last_accepted(self, producer: str) -> Entered | None:
        """The last batch of a producer."""
        accepted = self.accepted.get(producer)
        return accepted[-1] if accepted else None

    def is_live(self, sequence: int) -> bool:
        """Whether a batch is still there for a reader."""
        return sequence >= self.queue.floor_sequence

    # What the store applied

    def wrote(self, key: str, data: bytes, objects: RecordingBackend) -> None:
        """A write was applied."""
        folder, _, name = key.removeprefix(f"{self.prefix}/").partition("/")
        if folder == "chunks":
            self._wrote_chunk(int(name), data, objects)
        elif folder == "queue.json":
            self._moved_floor(register_value(key, data, QueueFloors))
        elif folder == "end.json":
            self._moved_end(register_value(key, data, QueueEnd))
        elif folder == "consumer.json":
            self._moved_consumer(register_value(key, data, ConsumerRecord))
        elif folder == "producers":
            self._marked(name, register_value(key, data, ProducerShard))

    def deleted(self, key: str) -> None:
        """A delete was applied to something that was there."""
        folder, _, name = key.removeprefix(f"{self.prefix}/").partition("/")
        if folder == "chunks":
            floor = self.queue.chunk_floor
            self.check(int(name) < floor, f"chunk {name} was deleted; the floor is {floor}")
            for_s = self.simulation.now_s - self.passed_s[int(name)]
            settled = for_s > 0.99 * limits.FLOOR_SETTLE_S
            self.check(settled, f"chunk {name} was deleted {for_s} s after the floor passed it")
        elif folder == "batches":
            sequence = self.sequence_of.get(name)
            self.check(
                sequence is None or not self.is_live(sequence),
                f"batch {sequence} was deleted; the floor is {self.queue.floor_sequence} and "
                f"{self.consumer.sequence} is not acknowledged",
            )
        else:
            self.check(False, f"{key} was deleted")

    def _wrote_chunk(self, number: int, data: bytes, objects: RecordingBackend) -> None:
        if number < self.queue.chunk_floor:
            self.zombies += 1
            return
        chunk = decode_chunk(data, queue_id=self._queue_id, number=number)
        if number < len(self.chunks):
            before = self.chunks[number]
            self.check(not before.closed, f"chunk {number} was closed and changed")
        else:
            before = self._base_of(chunk)
            self.chunks.append(before)
        self._check_grown(before, chunk)
        self.chunks[number] = chunk
        self.changed_ms[number] = self._store_ms
        for opening in chunk.recent_openings[: chunk.openings - before.openings]:
            self._opened(opening)
        known = len(before.entries)
        for entry, place in list(zip(chunk.entries, chunk.places(), strict=True))[known:]:
            self._enter(chunk, before, entry, place, objects)

    def _base_of(self, chunk: Chunk) -> Chunk:
        """What a chunk that is created grows from: the one before, which is closed."""
        number = chunk.number
        self.check(number == len(self.chunks), f"chunk {number} follows {len(self.chunks) - 1}")
        if not number:
            return chunk
        self.check(self.chunks[-1].closed, f"chunk {number} was created on an open one")
        return self.chunks[-1].next_chunk()

    def _check_grown(self, before: Chunk, after: Chunk) -> None:
        what = f"chunk {before.number}"
        self.check(after.entries[: len(before.entries)] == before.entries, f"{what} lost entries")
        self.check(after.owners[: len(before.owners)] == before.owners, f"{what} lost owners")
        self.check(after.batch_floor >= before.batch_floor, f"{what}: the floor went down")
        opened = after.openings - before.openings
        self.check(opened >= 0, f"{what}: openings are not counted")
        kept = max(0, min(len(before.recent_openings), len(after.recent_openings) - opened))
        self.check(
            after.recent_openings[opened:] == before.recent_openings[:kept],
            f"{what} lost openings",
        )
        fields = ("number", "first_sequence", "first_lsn", "bytes_before", "newest_before")
        for name in fields:
            self.check(getattr(after, name) == getattr(before, name), f"{what}: {name} changed")

    def _opened(self, opening: ProducerIncarnation) -> None:
        lives = self.lives.get(opening.producer, [])
        # A life before that has lost its place, or was forgotten, and will find out.
        if opening.incarnation in lives:
            del lives[: lives.index(opening.incarnation)]

    def is_latest(self, producer: str, incarnation: str) -> bool:
        """Whether no later life of this producer has its opening in the queue."""
        return incarnation in self.lives.get(producer, [])

    def _enter(
        self,
        chunk: Chunk,
        before: Chunk,
        entry: ChunkEntry,
        place: AppendedBatch,
        objects: RecordingBackend,
    ) -> None:
        producer, incarnation = (
            chunk.owners[entry.owner].producer,
            chunk.owners[entry.owner].incarnation,
        )
        what = f"batch {place.sequence} of {producer}"
        self.check(place.sequence == self.next_sequence, f"{what} follows {self.next_sequence - 1}")
        self.check(self.is_latest(producer, incarnation), f"{what}: an earlier life appended it")
        last = self.last_accepted(producer)
        expected = last.entry.producer_sequence + 1 if last else 1
        self.check(
            entry.producer_sequence == expected,
            f"{what} has producer sequence {entry.producer_sequence}, not {expected}",
        )
        self.check(entry.batch_id not in self.sequence_of, f"{what} is there twice")
        told = entry.batch_id not in self.unappended
        self.check(told, f"{what} landed, and its producer was told that it will not")
        self.check(entry.batch_id not in self.refused_ids, f"{what} was told to be refused")
        if entry.inline is None:
            above = entry.batch_id > before.batch_floor
            self.check(above, f"{what} is not above the floor of the batches")
            there = objects.has(f"{self.prefix}/batches/{entry.batch_id}")
            self.check(there, f"{what} was appended and is not there")
        entered = Entered(entry, producer, chunk.number, place, self._store_ms)
        self.sequence_of[entry.batch_id] = place.sequence
        self.entered.append(entered)
        self.accepted.setdefault(producer, []).append(entered)
        if self._on_entered is not None:
            self._on_entered(entered)

    def _moved_floor(self, queue: QueueFloors) -> None:
        before, self.queue = self.queue, queue
        self.check(queue.batch_floor >= before.batch_floor, "the floor of the batches went down")
        number = queue.chunk_floor
        self.check(number >= before.chunk_floor, "the floor of the chunks went down")
        self.check(number < max(1, len(self.chunks)), "the floor passed the last chunk")
        if number:
            self.check(self.chunks[number - 1].closed, f"the floor passed open chunk {number - 1}")
        floor = queue.floor_sequence
        self.check(floor >= before.floor_sequence, "the floor went down")
        if self.chunks:
            first = self.chunks[number]
            within = first.first_sequence <= floor <= first.next_sequence
            self.check(within, f"floor {floor} is not in chunk {number}, where it should be")
        lsn = self.entered[floor].place.first_lsn if floor < self.next_sequence else self.next_lsn
        self.check(queue.floor_lsn == lsn, f"the floor is LSN {queue.floor_lsn}, not {lsn}")
        held = self.hold_below is None or queue.batch_floor < self.hold_below
        self.check(held, "the floor of the batches passed what somebody holds")
        for passed in range(before.chunk_floor, number):
            self.passed_s[passed] = self.simulation.now_s
        self.check(queue.policy >= before.policy, "the policy went down")
        self._check_held(before.floor_sequence, floor)
        self._check_expired(before.floor_sequence, floor)

    def _check_held(self, first: int, end: int) -> None:
        """What somebody holds back stays, unless it is truncated."""
        held_from = self.held_from() if self.held_from is not None else self.consumer.lsn
        if held_from is None:
            return
        for one in self.entered[max(first, self.truncates_before) : end]:
            end_lsn = one.place.first_lsn + one.entry.rows
            what = f"the floor passed batch {one.place.sequence}, held back from {held_from} on"
            self.check(end_lsn <= held_from, what)

    def _check_expired(self, first: int, end: int) -> None:
        """By the store's clock, within which a producer's is believed, or by size."""
        after_bytes = sum(one.entry.size_bytes for one in self.entered[first:])
        for one in self.entered[first:end]:
            after_bytes -= one.entry.size_bytes
            # Later than the chunk before was changed for the last time, and no earlier than this
            # one was for this entry: what has been written into it since may make it younger.
            since_ms = self.changed_ms.get(one.chunk - 1, 0)
            at_ms = max(since_ms, min(one.entry.max_ms, one.appended_ms))
            what = f"the floor passed batch {one.place.sequence}, which is kept"
            is_truncated = one.place.sequence < self.truncates_before
            self.check(is_truncated or self._may_expire(at_ms, after_bytes), what)

    def _moved_end(self, end: QueueEnd) -> None:
        """Nobody is told of more than there is, or of another beginning."""
        before, self.end = self.end, end
        self.check(end.chunk >= before.chunk, "the record of the end went back")
        if end.chunk:
            self.check(end.chunk < len(self.chunks), f"chunk {end.chunk} was never created")
            real = self.chunks[end.chunk]
            told = (end.first_sequence, end.first_lsn)
            self.check(told == (real.first_sequence, real.first_lsn), "the end is not that chunk's")

    def _moved_consumer(self, consumer: ConsumerRecord) -> None:
        before, self.consumer = self.consumer, consumer
        self.check(consumer.epoch - before.epoch in (0, 1), "an epoch was skipped or went back")
        self.check(consumer.sequence >= before.sequence, "what is acknowledged went back")
        self.check(consumer.sequence <= self.next_sequence, "what is not there is acknowledged")
        if not consumer.sequence:
            return
        through = self.entered[: consumer.sequence]
        last = through[-1]
        sums = (last.place.first_lsn + last.entry.rows, sum(e.entry.size_bytes for e in through))
        self.check((consumer.lsn, consumer.bytes) == sums, "acknowledged LSN or bytes are wrong")
        # That of the next batch, if what was acknowledged last was deleted before.
        named = self.chunks[consumer.chunk]
        is_next = named.first_sequence <= consumer.sequence <= named.next_sequence
        right = consumer.chunk == last.chunk or is_next
        self.check(right, "the last acknowledged batch stands elsewhere")

    def _marked(self, name: str, shard: ProducerShard) -> None:
        gone = [known for known in self.marks if self._shard(known) == name]
        for producer in gone:
            if producer not in shard.producers:
                del self.marks[producer]
                self._forget(producer)
        for producer, record in shard.producers.items():
            lives = self.lives.setdefault(producer, [])
            if lives[-1:] != [record.incarnation]:
                if record.incarnation in lives:  # it was interrupted and opens again
                    lives.remove(record.incarnation)
                lives.append(record.incarnation)
            mark = record.mark
            self.marks[producer] = mark.producer_sequence if mark else 0
            if mark is None:
                continue
            entered = self.accepted.get(producer, [])
            known = {one.entry.producer_sequence: one for one in entered}
            found = known.get(mark.producer_sequence)
            self.check(found is not None, f"{producer}: the mark is of a batch never accepted")
            assert found is not None
            told = (AppendedBatch(mark.sequence, mark.first_lsn), mark.chunk, mark.metadata)
            real = (found.place, found.chunk, found.entry.metadata)
            self.check(told == real, f"{producer}: the mark is not of the batch it names")

    def _forget(self, producer: str) -> None:
        """The mark was dropped: the producer begins anew, and no earlier life may append."""
        self.forgotten[producer] = self.forgotten.get(producer, 0) + 1
        self.accepted.pop(producer, None)
        self.lives.pop(producer, None)

    @staticmethod
    def _shard(producer: str) -> str:
        return f"{shard_name(producer)}.json"

    def leftovers(self, objects: RecordingBackend) -> list[str]:
        """What is there, once everything was collected, and nobody needs."""
        kept = self.entered[self.queue.floor_sequence :]
        needed = {f"{self.prefix}/batches/{one.entry.batch_id}" for one in kept}
        left = [key for key in objects.keys("batches") if key not in needed]
        return left + objects.keys("chunks")[:-2]

    # What readers are told

    def check_descriptor(self, told: Descriptor) -> None:
        """A reader was handed the batch that has this sequence."""
        self.check(told.sequence < self.next_sequence, f"batch {told.sequence} does not exist")
        real = self.entered[told.sequence]
        entry = real.entry
        same = (
            told.batch_id == entry.batch_id
            and told.first_lsn == real.place.first_lsn
            and told.rows == entry.rows
            and told.size_bytes == entry.size_bytes
            and (told.min_ms, told.max_ms) == (entry.min_ms, entry.max_ms)
            and told.min_timestamp_us == entry.min_timestamp_us
            and told.max_timestamp_us == entry.max_timestamp_us
            and told.producer == real.producer
            and told.producer_sequence == entry.producer_sequence
            and told.metadata == entry.metadata
            and told.inline == entry.inline
        )
        self.check(same, f"batch {told.sequence} is {entry.batch_id}, and {told} was delivered")


async def check_nothing_left(
    truth: Witness, objects: RecordingBackend, collector: Collector, retention: Retention
) -> None:
    """What nobody needs does not stay for ever."""
    before: tuple[object, ...] = ()
    for _ in range(PASSES_MAX):
        done = await collector.collect(retention, full=True)
        now = (done.floor_sequence, done.batch_floor, *objects.names)
        if now == before:
            break
        before = now
    left = truth.leftovers(objects)
    require(truth.simulation, not left, f"nobody collects {left}")
