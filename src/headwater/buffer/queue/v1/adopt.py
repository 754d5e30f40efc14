"""Taking over a queue from which another implementation's consumer dequeued.

What that one took has sequences and no LSNs. So that what our own consumers acknowledged before
stays readable across it, segments say of each of these entries that it was taken: no records, at a
location that no object can have.

    side object: claim it     segments of what was taken     side object: the sequence after it

The claim comes first. With it nobody moves the acknowledged sequence any more, and no entry is
called taken that a consumer of ours acknowledges meanwhile. A crash in between leaves segments that
say what is true, and adopting again writes them again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.v1.acked import Acked
from headwater.buffer.queue.v1.manifest_object import ManifestObject
from headwater.buffer.queue.v1.names import Names
from headwater.buffer.queue.v1.side import Side, SideObject, remember
from headwater.buffer.queue.v1.view import check_not_back
from headwater.core import limits, runtime
from headwater.core.errors import Contended
from headwater.store import Store

TAKEN: Final = "//taken by another consumer"
"""The location of what was taken: its empty segments make it no key of any store."""


class Adopted(NamedTuple):
    """What became of one queue."""

    sequence: int
    """Of the first pending batch: the queue goes on with it."""
    left_out: int = 0
    """Batches that another consumer took, and that have no records here."""
    readable: int = 0
    """Batches that our own consumers acknowledged before, and that are still retained."""
    given_up: int = 0
    """Such batches that cannot be read any more; the next garbage collection deletes them."""


async def adopt_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> Adopted:
    """Go on with a queue that another implementation's consumer dequeued from.

    It begins at its first pending batch; LSNs go on from the last that Headwater gave, from 1 if it
    gave none. What was retained from before stays, unless more than V1_TAKEN_MAX batches were taken
    since. Fences a consumer of ours.
    """
    names = Names(prefix)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    if await manifest.look() is None:
        await manifest.create()
    found = await manifest.read()
    there = await side.create(Side(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)
    claim = runtime.new_token().hex()
    front = found.front
    claimed = await side.update(
        lambda now: now if front <= now.sequence else msgspec.structs.replace(now, claim=claim)
    )
    if front <= claimed.sequence:
        return Adopted(claimed.sequence)
    taken = range(claimed.sequence, front)
    retained = claimed.sequence - claimed.floor_sequence
    keeps = retained > 0 and len(taken) <= limits.V1_TAKEN_MAX
    if keeps:
        await Acked(store, names).write_taken(taken, found.epoch, claimed, TAKEN)

    def adopted(now: Side) -> Side:
        if now.claim != claim:
            raise Contended(
                f"{names.manifest}: somebody else opened or adopted the queue meanwhile: look at "
                "it, and adopt it again if need be"
            )
        return _past(now, front, keeps=keeps)

    await side.update(adopted)
    readable, given_up = (retained, 0) if keeps else (0, retained)
    return Adopted(front, len(taken), readable, given_up)


def _past(now: Side, front: int, *, keeps: bool) -> Side:
    """The side object with everything before `front` acknowledged."""
    past = msgspec.structs.replace(
        now,
        claim="",
        sequence=front,
        given_up=[sequence for sequence in now.given_up if sequence >= front],
        given_up_rows=[
            (sequence, rows) for sequence, rows in now.given_up_rows if sequence >= front
        ],
    )
    if keeps:
        again = min(front - now.sequence, limits.V1_REMEMBERED)
        return msgspec.structs.replace(past, recent=remember(now.recent, [TAKEN] * again))
    return msgspec.structs.replace(
        past,
        recent=b"",
        floor_sequence=front,
        floor_lsn=now.lsn,
        floor_bytes=now.acked_bytes,
        # What is below the floor and not swept, the collector deletes.
        swept_sequence=front if now.swept_sequence == now.sequence else now.swept_sequence,
    )
