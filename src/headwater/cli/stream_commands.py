"""`headwater stream …`: make streams, look at them, change them, delete them."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    KAFKA_CONFIG,
    METADATA_PARTITIONS,
    OPTION,
    PARTITION,
    PREFIX,
    SERVERS,
    TOPIC,
    URL,
    YES,
    EventLogOptions,
    open_with_options,
    why_empty,
)
from headwater.cli.terminal import confirm, is_interactive, reporting, run_loop
from headwater.core.errors import Corrupt, HeadwaterError, NotFound, Refused

if TYPE_CHECKING:
    from headwater.buffer.queue.contract import QueueState
    from headwater.buffer.queue.v1 import Adopted
    from headwater.buffer.stream import Stream
    from headwater.buffer.stream.schema import SchemaLike
    from headwater.store import Store


stream_app = HeadwaterTyper(
    help="Make streams, look at them, change them, delete them.",
)

T = TypeVar("T")
PARALLEL: Final = 16
NOT_SETTINGS: Final = ("store", "name", "schema", "exists_ok")
NAME = typer.Argument(metavar="NAME", help="The stream's name.")
PARTITIONS = typer.Option(None, min=1, help="How many partitions; they can be added, not removed.")
RETENTION = typer.Option(None, metavar="7d", help="How long acknowledged records stay; or forever.")
SET = typer.Option(
    [], "--set", metavar="NAME=VALUE", help="A setting, by our name or Kafka's: retention.ms=7d"
)
SCHEMA = typer.Option(
    None,
    metavar="FILE",
    help='JSON {"column": "type"}, or a Parquet or Arrow file to take the schema from.',
)


@stream_app.command()
def create(
    url: str = URL,
    name: str = NAME,
    partitions: int | None = PARTITIONS,
    format: str | None = typer.Option(None, metavar="native|v1", help="v1 is OpenData's."),
    retention: str | None = RETENTION,
    setting: list[str] = SET,
    schema: Path | None = SCHEMA,
    exists_ok: bool = typer.Option(
        False, "--exists-ok", help="Be content with one that is there and agrees."
    ),
    option: list[str] = OPTION,
) -> None:
    """Make a stream, and say what its requests will cost."""
    from headwater.buffer.stream import create_stream
    from headwater.cli.render import new_console
    from headwater.cli.stream_view import show_created

    settings = _settings(setting, partitions=partitions, format=format, retention=retention)
    declared = _schema(schema)

    async def run() -> tuple[Stream, bool]:
        async with open_with_options(url, option) as store:
            if store.stats.scheme == "memory":
                raise Refused(
                    "a stream in memory:// would be gone when this command ends: name a directory "
                    "(file:///path), or make it in the program that uses it (create_stream)"
                )
            existed = exists_ok and await _exists(store, name)
            return await create_stream(
                store, name, exists_ok=exists_ok, schema=declared, **settings
            ), existed

    stream, existed = run_loop(run())
    with reporting():
        show_created(new_console(), stream, existed=existed)


@stream_app.command("list")
def list_all(url: str = URL, as_json: bool = AS_JSON, option: list[str] = OPTION) -> None:
    """List the streams of a store.

    Exit status: 0, or 1 if there are none, or one that cannot be read.
    """
    from headwater.buffer.stream import open_streams, stream_names
    from headwater.cli.render import new_console
    from headwater.cli.stream_view import as_dict, show_list

    streams: list[Stream] = []
    problems: dict[str, str] = {}

    async def run() -> None:
        async with open_with_options(url, option) as store:
            found = await open_streams(store, await stream_names(store))
        for name, stream in found.items():
            if isinstance(stream, HeadwaterError):
                problems[name] = str(stream)
            else:
                streams.append(stream)

    run_loop(run())
    if as_json:
        found = [as_dict(stream) for stream in streams]
        found += [{"name": name, "error": problem} for name, problem in problems.items()]
        typer.echo(json.dumps(found, indent=2))
    else:
        show_list(new_console(), streams, problems)
    if not streams and not problems:
        typer.echo(f"there are no streams here{why_empty(url)}", err=True)
    if problems or not streams:
        raise typer.Exit(EXIT_NO)


@stream_app.command()
def describe(
    url: str = URL, name: str = NAME, as_json: bool = AS_JSON, option: list[str] = OPTION
) -> None:
    """Show the settings and columns of a stream, and the state of its partitions. Fences nothing.

    Exit status: 0, or 1 if the state of a partition cannot be told.
    """
    from headwater.buffer.stream import open_stream
    from headwater.cli.render import new_console
    from headwater.cli.stream_view import as_dict, show_partitions, show_schemas, show_settings

    async def run() -> tuple[Stream, list[QueueState | str]]:
        async with open_with_options(url, option) as store:
            stream = await open_stream(store, name)
            return stream, await _states(stream)

    stream, states = run_loop(run())
    if as_json:
        typer.echo(json.dumps(as_dict(stream, states), indent=2))
    else:
        console = new_console()
        console.print(f"stream [bold]{stream.name}[/bold]", soft_wrap=True)
        show_settings(console, stream)
        show_schemas(console, stream.config.schemas)
        show_partitions(console, states)
    if any(isinstance(state, str) for state in states):
        raise typer.Exit(EXIT_NO)


@stream_app.command()
def alter(
    url: str = URL,
    name: str = NAME,
    partitions: int | None = PARTITIONS,
    retention: str | None = RETENTION,
    setting: list[str] = SET,
    schema: Path | None = SCHEMA,
    option: list[str] = OPTION,
) -> None:
    """Change a stream's settings, add partitions, or declare its next schema."""
    from headwater.buffer.stream import alter_stream, open_stream
    from headwater.cli.render import new_console
    from headwater.cli.stream_view import show_changes

    settings = _settings(setting, partitions=partitions, retention=retention)
    declared = _schema(schema)

    async def run() -> tuple[Stream, Stream]:
        async with open_with_options(url, option) as store:
            before = await open_stream(store, name, writing=True)
            return before, await alter_stream(store, name, schema=declared, **settings)

    before, after = run_loop(run())
    with reporting():
        show_changes(new_console(), before.config, after.config)


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
    import msgspec

    from headwater.buffer.retained import Verified, verify_stream
    from headwater.buffer.stream import open_stream
    from headwater.cli.render import StatusLine, new_console
    from headwater.cli.stream_view import show_verified, verifying_words

    async def run() -> Verified:
        async with open_with_options(url, option) as store:
            with StatusLine() as line:
                return await verify_stream(
                    await open_stream(store, name),
                    partition,
                    lambda found: line.show(verifying_words(found)),
                )

    found = run_loop(run())
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        show_verified(new_console(), name, found)
    if found.bad:
        raise typer.Exit(EXIT_NO)


