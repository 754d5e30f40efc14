"""Deleting a stream: first its register says so, then its objects go.

The register stays as a tombstone with the stream's id, so that a delete that was interrupted can go
on. Objects of native streams stand below that id, and no later stream has it. The published v1
layout has no such place: its objects are deleted only while the register still says that this very
stream is deleted, which is looked at before each group of deletes. A request of such a group that
the store carries out late could still meet a later v1 stream of the same name; take another name.
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
    """What deleting a stream did."""

    name: str
    id: str
    resumed: bool = False
    """The stream had been deleted before; its remaining objects were looked for."""
    objects: int = 0
    bytes: int = 0
    failed: int = 0
    """Objects that may still be there: delete the stream once more."""
    cause: str = ""
    """Why the last of them failed."""


async def delete_stream(
    source: str | Store,
    name: str,
    *,
    stream_id: str | None = None,
    before_objects: BeforeObjects | None = None,
) -> DeletedReport:
    """Delete a stream and its objects; of one that is deleted, what is left of them.

    `stream_id` is that of the stream that is meant (`check_deletable`); without it, the one that
    has the name now.

    `before_objects` is called once the stream says that it is deleted, and before any of its
    objects goes, for whoever keeps account of them elsewhere. What it raises leaves them there.

    `NotFound` if there never was one. `Conflict` if another took its name meanwhile; nothing of
    that one is touched.
    """
    async with borrow_store(source) as store:
        return await _delete(store, name, stream_id, before_objects)


async def check_deletable(source: str | Store, name: str) -> str:
    """The id of the stream that would be deleted; raises what deleting would, and deletes nothing.

    Another stream may have the name by the time a person has confirmed it: `delete_stream` takes
    the id.
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
    """Delete what is the stream's, in groups."""
    group: list[ObjectMeta] = []
    async for meta in _own(store, config):
        group.append(meta)
        if len(group) == PARALLEL:
            await _delete_group(store, register, config, group, report)
            group = []
    if group:
        await _delete_group(store, register, config, group, report)


async def _own(store: Store, config: StreamConfig) -> AsyncIterator[ObjectMeta]:
    """The objects of this stream: below a folder of its id, wherever in the folder of its name.

    A v1 queue has no such folder, and one of another id inside it is another stream's, which had
    or has the same name.
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
    """Delete these at once, and count what became of them."""
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
    """The tombstone, which says that nothing is left; a later stream is left as it is."""
    if now is None:
        raise NotFound(f"there is no stream {deleted.name!r}")
    return msgspec.structs.replace(now, cleaned=True) if now.id == deleted.id else now


# Deleting what is below the name of a stream whose register cannot be read.
#
# Without `stream.json` nobody can tell which objects were whose, so all of them go: of every
# stream that ever had the name. A tombstone takes the place of the damaged register at the end;
# until then it stays as it is, and deleting can be repeated.


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
