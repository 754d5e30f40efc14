"""Making a published v1 queue."""

from __future__ import annotations

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
    names = Names(prefix, queue_id)
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
