"""Creating a v1 queue, and adopting one from which another implementation's consumer dequeued.

The entries that the other consumer took have sequences, but the number of their records is unknown.
Headwater's producers and readers may have returned LSNs for them and for what is pending, so LSNs
continue above every LSN that can have been returned: no LSN ever means two records. Segments record
the taken entries, without records and at a location that no object can have, so that what
Headwater's consumers acknowledged before stays readable.

    side object: claim it             no consumer of Headwater moves the acknowledged sequence
    manifest: the next epoch          the other consumer is fenced, and takes nothing more
    segments of what was taken
    side object: sequence and LSN

The write of the epoch determines what was taken. After a crash the segments are true, and adopting
again writes them again under a higher epoch. Producers that count LSNs notice the new epoch and
read the side object.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.manifest_format import Manifest
from headwater.buffer.queue.v1.manifest_object import ManifestObject, StoredManifest, raise_epoch
from headwater.buffer.queue.v1.side_object import (
    SideObject,
    SideState,
    V1Names,
    check_front,
    check_not_back,
    remember_locations,
)
from headwater.core import limits, runtime
from headwater.core.errors import Contended, LimitExceeded, OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import Store

TAKEN: Final = "//taken by another consumer"
"""The location of taken entries: the empty path segment makes it an invalid key in every store."""

_LSN_LAST: Final = (1 << 62) - 1


class Adopted(NamedTuple):
    """The result of adopting one queue."""

    sequence: int
    """The sequence of the first pending batch, with which the queue continues."""
    lsn: int
    """The LSN of its first record."""
    left_out: int = 0
    """Batches that another consumer took."""
    readable: int = 0
    """Batches that Headwater's consumers acknowledged before, and that are retained."""
    given_up: int = 0
    """Such batches that cannot be read any more; the next garbage collection deletes them."""


async def adopt_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> Adopted:
    """Take over a queue that another implementation's consumer dequeued from, and fence it.

    The queue continues at its first pending batch, with LSNs above every one that can have been
    returned (from 1 if Headwater never had the queue). What was retained stays, unless more than
    V1_TAKEN_MAX batches were taken since. Also fences a consumer of Headwater.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    before = await side.find()
    if await manifest.find() is None:
        await manifest.create()
    found = await manifest.read()
    if before is not None:
        check_not_back(names.manifest, found, before)
    if found.front <= (0 if before is None else before.sequence):
        there = await side.create(SideState(queue_id))
        return Adopted(there.sequence, there.lsn)
    claim = runtime.new_token().hex()
    if before is not None:
        front = found.front
        before = await side.update(
            lambda now: now if front <= now.sequence else msgspec.structs.replace(now, claim=claim)
        )
        if front <= before.sequence:
            return Adopted(before.sequence, before.lsn)
    try:
        found = await raise_epoch(manifest, RetryPolicy(), _unchanged)
        if before is None:
            return await _adopt_new(side, queue_id, found)
        return await _adopt_known(AckedSegments(store, names), side, before, found)
    except Unavailable as error:
        raise OutcomeUnknown(
            f"{names.manifest}: adopted only in part: adopt it again. {error}"
        ) from error


async def _unchanged(found: StoredManifest) -> Manifest:
    return found.manifest


async def _adopt_new(side: SideObject, queue_id: str, found: StoredManifest) -> Adopted:
    """Adopt a queue that Headwater never had: no LSN was ever returned."""
    front = found.front
    there = await side.create(
        SideState(
            queue_id,
            epoch=found.epoch,
            sequence=front,
            floor_sequence=front,
            swept_sequence=front,
        )
    )
    if there.sequence < front:
        raise _contended(queue_id)
    return Adopted(there.sequence, there.lsn, front)


async def _adopt_known(
    acked: AckedSegments, side: SideObject, before: SideState, found: StoredManifest
) -> Adopted:
    """`before` is the side object that was claimed, `found` the manifest with the epoch raised."""
    taken = range(before.sequence, found.front)
    retained = before.sequence - before.floor_sequence
    keeps = retained > 0 and len(taken) <= limits.V1_TAKEN_MAX
    # No counted batch can have more records.
    lsn = before.lsn + (found.next_sequence - before.sequence) * limits.V1_BATCH_ROWS_MAX
    if lsn > _LSN_LAST:
        raise LimitExceeded(
            f"LSNs would continue at {lsn:,}, above {_LSN_LAST:,}: create another stream"
        )
    if keeps:
        await acked.write_taken(taken, found.epoch, before, lsn, TAKEN)

    def adopted(now: SideState) -> SideState:
        if now.claim != before.claim:
            raise _contended(now.queue_id)
        past = _past(now, found.front, lsn, keeps=keeps)
        return msgspec.structs.replace(past, epoch=found.epoch)

    await side.update(adopted)
    readable, given_up = (retained, 0) if keeps else (0, retained)
    return Adopted(found.front, lsn, len(taken), readable, given_up)


def _contended(queue_id: str) -> Contended:
    return Contended(
        f"queue {queue_id}: it was opened or adopted by another process meanwhile: check it, and "
        "adopt it again if needed"
    )


def _past(now: SideState, front: int, lsn: int, *, keeps: bool) -> SideState:
    """The side object with everything before `front` acknowledged, and LSNs from `lsn` on."""
    past = msgspec.structs.replace(
        now,
        claim="",
        sequence=front,
        lsn=lsn,
        passed_over=[*(one for one in now.passed_over if one[1] > now.floor_lsn), (now.lsn, lsn)],
        given_up=[sequence for sequence in now.given_up if sequence >= front],
        given_up_rows=[
            (sequence, rows) for sequence, rows in now.given_up_rows if sequence >= front
        ],
    )
    if keeps:
        again = min(front - now.sequence, limits.V1_REMEMBERED)
        return msgspec.structs.replace(past, recent=remember_locations(now.recent, [TAKEN] * again))
    return msgspec.structs.replace(
        past,
        recent=b"",
        passed_over=[],
        floor_sequence=front,
        floor_lsn=lsn,
        floor_bytes=now.acked_bytes,
        # The collector deletes what is below the floor and not swept.
        swept_sequence=front if now.swept_sequence == now.sequence else now.swept_sequence,
    )


async def create_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> None:
    """Create the queue in the folder `prefix`, unless it exists.

    A manifest of other producers is used as it is if nothing was dequeued from it. The manifest is
    created first: if there is a side object, a missing manifest was deleted.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    there = await side.find()
    if there is None:
        if await manifest.find() is None:
            await manifest.create()
        found = await manifest.read()
        there = await side.find()  # after the manifest: see `read_view`
        check_front(names.manifest, found, there)
        there = await side.create(SideState(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)
