"""Taking over a queue from which another implementation's consumer dequeued.

What that one took has sequences, and nobody can say any more how many records. Producers and
readers of ours may have been told LSNs of them and of what is pending, so LSNs go on above all that
can have been told: no LSN ever means two records. So that what our own consumers acknowledged
before stays readable across it, segments say of each of these entries that it was taken: no
records, at a location that no object can have.

    side object: claim it             nobody of ours moves the acknowledged sequence any more
    manifest: the next epoch          the other consumer is fenced, and takes nothing more
    segments of what was taken
    side object: sequence and LSN

What was taken is what the write of the epoch saw. A crash in between leaves segments that say what
is true, and adopting again writes them again, under a higher epoch. Producers that count LSNs by
themselves see the epoch and look at the side object.
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
"""The location of what was taken: its empty segments make it no key of any store."""


_LSN_LAST: Final = (1 << 62) - 1


class Adopted(NamedTuple):
    """What became of one queue."""

    sequence: int
    """Of the first pending batch: the queue goes on with it."""
    lsn: int
    """Of its first record."""
    left_out: int = 0
    """Batches that another consumer took, and that have no records here."""
    readable: int = 0
    """Batches that our own consumers acknowledged before, and that are still retained."""
    given_up: int = 0
    """Such batches that cannot be read any more; the next garbage collection deletes them."""


async def adopt_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> Adopted:
    """Go on with a queue that another implementation's consumer dequeued from, and fence that one.

    It begins at its first pending batch; LSNs go on above every one that can have been told, from 1
    if Headwater never had the queue. What was retained from before stays, unless more than
    V1_TAKEN_MAX batches were taken since. Fences a consumer of ours.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    before = await side.look()
    if await manifest.look() is None:
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
            f"{names.manifest}: adopted by half: adopt it again. {error}"
        ) from error


async def _unchanged(found: StoredManifest) -> Manifest:
    return found.manifest


async def _adopt_new(side: SideObject, queue_id: str, found: StoredManifest) -> Adopted:
    """Of a queue that Headwater never had: nobody was told an LSN."""
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
    # No batch that was ever counted had more records.
    lsn = before.lsn + (found.next_sequence - before.sequence) * limits.V1_BATCH_ROWS_MAX
    if lsn > _LSN_LAST:
        raise LimitExceeded(
            f"LSNs would go on at {lsn:,}, above {_LSN_LAST:,}: make another stream"
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
        f"queue {queue_id}: somebody else opened or adopted it meanwhile: look at it, and adopt it "
        "again if need be"
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
        # What is below the floor and not swept, the collector deletes.
        swept_sequence=front if now.swept_sequence == now.sequence else now.swept_sequence,
    )


# Making a published v1 queue.


async def create_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> None:
    """Make the queue in the folder `prefix`, if it is not there; repeating it changes nothing.

    A manifest that other producers made is taken as it is, if nothing was dequeued from it. The
    manifest comes first: where a side object stands, a missing manifest is one that was deleted.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    there = await side.look()
    if there is None:
        if await manifest.look() is None:
            await manifest.create()
        found = await manifest.read()
        there = await side.look()  # after the manifest: see `read_view`
        check_front(names.manifest, found, there)
        there = await side.create(SideState(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)
