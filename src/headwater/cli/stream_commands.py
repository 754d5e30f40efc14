"""`headwater stream …`: create, list, describe, alter, verify, adopt and delete streams."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from headwater.cli.command_line import EXIT_NO, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    URL,
    YES,
    EventLogOptions,
    named_values,
    on_store,
    on_stream,
    takes_event_log,
    why_empty,
)
from headwater.cli.render import Progress, conclude, conclude_change, show
from headwater.cli.report import Report, size_words
from headwater.cli.terminal import confirm, gather_bounded
from headwater.core.errors import Corrupt, HeadwaterError, NotFound, Refused

if TYPE_CHECKING:
    from headwater.buffer.queue.contract import QueueState
    from headwater.buffer.stream import DeletedReport, Stream
    from headwater.buffer.stream.schema import SchemaLike
    from headwater.store import Store

stream_app = HeadwaterTyper(help="Create, show, change, copy and delete streams.")

T = TypeVar("T")
NOT_SETTINGS: Final = ("store", "name", "schema", "exists_ok")
NAME = typer.Argument(metavar="NAME", help="The stream's name.")
PARTITIONS = typer.Option(None, min=1, help="The number of partitions; it can only grow.")
RETENTION = typer.Option(None, metavar="7d", help="How long records are kept, or forever.")
REQUIRED_GROUP = typer.Option(
    None,
    "--required-group",
    metavar="NAME|none",
    help="Keep records until this group has processed them, however old they are.",
)
SET = typer.Option(
    [],
    "--set",
    metavar="NAME=VALUE",
    help="A setting, by Headwater's name or Kafka's: retention.ms=7d",
)
SCHEMA = typer.Option(
    None,
    metavar="FILE",
    help='JSON {"column": "type"}, or a Parquet or Arrow file with the schema.',
)


@stream_app.command()
def create(
    url: str = URL,
    name: str = NAME,
    partitions: int | None = PARTITIONS,
    format: str | None = typer.Option(
        None, metavar="native|v1", help="v1 is the published format of OpenData; default: native."
    ),
    retention: str | None = RETENTION,
    required_group: str | None = REQUIRED_GROUP,
    setting: list[str] = SET,
    schema: Path | None = SCHEMA,
    exists_ok: bool = typer.Option(
        False, "--exists-ok", help="Succeed if the stream exists with these settings."
    ),
    option: list[str] = OPTION,
) -> None:
    """Create a stream, and estimate what its requests will cost."""
    from headwater.buffer.stream import create_stream
    from headwater.cli.stream_report import describe_created

    settings = _settings(
        setting,
        partitions=partitions,
        format=format,
        retention=retention,
        required_group=required_group,
    )
    declared = _schema(schema)

    async def run(store: Store) -> Report:
        if store.stats.scheme == "memory":
            raise Refused(
                "a stream in memory:// is lost when this command ends: name a directory "
                "(file:///path), or create it in the program that uses it (create_stream)"
            )
        existed = exists_ok and await _exists(store, name)
        stream = await create_stream(store, name, exists_ok=exists_ok, schema=declared, **settings)
        return describe_created(stream, existed=existed)

    conclude_change(on_store(url, option, run))


@stream_app.command("list")
def list_all(url: str = URL, as_json: bool = AS_JSON, option: list[str] = OPTION) -> None:
    """List the streams of a store.

    Exit status: 0, or 1 if there are none, or one that cannot be read.
    """
    from headwater.buffer.stream import open_streams, stream_names
    from headwater.cli.stream_report import describe_streams

    async def run(store: Store) -> Mapping[str, Stream | HeadwaterError]:
        return await open_streams(store, await stream_names(store))

    streams = on_store(url, option, run)
    show(describe_streams(streams), as_json=as_json)
    if not streams:
        typer.echo(f"there are no streams here{why_empty(url)}", err=True)
    if not streams or any(isinstance(one, HeadwaterError) for one in streams.values()):
        raise typer.Exit(EXIT_NO)


@stream_app.command()
def describe(
    url: str = URL, name: str = NAME, as_json: bool = AS_JSON, option: list[str] = OPTION
) -> None:
    """Show the settings and columns of a stream, and the state of its partitions. Fences nothing.

    Exit status: 0, or 1 if the state of a partition cannot be read.
    """
    from headwater.cli.stream_report import describe_stream

    async def run(stream: Stream) -> tuple[Stream, list[QueueState | str]]:
        return stream, await _states(stream)

    stream, states = on_stream(url, option, name, run)
    good = not any(isinstance(state, str) for state in states)
    conclude(describe_stream(stream, states), good=good, as_json=as_json)


@stream_app.command()
def alter(
    url: str = URL,
    name: str = NAME,
    partitions: int | None = PARTITIONS,
    retention: str | None = RETENTION,
    required_group: str | None = REQUIRED_GROUP,
    setting: list[str] = SET,
    schema: Path | None = SCHEMA,
    option: list[str] = OPTION,
) -> None:
    """Change a stream's settings, add partitions, or declare its next schema."""
    from headwater.buffer.stream import alter_stream, open_stream
    from headwater.cli.stream_report import describe_change

    settings = _settings(
        setting, partitions=partitions, retention=retention, required_group=required_group
    )
    declared = _schema(schema)

    async def run(store: Store) -> Report:
        before = await open_stream(store, name, writing=True)
        after = await alter_stream(store, name, schema=declared, **settings)
        return describe_change(before.config, after.config)

    conclude_change(on_store(url, option, run))


