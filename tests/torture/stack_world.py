"""One history's stream: its format, its settings, its truth, and the damage done to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol
from unittest import mock

from headwater.buffer import layout
from headwater.buffer.batch import decode_batch
from headwater.buffer.consumer import ownership
from headwater.buffer.group import GroupPosition
from headwater.buffer.producer import Producer, sender
from headwater.buffer.queue.contract import Collector
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.stream import Stream, create_stream, streams
from headwater.buffer.stream.config import UNLIMITED
from headwater.core import limits
from headwater.testing import Simulation
from tests.torture.buffer_truth import Entered, Truth
from tests.torture.buffer_world import small_native_limits
from tests.torture.recording import RecordingBackend, Witness, register_value
from tests.torture.stack_truth import Log
from tests.torture.stack_v1_truth import V1Truth
from tests.torture.surroundings import Hazards, Surroundings, replaced

STREAM = "s"
STREAM_ID = "5eed5eed-5eed-4eed-8eed-5eed5eed5eed"
REQUIRED = "required"
DAMAGED = 0.15
"""Of the batches, where batches are damaged."""


class QueueTruth(Witness, Protocol):
    """What a history asks of the truth, whatever the format."""

    @property
    def epoch(self) -> int:
        """That of the consumer that opened last."""

    @property
    def acked_sequence(self) -> int:
        """The first sequence that is not acknowledged."""

    @property
    def floor_sequence(self) -> int:
        """The oldest sequence that is kept."""


class Sink:
    """Where an application keeps its results, and with them the last batch that is in them."""

    def __init__(self, world: StackWorld) -> None:
        self._world = world
        self.last = -1

    def take(self, sequence: int) -> None:
        """A batch was processed: the next one, or one that is in the results already."""
        in_order = sequence <= self.last + 1
        self._world.check(in_order, f"batch {sequence} was processed after {self.last}")
        self.last = max(self.last, sequence)

    def go_to(self, last: int) -> None:
        """What is not kept any more is not waited for."""
        self.last = max(self.last, last)


class StackWorld(Surroundings):
    """What all actors of a history of a stream share."""

    def __init__(self, simulation: Simulation, format_name: str, hazards: Hazards) -> None:
        self.format = format_name
        self.log = Log(simulation, is_v1=self.is_v1)
        self.native: Truth | None = None
        if self.is_v1:
            self.truth: QueueTruth = V1Truth(simulation, self.log, layout.v1_prefix(STREAM, 0))
        else:
            prefix = layout.native_prefix(STREAM, 0, STREAM_ID)
            self.truth = self.native = Truth(
                simulation,
                self.may_expire,
                prefix=prefix,
                queue_id=STREAM_ID,
                on_entered=self._entered,
                held_from=self.held_from,
            )
        self.backend = RecordingBackend(self.truth)
        super().__init__(simulation, self.backend, hazards)
        self.sink = Sink(self)
        """The owner's, whichever group that is."""
        self.fronts: list[Producer] = []
        """Every producer there was: one that died with its process is not to be warned of."""
        self.damages = not self.gentle and self.random.random() < 0.2
        if self.damages:
            self.log.on_landed = self._damage_some
        self._damage = simulation.random_source("damage")
        self.is_required = not self.is_v1 and self.random.random() < 0.6
        """Whether the stream waits for a group: one that follows the owner's acknowledgements."""
        self._stream: Stream | None = None

    @property
    def is_v1(self) -> bool:
        """Whether the stream is in the published format."""
        return self.format == "v1"

    def stream(self) -> Stream:
        """The stream, as somebody with a client of its own has it."""
        assert self._stream is not None
        return Stream(self.store(), self._stream.config)

    @property
    def given_up_before(self) -> int:
        """The batch before which nothing is waited for: it was truncated, or let go by its age."""
        if self.native is None:
            return 0
        released = 0 if self.is_required else self.native.floor_sequence
        return max(released, self.native.truncates_before)

    def held_from(self) -> int | None:
        """Where the required group is; None if there is none."""
        if not self.is_required:
            return None
        key = layout.group_key(STREAM, 0, STREAM_ID, REQUIRED)
        if not self.backend.has(key):
            return 1
        return register_value(key, self.backend.data(key), GroupPosition).lsn

    def collector(self) -> Collector:
        """The collector's door."""
        return self.stream().collector(0)

    def floor_lsn(self) -> int:
        """The LSN of the oldest record that is kept."""
        floor = self.truth.floor_sequence
        return self.log.batches[floor - 1].next_lsn if floor else 1

    async def create(self) -> None:
        """Make the stream, before anything goes wrong."""
        draw = self.random.choice
        self.network.calm = True
        with mock.patch.object(streams, "new_stream_id", return_value=STREAM_ID):
            self._stream = await create_stream(
                self.store(),
                STREAM,
                format=self.format,
                compression=draw(("none", "none", "zstd")),
                retention_ms=0 if self.haunted else draw((0, 0, 1000, 3_600_000, UNLIMITED)),
                retention_bytes=draw((UNLIMITED, UNLIMITED, UNLIMITED, 0, 200)),
                gc_grace_ms=draw((0, 0, 1000, 600_000)),
                required_group=REQUIRED if self.is_required else None,
            )
        self.network.calm = False
        self.retentions.append(self._stream.retention())

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Limits so small that a short history reaches them."""
        draw = self.random.choice
        with replaced(
            *small_native_limits(self.random, haunted=self.haunted),
            (NativeAppender, "inline_max_bytes", draw((0, 0, 400, limits.INLINE_MAX_BYTES))),
            (sender, "GROUP_MAX", draw((1, 3, 256))),
            (ownership, "ACKS_PER_DEQUEUE", draw((1, 2, 3, 100))),
            (limits, "V1_SEGMENT_ENTRIES", draw((1, 3, 1024))),
            (limits, "V1_COLLECT_BATCHES", draw((1, 3, 10_000))),
        ):
            yield

    def _entered(self, entered: Entered) -> None:
        """A batch was appended to the native queue."""
        entry, place = entered.entry, entered.place
        data = entry.inline
        if data is None:
            data = self.backend.data(self._location(place.sequence))
        batch = decode_batch(data, expected_id=entry.batch_id)
        self.check(batch.records.num_rows == entry.rows, f"batch {place.sequence} miscounts")
        values = batch.records.column("_value").to_pylist()
        self.log.land(place.sequence, place.first_lsn, values)

    def _location(self, sequence: int) -> str:
        """Where a batch stands; empty if it rides in its entry."""
        if isinstance(self.truth, V1Truth):
            return self.truth.location(sequence)
        assert self.native is not None
        entry = self.native.entered[sequence].entry
        return "" if entry.inline is not None else f"{self.truth.prefix}/batches/{entry.batch_id}"

    def _damage_some(self, sequence: int) -> None:
        """Let the object of a batch rot, or go, the moment that it was appended."""
        location = self._location(sequence)
        if not location or self._damage.random() >= DAMAGED:
            return
        self.log.damaged.add(sequence)
        data = self.backend.data(location)
        if self.is_v1:
            # The end stays, which tells the rows: without it a batch has no LSNs either.
            self.backend.damage(location, b"\xff" * 4 + data[4:])
        elif self._damage.random() < 0.5:
            self.backend.damage(location, None)
        else:
            at = self._damage.randrange(len(data))
            self.backend.damage(location, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
