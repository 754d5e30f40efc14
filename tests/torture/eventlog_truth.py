"""What really happened to a stored log of events, whatever anybody was told.

The first content that was ever created at an offset is its event; whatever is created there after
it was deleted is a ghost that must count for nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from headwater.core.errors import Corrupt
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Simulation
from headwater.tier import TierCache, decode_event
from headwater.tier.eventlog.stored_events import HEAD_BYTES, PartitionFloor
from headwater.tier.snapshot import PartitionDump, decode_snapshot, dump_all

_EVENT = re.compile(r"metadata/(\d+)/(\d{20})")
_FLOOR = re.compile(r"metadata/(\d+)/floor\.json")
_SNAPSHOT = re.compile(r"metadata/(\d+)/snapshot-.*")

Check = Callable[[bool, str], None]


class TrueEvents(MemoryBackend):
    """A store that knows which events there are, and ends the history when one is lost."""

    def __init__(self, check: Check, simulation: Simulation, grace_s: float) -> None:
        super().__init__(versions_by_content=True)
        self._check = check
        self._simulation = simulation
        self._grace_s = grace_s
        self._floor_since_s: dict[int, list[tuple[int, float]]] = {}
        """By partition: floors, and when each became one."""
        self.payloads: dict[int, list[bytes]] = {}
        """By partition, the events in the order of their offsets."""
        self.floors: dict[int, PartitionFloor] = {}
        self.ghosts = 0
        self.deleted_events = 0
        self._replayed: dict[int, list[tuple[PartitionDump, ...]]] = {}

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        if found := _EVENT.fullmatch(key):
            self._created(int(found[1]), int(found[2]), bytes(data))
        elif found := _FLOOR.fullmatch(key):
            self._moved(int(found[1]), bytes(data))
        return version

    async def delete(self, key: str) -> None:
        if found := _EVENT.fullmatch(key):
            partition, offset = int(found[1]), int(found[2])
            self._check(
                offset < self.floors[partition].trimmed, f"{key} is deleted and is not given up"
            )
            self._check_snapshot(partition)
            self.deleted_events += 1
        elif found := _SNAPSHOT.fullmatch(key):
            named = _snapshot_key(int(found[1]), self.floors[int(found[1])])
            self._check(named != key, f"{key} is deleted and is the floor's")
        await super().delete(key)

    def replayed(self, partition: int, through_offset: int) -> tuple[PartitionDump, ...]:
        """What the events through an offset come to, read one by one."""
        known = self._replayed.setdefault(partition, [()])
        payloads = self.payloads.get(partition, [])
        while len(known) <= through_offset + 1:
            # From the beginning, so that no restored cache takes part in its own check.
            cache = TierCache()
            for payload in payloads[: len(known)]:
                follow(cache, payload)
            known.append(dump_all(cache))
        return known[through_offset + 1]

    def _created(self, partition: int, offset: int, data: bytes) -> None:
        payloads = self.payloads.setdefault(partition, [])
        self._check(offset <= len(payloads), f"event {offset} leaves a hole at {len(payloads)}")
        if offset == len(payloads):
            payloads.append(data[HEAD_BYTES:])
        else:
            self.ghosts += 1

    def _moved(self, partition: int, data: bytes) -> None:
        floor = msgspec.json.decode(decode_envelope("floor", data).value, type=PartitionFloor)
        before = self.floors.get(partition)
        self.floors[partition] = floor
        if before is not None:
            self._check(floor.floor >= before.floor, f"the floor went down from {before.floor}")
            self._check(floor.trimmed >= before.trimmed, f"trimmed fell from {before.trimmed}")
        self._check(floor.trimmed <= floor.floor, f"{floor.trimmed} is above {floor.floor}")
        since = self._floor_since_s.setdefault(partition, [])
        since.append((floor.floor, self._simulation.now_s))
        if before is not None and floor.trimmed > before.trimmed:
            passed_s = next(at_s for passed, at_s in since if passed >= floor.trimmed)
            for_s = self._simulation.now_s - passed_s
            self._check(
                for_s > 0.99 * self._grace_s,
                f"{floor.trimmed} was given up {for_s} s after the floor passed it",
            )
        self._check_snapshot(partition)

    def _check_snapshot(self, partition: int) -> None:
        """What is below the floor is in the snapshot that the floor names, and that is whole."""
        floor = self.floors[partition]
        if floor.floor == 0:
            return
        found = self._objects.get(_snapshot_key(partition, floor))
        self._check(found is not None, f"the floor is {floor.floor} without a snapshot")
        assert found is not None
        try:
            snapshot = decode_snapshot(found.data)
        except Corrupt as error:
            self._check(False, f"the floor's snapshot: {error}")
            return
        self._check(snapshot.through_offset == floor.floor - 1, "a snapshot of another floor")
        same = snapshot.dumps == self.replayed(partition, snapshot.through_offset)
        self._check(same, f"the snapshot at {floor.floor} is not what the events come to")


def _snapshot_key(partition: int, floor: PartitionFloor) -> str:
    token = "" if floor.snapshot is None else floor.snapshot.token
    return f"metadata/{partition}/snapshot-{floor.floor - 1:020d}-{token}"


def follow(cache: TierCache, payload: bytes, publisher_epoch: int | None = None) -> None:
    """Apply an event; one that does not follow changes nothing."""
    cache.follow(decode_event(payload), publisher_epoch)