@stream_app.command()
def adopt(
    url: str = URL,
    name: str = NAME,
    partition: int | None = PARTITION,
    option: list[str] = OPTION,
) -> None:
    """Go on with a published v1 stream that another implementation's consumer dequeued from.

    What that one took is left out: it has no LSNs here. It is fenced; stop it all the same, or it
    will take more as soon as it is opened again. What was acknowledged here before stays readable;
    if it cannot, that is said.
    """
    from headwater.buffer.stream import adopt_stream
    from headwater.cli.stream_view import adopted_line

    async def run() -> dict[int, Adopted]:
        async with open_with_options(url, option) as store:
            return await adopt_stream(store, name, partition=partition)

    done = run_loop(run())
    with reporting():
        for one, adopted in done.items():
            typer.echo(adopted_line(one, adopted))


@stream_app.command()
def delete(
    url: str = URL,
    name: str = NAME,
    yes: bool = YES,
    damaged: bool = typer.Option(
        False,
        "--damaged",
        help="Of a stream whose stream.json cannot be read: everything below streams/NAME.",
    ),
    option: list[str] = OPTION,
    prefix: str = PREFIX,
    servers: str | None = SERVERS,
    topic: str = TOPIC,
    metadata_partitions: int = METADATA_PARTITIONS,
    kafka_config: Path | None = KAFKA_CONFIG,
) -> None:
    """Delete a stream and all of its records; of one that is deleted, what was left behind.

    The tier's events tell it, and a leader that runs stops.
    Exit status: 0, or 1 if objects are left that could not be deleted, or events not be told.
    """
    from headwater.buffer.stream import DeletedReport, check_deletable, delete_damaged_stream
    from headwater.cli.render import new_console
    from headwater.cli.stream_view import show_deleted
    from headwater.cli.tier_view import delete_with_tier

    events = EventLogOptions(prefix, servers, topic, metadata_partitions, kafka_config)

    async def delete_it(store: Store, name: str) -> tuple[DeletedReport, HeadwaterError | None]:
        if damaged:
            return await delete_damaged_stream(store, name), None
        return await delete_with_tier(store, name, events, stream_id=confirmed)

    async def run(act: Callable[[Store, str], Awaitable[T]]) -> T:
        async with open_with_options(url, option) as store:
            try:
                return await act(store, name)
            except Corrupt as error:
                raise Corrupt(
                    f"{error}. Which objects are its own cannot be told; to delete everything "
                    f"below streams/{name}: headwater stream delete URL {name} --damaged"
                ) from error

    confirmed: str | None = None
    if not yes:
        if not damaged:
            # Refused before the question if it is not there; the answer is for this stream alone.
            confirmed = run_loop(run(check_deletable))
        everything = f"everything below streams/{name}, whichever stream's it was"
        _ask(name, everything if damaged else f"stream {name} and all of its records")
    report, untold = run_loop(run(delete_it))
    with reporting():
        show_deleted(new_console(), report, untold)
    if report.failed or untold is not None:
        raise typer.Exit(EXIT_NO)


