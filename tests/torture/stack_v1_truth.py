"""What really happened to a published v1 queue: every write and delete that was applied.

Promised there, and checked at the instant of the change:

- sequences are dense, a location comes once, and its batch is there when its entry is;
- what leaves the manifest was acknowledged beside it first, under the LSN that comes next;
- epochs, floors and what is acknowledged only go forward;
- nothing is deleted but batches below the floor, which the manifest has no more, and segments.
"""

from __future__ import annotations

from headwater.buffer.queue.v1.batch_format import decode_batch
from headwater.buffer.queue.v1.manifest_format import Manifest, decode_manifest
from headwater.buffer.queue.v1.manifest_object import V1Names
from headwater.buffer.queue.v1.side_object import SideState
from headwater.testing import Simulation
from tests.torture.recording import RecordingBackend, register_value
from tests.torture.stack_truth import Log


class V1Truth:
    """The queue as it is, whatever anybody was told."""

    def __init__(self, simulation: Simulation, log: Log, prefix: str) -> None:
        self.simulation = simulation
        self.prefix = prefix
        self.epoch = 0
        self._log = log
        self._names = V1Names(prefix, "of any queue")
        self._front = 0
        self._side = SideState("")
        self._sequence_of: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._came_again: set[str] = set()

    @property
    def acked_sequence(self) -> int:
        """The first sequence that is not acknowledged."""
        return self._side.sequence

    @property
    def floor_sequence(self) -> int:
        """The oldest sequence that is kept."""
        return self._side.floor_sequence

    def location(self, sequence: int) -> str:
        """Where a batch stands."""
        return next(at for at, known in self._sequence_of.items() if known == sequence)

    def wrote(self, key: str, data: bytes, objects: RecordingBackend) -> None:
        """A write was applied."""
        if key == self._names.manifest:
            self._wrote_manifest(decode_manifest(data), objects)
        elif key == self._names.side:
            self._moved(register_value(key, data, SideState))
        elif key in self._deleted:
            self._came_again.add(key)

    def deleted(self, key: str) -> None:
        """A delete was applied to something that was there."""
        if key.startswith(f"{self.prefix}/headwater/acked/"):
            return
        sequence, floor = self._sequence_of.get(key), self._side.floor_sequence
        below = sequence is not None and sequence < min(floor, self._front)
        self._log.check(below, f"batch {sequence} at {key} was deleted; the floor is {floor}")
        self._deleted.add(key)

    def leftovers(self, objects: RecordingBackend) -> list[str]:
        """What is there, once everything was collected, and nobody needs.

        A batch that was uploaded and never appended stays: nothing could refuse its append. So
        does one whose upload came a second time, after it was deleted.
        """
        left = [at for at in objects.names if self._sequence_of.get(at, self._front) < self._front]
        left = [at for at in left if at not in self._came_again]
        return left + objects.keys("headwater/acked")

    def _wrote_manifest(self, manifest: Manifest, objects: RecordingBackend) -> None:
        check, known = self._log.check, len(self._log.batches)
        check(manifest.epoch >= self.epoch, "the epoch went back")
        check(manifest.next_sequence >= known, "the next sequence went back")
        self.epoch = manifest.epoch
        entries = manifest.entries
        front = entries[0].sequence if len(entries) else manifest.next_sequence
        check(front >= self._front, "what was dequeued came back")
        check(front <= self._side.sequence, f"{front} is dequeued and not acknowledged")
        self._front = front
        for number in range(max(0, known - front), len(entries)):
            entry = entries[number]
            check(entry.location not in self._sequence_of, f"{entry.location} is there twice")
            check(objects.has(entry.location), f"{entry.location} was appended and is not there")
            self._sequence_of[entry.location] = entry.sequence
            values = decode_batch(objects.data(entry.location)).to_pylist()
            self._log.land(entry.sequence, self._log.next_lsn, values)
        check(len(self._log.batches) == manifest.next_sequence, "sequences have a gap")

    def _moved(self, side: SideState) -> None:
        check, before, batches = self._log.check, self._side, self._log.batches
        self._side = side
        check(side.floor_sequence >= before.floor_sequence, "the floor went down")
        check(before.sequence <= side.sequence <= len(batches), "acknowledged is what is not there")
        check(side.floor_sequence <= side.sequence, "the floor passed what is pending")
        if side.sequence:
            lsn = batches[side.sequence - 1].next_lsn
            check(side.lsn == lsn, f"LSN {side.lsn} is acknowledged, and {lsn} is next")
