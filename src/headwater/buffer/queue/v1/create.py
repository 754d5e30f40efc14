"""Making a published v1 queue, and taking one over that another implementation consumed."""

from __future__ import annotations

import msgspec

from headwater.buffer.queue.v1.manifest_object import ManifestObject
from headwater.buffer.queue.v1.names import Names
from headwater.buffer.queue.v1.side import Side, SideObject
from headwater.buffer.queue.v1.view import check_front, check_not_back
from headwater.store import Store


async def create_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> None:
    """Make the queue in the folder `prefix`, if it is not there; repeating it changes nothing.

    A manifest that other producers made is taken as it is, if nothing was dequeued from it. The
    manifest comes first: where a side object stands, a missing manifest is one that was deleted.
    """
    names = Names(prefix)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    there = await side.look()
    if there is None:
        if await manifest.look() is None:
            await manifest.create()
        found = await manifest.read()
        there = await side.look()  # after the manifest: see `read_view`
        check_front(names.manifest, found, there)
        there = await side.create(Side(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)


async def adopt_v1_queue(store: Store, prefix: str, queue_id: str, *, lenient: bool = False) -> int:
    """Go on with a queue that another implementation's consumer dequeued from.

    The queue begins at its first pending batch, whose sequence is returned; LSNs go on from the
    last that Headwater gave, from 1 if it gave none. What was retained from before is not looked
    at again: its objects stay, and are deleted by hand. Fences a consumer of ours.
    """
    names = Names(prefix)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    if await manifest.look() is None:
        await manifest.create()
    found = await manifest.read()
    there = await side.create(Side(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)

    def adopted(now: Side) -> Side:
        if found.front <= now.sequence:
            return now
        return msgspec.structs.replace(
            now,
            claim="",
            sequence=found.front,
            recent=b"",
            given_up=[],
            given_up_rows=[],
            floor_sequence=found.front,
            floor_lsn=now.lsn,
            floor_bytes=now.acked_bytes,
            swept_sequence=found.front,
        )

    return (await side.update(adopted)).sequence
