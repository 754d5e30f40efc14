"""Deleting what is below the name of a stream whose register cannot be read.

Without `stream.json` nobody can tell which objects were whose, so all of them go: of every stream
that ever had the name. A tombstone takes the place of the damaged register at the end; until then
it stays as it is, and deleting can be repeated.
"""

from __future__ import annotations

from headwater.buffer import layout
from headwater.buffer.stream.config import StreamConfig, new_stream_id
from headwater.buffer.stream.delete import PARALLEL, DeletedReport, delete_objects
from headwater.buffer.stream.register import StreamRegister
from headwater.core import runtime
from headwater.core.errors import Corrupt, Refused
from headwater.store import ObjectMeta, Store


async def delete_damaged_stream(store: Store, name: str) -> DeletedReport:
    """Delete everything below `streams/<name>/`; `Refused` unless its register is damaged."""
    register = StreamRegister(store, name)
    try:
        await register.read(writing=True)
    except Corrupt:
        pass
    else:
        raise Refused(f"the stream.json of {name!r} can be read: delete the stream as any other")
    now_ms = runtime.wall_ms()
    tombstone = StreamConfig(
        id=new_stream_id(),
        name=name,
        created_ms=now_ms,
        deleted_ms=now_ms,
        state="deleted",
        cleaned=True,
    )
    report = DeletedReport(name, tombstone.id)
    group: list[ObjectMeta] = []
    async for meta in store.list(f"{layout.STREAMS}/{name}"):
        if meta.key == layout.stream_key(name):
            continue
        group.append(meta)
        if len(group) == PARALLEL:
            await delete_objects(store, group, report)
            group = []
    await delete_objects(store, group, report)
    if not report.failed:
        await register.replace_damaged(tombstone)
    return report
