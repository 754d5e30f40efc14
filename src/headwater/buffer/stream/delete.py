"""Deleting a stream: its register becomes a tombstone, then its objects are deleted.

The tombstone has the stream's id, so that an interrupted delete can be resumed. Objects of native
streams are below that id, which no later stream has. The v1 layout has no ids: its objects are
deleted only while the register has the tombstone of this stream, which is checked before each group
of deletes. A delete that the store executes late could still hit a later v1 stream of the same
name, so a new stream should get another name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from headwater.buffer import layout
from headwater.buffer.stream.config import StreamConfig, StreamRegister, new_stream_id
from headwater.buffer.stream.handle import borrow_store
from headwater.core import runtime
from headwater.core.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, Refused, Unavailable
from headwater.store import ObjectMeta, Store

PARALLEL: Final = 32
_STREAM_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

BeforeObjects = Callable[[StreamConfig], Awaitable[None]]


class DeletedReport(msgspec.Struct):
    """The result of deleting a stream."""

    name: str
    id: str
    resumed: bool = False
    """The stream had been deleted before; its remaining objects were looked for."""
    objects: int = 0
    bytes: int = 0
    failed: int = 0
    """Objects that may be left: delete the stream again."""
    cause: str = ""
    """Why the last of them failed."""


async def delete_stream(
    source: str | Store,
    name: str,
    *,
    stream_id: str | None = None,
    before_objects: BeforeObjects | None = None,
) -> DeletedReport:
    """Delete a stream and its objects, or the leftovers of a deleted one.

    `stream_id` is the id of the stream to delete (`check_deletable`); without it, the stream that
    has the name now is deleted.

    `before_objects` is called between the tombstone and the deletion of objects: the tier uses it
    to record the deletion. If it raises, the objects stay.

    `NotFound` if there never was such a stream. `Conflict` if another stream took its name
    meanwhile, which is left as it is.
    """
    deleted_ms = runtime.wall_ms()
    async with borrow_store(source) as store:
        register = StreamRegister(store, name)
        before = await register.read(writing=True)
        _check_same(before, name, before.id if stream_id is None else stream_id)

        def delete(now: StreamConfig | None) -> StreamConfig:
            now = _check_same(now, name, before.id)
            if not now.is_live:
                return now
            return msgspec.structs.replace(
                now, state="deleted", deleted_ms=deleted_ms, cleaned=False
            )

        def mark_cleaned(now: StreamConfig | None) -> StreamConfig:
            if now is not None and now.id != before.id:
                return now  # that of a later stream
            return msgspec.structs.replace(_check_same(now, name, before.id), cleaned=True)

        config = await register.update(delete)
        report = DeletedReport(name, config.id, resumed=not before.is_live)
        if before_objects is not None:
            await before_objects(config)
        async for group in _groups(_objects_of(store, config)):
            if config.format == "v1":
                _check_same(await register.read(writing=True), name, config.id)
            await _delete_objects(store, group, report)
        if not report.failed:
            await register.update(mark_cleaned)
        return report


async def check_deletable(source: str | Store, name: str) -> str:
    """The id of the stream that would be deleted; raises what deleting would raise.

    Pass the id to `delete_stream`: another stream may have the name by the time a user confirms.
    """
    async with borrow_store(source) as store:
        return (await StreamRegister(store, name).read(writing=True)).id


def _check_same(now: StreamConfig | None, name: str, stream_id: str) -> StreamConfig:
    if now is None:
        raise NotFound(f"there is no stream {name!r}")
    if now.id != stream_id:
        raise Conflict(
            f"stream {name!r} was deleted and created again meanwhile: the one that was "
            f"meant had the id {stream_id}, and nothing of the other was touched",
            current=now,
        )
    return now


async def _objects_of(store: Store, config: StreamConfig) -> AsyncIterator[ObjectMeta]:
    """The objects of this stream: those below a folder with its id.

    A v1 queue has no such folder: all of it counts, except folders with the ids of other streams
    of the same name.
    """
    folder = layout.stream_prefix(config.name)
    v1_queues = [layout.v1_prefix(config.name, number) for number in range(config.partitions)]
    queues = tuple(f"{queue}/" for queue in v1_queues if config.format == "v1")
    async for meta in store.list(folder):
        folders = meta.key.split("/")[:-1]
        foreign = any(map(_STREAM_ID.fullmatch, folders))
        if config.id in folders or (meta.key.startswith(queues) and not foreign):
            yield meta


async def _groups(objects: AsyncIterator[ObjectMeta]) -> AsyncIterator[list[ObjectMeta]]:
    group: list[ObjectMeta] = []
    async for meta in objects:
        group.append(meta)
        if len(group) == PARALLEL:
            yield group
            group = []
    if group:
        yield group


async def _delete_objects(store: Store, group: list[ObjectMeta], report: DeletedReport) -> None:
    """Delete these objects concurrently, and count the results."""
    results = await asyncio.gather(
        *(store.delete(meta.key) for meta in group), return_exceptions=True
    )
    for meta, result in zip(group, results, strict=True):
        if result is None:
            report.objects += 1
            report.bytes += meta.size_bytes
        elif isinstance(result, Unavailable | OutcomeUnknown):
            report.failed += 1
            report.cause = str(result)
        else:
            raise result


async def delete_damaged_stream(store: Store, name: str) -> DeletedReport:
    """Delete everything below `streams/<name>/`; `Refused` unless its register is damaged.

    Without `stream.json` it is unknown which objects belong to which stream of this name, so the
    objects of all of them are deleted. At the end a tombstone replaces the damaged register; until
    then the register stays, and the call can be repeated.
    """
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
    async for group in _groups(store.list(layout.stream_prefix(name))):
        others = [meta for meta in group if meta.key != layout.stream_key(name)]
        await _delete_objects(store, others, report)
    if not report.failed:
        await register.replace_damaged(tombstone)
    return report
