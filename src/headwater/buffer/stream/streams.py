"""Creating, opening, altering and listing streams.

A stream exists once its register `stream.json` does. The register is written first, with the id
that is part of the paths of the queues, and counts the partitions whose queue exists
(`partitions_ready`). Opening a stream creates the missing queues, so a creator that died leaves
either no stream or one that its first use completes. A queue that was ready is never created again:
if it is gone, that is a loss to report, not an empty queue.

A store may be an address: it is opened for the call only, and a returned stream has a
store of its own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headwater.buffer import layout
from headwater.buffer.queue.v1.side_object import Adopted, adopt_v1_queue
from headwater.buffer.stream.config import (
    RetypeNeeded,
    StreamConfig,
    StreamRegister,
    check_store,
    new_stream_id,
    parse_settings,
    with_changes,
)
from headwater.buffer.stream.handle import (
    Stream,
    borrow_store,
    create_queue,
    queue_prefix,
    with_own_store,
)
from headwater.buffer.stream.policy import announce_policy, changes_policy, with_alteration
from headwater.core import runtime
from headwater.core.errors import (
    AlreadyExists,
    Damaged,
    Denied,
    NotFound,
    NotSupported,
    Refused,
    Unavailable,
)
from headwater.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.stream.schema import SchemaLike


PARALLEL: Final = 16


async def create_stream(
    source: str | Store,
    name: str,
    *,
    exists_ok: bool = False,
    schema: SchemaLike | None = None,
    **settings: object,
) -> Stream:
    """Create a stream. `AlreadyExists` if it exists, unless `exists_ok` and the settings agree."""
    fields = parse_settings(settings)
    declared = None
    created_ms = runtime.wall_ms()
    if schema is not None:
        from headwater.buffer.stream.schema import declared_schema, schema_version

        declared = declared_schema(schema)
        fields |= {"shape": "typed", "schemas": [schema_version(1, declared, added_ms=created_ms)]}
    elif fields.get("format") == "v1":
        fields["shape"] = "opaque"
    fresh = with_changes(StreamConfig(id=new_stream_id(), name=name, created_ms=created_ms), fields)

    def create(now: StreamConfig | None) -> StreamConfig:
        if now is None or not now.is_live:
            _check_cleaned(now)
            return fresh
        if not exists_ok:
            raise AlreadyExists(f"stream {name!r} exists", current=now)
        _check_same_settings(now, fields, declared)
        return now

    async with borrow_store(source) as store:
        register = StreamRegister(store, name)
        config = await register.update(create)
        return with_own_store(source, Stream(store, await _create_queues(store, register, config)))


async def open_stream(source: str | Store, name: str, *, writing: bool = False) -> Stream:
    """Open a stream; `NotFound` if it does not exist.

    `NotSupported` if a later version is needed to read it or, with `writing`, to write it.
    """
    async with borrow_store(source) as store:
        register = StreamRegister(store, name)
        config = await register.read_live(writing=writing)
        try:
            config = await _create_queues(store, register, config)
            return with_own_store(source, Stream(store, config))
        except Denied as error:
            if writing:
                raise
            raise Unavailable(
                f"stream {name!r} is not completely created, and these credentials may not write: "
                f"open it once with credentials that may ({error})"
            ) from error


def _check_same_settings(
    now: StreamConfig, settings: Mapping[str, Any], declared: pa.Schema | None
) -> StreamConfig:
    """The stream's config, if it has all of these settings."""
    wrong = [
        (name, f"is {getattr(now, name)}, and {value} was asked for")
        for name, value in settings.items()
        if name not in ("schemas", "shape") and getattr(now, name) != value
    ]
    if declared is not None and (now.is_inferred or not _is_latest(now, declared)):
        wrong.append(("schema", "another one is declared" if now.schemas else "none is declared"))
    if wrong:
        from headwater.buffer.stream.schema import difference

        raise AlreadyExists(
            f"stream {now.name!r} exists, with other settings:{difference(wrong)}", current=now
        )
    return now


def check_alterable(now: StreamConfig, settings: Mapping[str, Any]) -> None:
    other = settings.get("format", now.format)
    if other != now.format:
        raise Refused(
            f"stream {now.name!r} is in the {now.format} format, which never changes: create "
            f"another stream in {other}, and copy"
        )
    partitions = settings.get("partitions", now.partitions)
    if partitions < now.partitions:
        raise Refused(
            f"stream {now.name!r} has {now.partitions} partitions, and cannot have {partitions}: "
            "records stay where they are, so partitions are added and never removed"
        )


def _check_cleaned(before: StreamConfig | None) -> None:
    """Refuse to create a stream where objects of a deleted v1 stream may be left.

    The v1 layout has no place for a stream id: leftovers of the old stream would become part of the
    new one, and a deletion that is still running would delete the new one's objects.
    """
    if before is not None and before.format == "v1" and not before.cleaned:
        raise Refused(
            f"a stream {before.name!r} in the published v1 format was deleted here, and some of "
            "its objects are left: delete it again, or choose another name"
        )


def _is_latest(now: StreamConfig, declared: pa.Schema) -> bool:
    if not now.schemas:
        return False
    from headwater.buffer.stream.schema import evolve_schema

    try:
        return evolve_schema(now.name, now.schemas[-1], declared) is None
    except Refused:
        return False