@stream_app.command()
def verify(
    url: str = URL,
    name: str = NAME,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Read every retained batch with its checksum, and list damaged ones. Fences nothing.

    Exit status: 0 if all of them can be read, 1 if not.
    """
    from headwater.buffer.retained import Verified, verify_stream
    from headwater.cli.stream_report import describe_verified

    async def run(stream: Stream) -> Verified:
        def advance(verified: Verified) -> None:
            unit = f"batches, {size_words(verified.size_bytes)}"
            progress.show(f"reading stream {name}", verified.batches, unit=unit)

        return await verify_stream(stream, partition=partition, progress=advance)

    with Progress() as progress:
        verified = on_stream(url, option, name, run)
    conclude(describe_verified(name, verified), good=not verified.bad, as_json=as_json)


@stream_app.command()
def adopt(
    url: str = URL, name: str = NAME, partition: int | None = PARTITION, option: list[str] = OPTION
) -> None:
    """Take over a published v1 stream from which another implementation's consumer dequeued.

    Batches that the other consumer took are left out: they have no LSNs here. Adopting fences that
    consumer; stop it as well, or it takes more when it is opened again. Batches that were
    acknowledged here before stay readable; the command says so if they cannot.
    """
    from headwater.buffer.stream import adopt_stream
    from headwater.cli.stream_report import describe_adopted

    done = on_store(url, option, lambda store: adopt_stream(store, name, partition=partition))
    conclude_change(describe_adopted(done))


@stream_app.command()
@takes_event_log
def delete(
    url: str = URL,
    name: str = NAME,
    yes: bool = YES,
    damaged: bool = typer.Option(
        False,
        "--damaged",
        help="Delete everything below streams/NAME; only if stream.json cannot be read.",
    ),
    option: list[str] = OPTION,
    *,
    events: EventLogOptions,
) -> None:
    """Delete a stream and all of its records, or the leftovers of a deleted stream.

    The command publishes the deletion in the tier's event log, which stops running leaders. Exit
    status: 0, or 1 if objects could not be deleted or events could not be published.
    """
    from headwater.buffer.stream import check_deletable, delete_damaged_stream
    from headwater.cli.stream_report import describe_deleted
    from headwater.cli.tier_partitions import delete_with_tier

    async def delete_it(store: Store, name: str) -> tuple[DeletedReport, HeadwaterError | None]:
        if damaged:
            return await delete_damaged_stream(store, name), None
        return await delete_with_tier(store, name, events, stream_id=confirmed)

    async def run(act: Callable[[Store, str], Awaitable[T]], store: Store) -> T:
        try:
            return await act(store, name)
        except Corrupt as error:
            raise Corrupt(
                f"{error}. It is unknown which objects belong to it; to delete everything "
                f"below streams/{name}: headwater stream delete URL {name} --damaged"
            ) from error

    confirmed: str | None = None
    if not yes:
        if not damaged:
            # Refused before the question if it is not there; the answer is for this stream alone.
            confirmed = on_store(url, option, partial(run, check_deletable))
        everything = f"everything below streams/{name}, of whichever stream"
        what = everything if damaged else f"stream {name} and all of its records"
        confirm(
            f"Permanently delete {what}?",
            unasked=f"there is no terminal to confirm the deletion of stream {name!r}: use --yes",
        )
    deleted, unpublished = on_store(url, option, partial(run, delete_it))
    good = not deleted.failed and unpublished is None
    conclude_change(describe_deleted(deleted, unpublished), good=good)


async def _exists(store: Store, name: str) -> bool:
    from headwater.buffer.stream import open_stream

    try:
        await open_stream(store, name)
    except NotFound:
        return False
    return True


async def _states(stream: Stream) -> list[QueueState | str]:
    """The state of each partition's queue, or why it is not known."""
    from headwater.cli.stream_report import disorder

    async def state(partition: int) -> QueueState | str:
        try:
            queue_state = await stream.queue_reader(partition).state()
        except HeadwaterError as error:
            return str(error)
        return disorder(queue_state) or queue_state

    return await gather_bounded(state, range(stream.partitions))


def _settings(texts: list[str], **named: object) -> dict[str, Any]:
    options = [f"{name}={value}" for name, value in named.items() if value is not None]
    return named_values([*options, *texts], "--set", "a setting", NOT_SETTINGS)


def _schema(path: Path | None) -> SchemaLike | None:
    """What {"column": "type", …} says, or the schema of a Parquet or Arrow file or stream."""
    if path is None:
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise Refused(f"the schema file {path} cannot be read: {error.strerror}") from error
    try:
        if head.startswith(b"PAR1"):
            with pa.OSFile(os.fsencode(path)) as source:
                return pq.read_schema(source)
        if head == b"ARROW1":
            with pa.OSFile(os.fsencode(path)) as source, pa.ipc.open_file(source) as arrow:
                return arrow.schema
        if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
            return _columns(path)
        with pa.OSFile(os.fsencode(path)) as source, pa.ipc.open_stream(source) as stream:
            return stream.schema
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise Refused(
            f'{path} holds no schema: it is JSON as in {{"id": "int64 not null"}}, a Parquet '
            f"file, or an Arrow file ({error})"
        ) from error


def _columns(path: Path) -> dict[str, str]:
    def pairs(listed: list[tuple[str, object]]) -> dict[str, str]:
        columns: dict[str, str] = {}
        for name, kind in listed:
            if name in columns:
                raise ValueError(f"column {name!r} appears more than once")
            if not isinstance(kind, str):
                raise ValueError(f"the type of {name!r} is not text")
            columns[name] = kind
        return columns

    columns: dict[str, str] = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=pairs)
    return columns
