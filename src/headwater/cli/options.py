"""The arguments and options that several commands share, and the objects that they open.

Loaded with every command: nothing here imports Arrow, rich or the tier at its top.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from headwater.cli.advice import remember_address
from headwater.cli.terminal import run_loop
from headwater.core.errors import NotFound, Refused
from headwater.core.retry import RetryPolicy

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream
    from headwater.core import Secret
    from headwater.store import Store
    from headwater.tier.eventlog import MetadataEventLog, StoredEventLog

T = TypeVar("T")

# A person waits: a store that does not answer is reported within seconds.
PATIENCE: Final = RetryPolicy(attempts=6, deadline_s=60.0)

URL = typer.Argument(
    metavar="URL",
    help="file:///path, s3://bucket/prefix, gs://… or az://…; default: HEADWATER_URL.",
)
OPTION = typer.Option(
    [], "--option", metavar="NAME=VALUE", help="An option of the store, such as endpoint=…"
)
STREAM = typer.Argument(metavar="STREAM", help="The stream's name.")
PARTITION = typer.Option(None, min=0, help="Only this partition.")
YES = typer.Option(False, "--yes", "-y", help="Do not ask.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
_ESCAPE: Final = re.compile(r"\\(t|0|\\|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")
_ESCAPED: Final = {"t": "\t", "0": "\0", "\\": "\\"}


def open_with_options(url: str, options: list[str]) -> Store:
    """The store at an address, with the options given on the command line."""
    from headwater.store import open_store

    named = named_values(options, "--option", "an option of a store", ("policy",))
    store = open_store(url, policy=PATIENCE, **named)
    remember_address(url, options)
    return store


def on_store(url: str, options: list[str], work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store at an address, and run the work of a command on it."""

    async def run() -> T:
        async with open_with_options(url, options) as store:
            return await work(store)

    return run_loop(run())


def on_stream(
    url: str,
    options: list[str],
    name: str,
    work: Callable[[Stream], Awaitable[T]],
    *,
    writing: bool = False,
) -> T:
    """Open a stream, and run the work of a command on it."""
    from headwater.buffer.stream import open_stream

    async def run(store: Store) -> T:
        return await work(await open_stream(store, name, writing=writing))

    return on_store(url, options, run)


def wanted_partitions(stream: Stream, partition: int | None) -> list[int]:
    """The one that `--partition` names, or all of them."""
    if partition is None:
        return list(range(stream.partitions))
    stream.check_partition(partition)
    return [partition]


def why_empty(url: str) -> str:
    """What is wrong with a directory in which nothing is, if anything: words to follow a colon."""
    from headwater.store.address import parse_address

    address = parse_address(url, {})
    if address.scheme != "file" or Path(address.path).is_dir():
        return ""
    is_what = "is not a directory" if Path(address.path).exists() else "does not exist"
    return f": {address.path} {is_what}"


def named_values(
    texts: list[str], option: str, what: str, reserved: Sequence[str]
) -> dict[str, Any]:
    """What an option that may be repeated says as NAME=VALUE; `reserved` names are refused."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{what} is NAME=VALUE", param_hint=option)
        if name in reserved:
            raise typer.BadParameter(f"{name} is not {what}", param_hint=option)
        if name in values:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        values[name] = value
    return values


def read_bound(text: str | None) -> int | str | None:
    """An LSN as a number; a time, earliest and latest as they are."""
    return int(text) if text is not None and text.isdecimal() else text


def unescaped(text: str) -> str:
    r"""What was meant by '\t', '\0', '\x1f' or '\\' in an argument, which shells pass as it is."""
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1]) or chr(int(found[1][1:], 16)), text)


@dataclass(frozen=True)
class EventLogOptions:
    """A log of the tier's events as the options name it; each field is an option."""

    prefix: str = "metadata"
    bootstrap_servers: str | None = None
    topic: str = "__remote_log_metadata"
    metadata_partitions: int = 50
    kafka_config: Path | None = None

    @property
    def is_default(self) -> bool:
        """Whether the options name no other log: it may not exist then."""
        return self.bootstrap_servers is None and self.prefix == EventLogOptions.prefix

    @asynccontextmanager
    async def opened(self, store: Store | None) -> AsyncIterator[MetadataEventLog]:
        """The log, which is not made if there is none. A topic of Kafka needs no store."""
        if self.bootstrap_servers is not None:
            log: MetadataEventLog = await self._open_topic(self.bootstrap_servers)
        elif store is not None:
            log = await self._open_stored(store)
        else:
            raise Refused(
                "the event log is missing: give the URL of its store, or --bootstrap-servers"
            )
        try:
            yield log
        finally:
            await log.close()

    @asynccontextmanager
    async def opened_in(self, store: Store) -> AsyncIterator[StoredEventLog]:
        """The log in the store; `NotFound` if there is none."""
        log = await self._open_stored(store)
        try:
            yield log
        finally:
            await log.close()

    async def _open_topic(self, servers: str) -> MetadataEventLog:
        from headwater.tier.eventlog import KafkaEventLog

        return await KafkaEventLog.open(
            servers,
            topic=self.topic,
            partition_count=self.metadata_partitions,
            settings={} if self.kafka_config is None else _settings(self.kafka_config),
        )

    async def _open_stored(self, store: Store) -> StoredEventLog:
        from headwater.store import Register
        from headwater.tier.eventlog import StoredEventLog
        from headwater.tier.eventlog.stored_events import log_key
        from headwater.tier.eventlog.stored_log import LogRecord

        try:
            record = (await Register(store, log_key(self.prefix), LogRecord).read()).value
        except NotFound:
            record = None
        # One that was left half made has no events yet, and to open it would be to finish it.
        if record is None or not record.made:
            raise NotFound(
                f"there is no event log of the tier under {self.prefix!r}: nothing was ever "
                "copied to the tier here, or the events are elsewhere (--prefix, "
                "--bootstrap-servers)"
            )
        return await StoredEventLog.open(
            store, prefix=self.prefix, partition_count=record.partition_count
        )


PREFIX = typer.Option(help="The prefix of the tier's event log in the store.")
_EVENT_LOG: Final = {
    "prefix": PREFIX,
    "bootstrap_servers": typer.Option(
        metavar="HOST:PORT,…",
        help="Read the tier's events from these Kafka brokers; needs confluent-kafka.",
    ),
    "topic": typer.Option(help="The topic with the events."),
    "metadata_partitions": typer.Option(min=1, help="How many partitions the topic's writers use."),
    "kafka_config": typer.Option(
        metavar="FILE",
        help="A file with settings of Kafka's client, such as passwords: one NAME=VALUE a line.",
    ),
}


def takes_event_log(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a log of events, which are its parameter `events`."""
    own = inspect.signature(command, eval_str=True)
    parameters = [one for one in own.parameters.values() if one.name != "events"]
    for field, kind in get_type_hints(EventLogOptions).items():
        parameters.append(
            inspect.Parameter(
                field,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(EventLogOptions, field),
                annotation=Annotated[kind, _EVENT_LOG[field]],
            )
        )

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        events = EventLogOptions(**{field: arguments.pop(field) for field in _EVENT_LOG})
        command(**arguments, events=events)

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _settings(path: Path) -> dict[str, str | int | bool | Secret]:
    """What the file says, as Kafka's own tools read theirs."""
    from headwater.core import Secret

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    settings: dict[str, str | int | bool | Secret] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # Not the line itself: it may be a password.
            raise Refused(f"{path}, line {number}: a setting is NAME=VALUE")
        settings[name.strip()] = Secret(value.strip())
    return settings