async def resolve_stream(
    source: Store | Stream, name: str | None, *, writing: bool = False
) -> Stream:
    """The stream itself, or the one of this name in a store."""
    if not isinstance(source, Stream):
        if name is None:
            raise Refused("give the name of the stream in the store")
        return await open_stream(source, name, writing=writing)
    if name is not None and name != source.name:
        raise Refused(f"the stream is {source.name!r}, not {name!r}")
    return source


@asynccontextmanager
async def borrow_stream(
    source: str | Store | Stream, name: str | None = None
) -> AsyncIterator[Stream]:
    """A stream for one operation."""
    if isinstance(source, Stream):
        yield await resolve_stream(source, name)
        return
    async with borrow_store(source) as store:
        yield await resolve_stream(store, name)


async def alter_stream(
    source: str | Store, name: str, *, schema: SchemaLike | None = None, **changes: object
) -> Stream:
    """Change settings of a stream, or declare its next schema.

    With more partitions, keys map to other partitions than before. A change of what is kept counts
    for every collector once this returns; repeat it if it was interrupted. An inferred type is
    replaced by one that is not wider if every retained value fits, which reads all of them.
    """
    fields = parse_settings(changes)
    declared = None
    if schema is not None:
        from headwater.buffer.stream.schema import declared_schema, schema_change

        declared = declared_schema(schema)
    if not fields and declared is None:
        raise Refused("there is nothing to change")
    added_ms = runtime.wall_ms()

    def alter(now: StreamConfig) -> StreamConfig:
        check_alterable(now, fields)
        if declared is None:
            return with_alteration(now, fields)
        return with_alteration(now, {**fields, **schema_change(now, declared, added_ms)})

    async with borrow_store(source) as store:
        register = StreamRegister(store, name)
        before = await register.read_live(writing=True)
        try:
            config = await register.update_live(before.id, alter)
        except RetypeNeeded as replaces:
            # Imported here: it reads records, and this package does not depend on consumers.
            from headwater.buffer.retained import replace_types

            config = await replace_types(Stream(store, before), replaces, fields)
        config = await _create_queues(store, register, config)
        if changes_policy(fields):
            config = await announce_policy(store, config)
        return with_own_store(source, Stream(store, config))


async def stream_names(store: Store) -> list[str]:
    """The names of streams, including deleted ones."""
    check_store(store)
    return [name for name in await store.folders(layout.STREAMS) if layout.is_stream_name(name)]


async def open_streams(
    store: Store, names: list[str]
) -> dict[str, Stream | NotSupported | Damaged]:
    """The existing streams among these names, or the error of one that cannot be read."""

    async def one(name: str) -> Stream | NotSupported | Damaged | None:
        try:
            return await open_stream(store, name)
        except NotFound:
            return None  # deleted: its register stays
        except (NotSupported, Damaged) as error:
            return error

    opened = await runtime.gather_each(one, names, at_once=PARALLEL)
    return {name: stream for name, stream in zip(names, opened, strict=True) if stream is not None}


async def list_streams(source: str | Store) -> list[Stream]:
    """The existing streams, sorted by name."""
    async with borrow_store(source) as store:

        async def one(name: str) -> Stream | None:
            try:
                return Stream(store, await StreamRegister(store, name).read_live(writing=False))
            except NotFound:
                return None

        streams = await runtime.gather_each(one, await stream_names(store), at_once=PARALLEL)
    return [with_own_store(source, stream) for stream in streams if stream is not None]


async def _create_queues(
    store: Store, register: StreamRegister, config: StreamConfig
) -> StreamConfig:
    """Create the missing queues, and return the config that says so."""
    while config.partitions_ready < config.partitions:
        total = config.partitions
        missing = range(config.partitions_ready, total)
        create = functools.partial(create_queue, store, config)
        await runtime.gather_each(create, missing, at_once=PARALLEL)
        config = await register.update_live(config.id, functools.partial(_mark_ready, total))
    return config


def _mark_ready(total: int, now: StreamConfig) -> StreamConfig:
    return msgspec.structs.replace(now, partitions_ready=max(now.partitions_ready, total))


async def adopt_stream(
    source: Store | Stream, name: str | None = None, *, partition: int | None = None
) -> dict[int, Adopted]:
    """Take over a v1 stream from which another implementation's consumer dequeued.

    Continues with the pending batches and leaves out those that the other consumer took. Returns
    the outcome per partition. LSNs continue above every LSN that Headwater can have returned (from
    1 if it never had the queue). What Headwater's consumers acknowledged stays readable for its
    retention, unless more than V1_TAKEN_MAX batches were taken since. A partition from which
    nothing was taken is not changed. The other consumer is fenced; stop it as well, or it takes
    more batches when it is opened again.

    Pass store and name for a stream that was never consumed here: it cannot be opened before.
    """
    store = source.store if isinstance(source, Stream) else source
    name = source.name if isinstance(source, Stream) else name
    if name is None:
        raise Refused("give the name of the stream in the store")
    config = await StreamRegister(store, name).read_live(writing=True)
    stream = Stream(store, config)
    if config.format != "v1":
        raise Refused(
            f"stream {name!r} is in the native format, which no other implementation consumes: "
            "there is nothing to adopt"
        )
    if partition is not None:
        stream.check_partition(partition)
    partitions = range(config.partitions) if partition is None else [partition]
    begins = {
        one: await adopt_v1_queue(
            store, queue_prefix(config, one), config.id, lenient=config.is_lenient
        )
        for one in partitions
    }
    if partition is None:
        await open_stream(store, name, writing=True)  # marks its queues as made
    return begins
