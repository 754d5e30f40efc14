"""Deleting a stream: first its register says so, then its objects are deleted.

The register stays as a tombstone with the stream's id, so that an interrupted delete can be
resumed. Objects of native streams are below that id, which no later stream has. The v1 layout has
no ids: its objects are deleted only while the register still says that this stream is deleted,
which is checked before each group of deletes. A delete that the store executes late could still hit
a later v1 stream of the same name, so a new stream should get another name.
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
from headwater.buffer.stream.settings import tombstone
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

    `before_objects` is called once the register says that the stream is deleted, before any object
    is: the tier uses it to record the deletion. If it raises, the objects stay.

    `NotFound` if there never was such a stream. `Conflict` if another stream took its name
    meanwhile, which is left as it is.
    """
    async with borrow_store(source) as store:
        return await _delete(store, name, stream_id, before_objects)


async def check_deletable(source: str | Store, name: str) -> str:
    """The id of the stream that would be deleted; raises what deleting would raise.

    Pass the id to `delete_stream`: another stream may have the name by the time a user confirms.
    """
    async with borrow_store(source) as store:
        return (await StreamRegister(store, name).read(writing=True)).id


async def _delete(
    store: Store, name: str, stream_id: str | None, before_objects: BeforeObjects | None
) -> DeletedReport:
    register = StreamRegister(store, name)
    before = await register.read(writing=True)
    _check_id(before, before.id if stream_id is None else stream_id)
    deleted_ms = runtime.wall_ms()

    def delete(now: StreamConfig | None) -> StreamConfig:
        return tombstone(_same(before, now), deleted_ms=deleted_ms)

    config = await register.update(delete)
    report = DeletedReport(name, config.id, resumed=not before.is_live)
    if before_objects is not None:
        await before_objects(config)
    await _clear(store, register, config, report)
    if not report.failed:
        await register.update(lambda now: _cleaned(config, now))
    return report


async def _clear(
    store: Store, register: StreamRegister, config: StreamConfig, report: DeletedReport
) -> None:
    """Delete the stream's objects, in groups."""
    group: list[ObjectMeta] = []
    async for meta in _objects_of(store, config):
        group.append(meta)
        if len(group) == PARALLEL:
            await _delete_group(store, register, config, group, report)
            group = []
    if group:
        await _delete_group(store, register, config, group, report)


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


async def _delete_group(
    store: Store,
    register: StreamRegister,
    config: StreamConfig,
    group: list[ObjectMeta],
    report: DeletedReport,
) -> None:
    if config.format == "v1":
        _same(config, await register.read(writing=True))
    await delete_objects(store, group, report)


async def delete_objects(store: Store, group: list[ObjectMeta], report: DeletedReport) -> None:
    """Delete these objects concurrently, and count the outcomes."""
    outcomes = await asyncio.gather(
        *(store.delete(meta.key) for meta in group), return_exceptions=True
    )
    for meta, outcome in zip(group, outcomes, strict=True):
        if outcome is None:
            report.objects += 1
            report.bytes += meta.size_bytes
        elif isinstance(outcome, Unavailable | OutcomeUnknown):
            report.failed += 1
            report.cause = str(outcome)
        else:
            raise outcome


def _same(before: StreamConfig, now: StreamConfig | None) -> StreamConfig:
    if now is None:
        raise NotFound(f"there is no stream {before.name!r}")
    _check_id(now, before.id)
    return now


def _check_id(now: StreamConfig, stream_id: str) -> None:
    if now.id != stream_id:
        raise Conflict(
            f"stream {now.name!r} was deleted and created again meanwhile: the one that was "
            f"meant had the id {stream_id}, and nothing of the other was touched",
            current=now,
        )


def _cleaned(deleted: StreamConfig, now: StreamConfig | None) -> StreamConfig:
    """The tombstone of a stream without leftovers; a later stream is not changed."""
    if now is None:
        raise NotFound(f"there is no stream {deleted.name!r}")
    return msgspec.structs.replace(now, cleaned=True) if now.id == deleted.id else now


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