def _ask(name: str, what: str) -> None:
    if not is_interactive():
        raise Refused(f"nobody is here to confirm that stream {name!r} is to go: say --yes")
    confirm(f"Delete {what}, for good?")


async def _exists(store: Store, name: str) -> bool:
    from headwater.buffer.stream import open_stream

    try:
        await open_stream(store, name)
    except NotFound:
        return False
    return True


async def _states(stream: Stream) -> list[QueueState | str]:
    """How each partition's queue stands, or why that cannot be told."""

    from headwater.cli.stream_view import disorder

    async def state(partition: int) -> QueueState | str:
        try:
            found = await stream.queue_reader(partition).state()
        except HeadwaterError as error:
            return str(error)
        return disorder(found) or found

    states: list[QueueState | str] = []
    for first in range(0, stream.partitions, PARALLEL):
        group = range(first, min(first + PARALLEL, stream.partitions))
        states += await asyncio.gather(*(state(partition) for partition in group))
    return states


def _settings(texts: list[str], **named: object) -> dict[str, Any]:
    settings: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter("a setting is NAME=VALUE", param_hint="--set")
        if name in NOT_SETTINGS:
            raise typer.BadParameter(f"{name} is not a setting", param_hint="--set")
        if name in settings:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--set")
        settings[name] = value
    return settings


def _schema(path: Path | None) -> Any:

    return None if path is None else read_schema_file(path)


def read_schema_file(path: Path) -> SchemaLike:
    """What {"column": "type", …} says, or the schema of a Parquet or Arrow file or stream."""
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
    def pairs(found: list[tuple[str, object]]) -> dict[str, str]:
        columns: dict[str, str] = {}
        for name, kind in found:
            if name in columns:
                raise ValueError(f"column {name!r} appears more than once")
            if not isinstance(kind, str):
                raise ValueError(f"the type of {name!r} is not text")
            columns[name] = kind
        return columns

    columns: dict[str, str] = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=pairs)
    return columns
