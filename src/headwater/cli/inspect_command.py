"""`headwater inspect …`: what an object of buffer, log or tier holds, and what is wrong with it.

The bytes come from a file, an object of a store, or standard input. Hexadecimal digits on standard
input are read as hexadecimal text: no object of the buffer consists of such digits alone. The
modules `inspect_…` take these bytes, or a partition, and return an `InspectionReport`.

Always holds:

- nothing is written, opened or fenced;
- the verdict is that of the reader that the rest of Headwater uses: an object called good here can
  be read everywhere else, and one called bad is refused there.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from headwater.cli.advice import advice_for, command
from headwater.cli.command_line import URL_VARIABLE, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    EventLogOptions,
    on_stream,
    open_with_options,
    takes_event_log,
)
from headwater.cli.render import conclude
from headwater.cli.report import InspectionReport, Problem, Report
from headwater.cli.terminal import check_input, run_loop
from headwater.core.errors import (
    BadUrl,
    Corrupt,
    Denied,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    Refused,
)
from headwater.core.limits import GIB

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.stream import Stream

inspect_app = HeadwaterTyper(
    help="Show and check the content of a batch, manifest, queue, log, event or segment."
)

STANDARD_INPUT: Final = "-"
SOURCE = typer.Argument(
    STANDARD_INPUT,
    metavar="FILE|URL|-",
    help="A file, the address of an object (s3://bucket/prefix/key), or - for standard input, "
    "which may be hexadecimal text.",
)
ENTRIES = typer.Option(20, min=1, help="How many entries to show.")


@inspect_app.command()
def batch(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a batch, native or published v1: id, records, calls, columns, checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_batch import describe_batch

    _conclude(describe_batch(read_source(source, option), records=records), as_json)


@inspect_app.command()
def manifest(
    source: str = SOURCE,
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a published v1 manifest: entries, sequences, epoch, metadata.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_queue import describe_manifest

    _conclude(describe_manifest(read_source(source, option), entries=entries), as_json)


@inspect_app.command()
def queue(
    source: str = SOURCE,
    stream: str | None = typer.Option(
        None, metavar="NAME", help="Show the whole queue of this stream of the store at URL."
    ),
    partition: int = typer.Option(0, min=0, help="The partition of the stream."),
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a chunk or a register of a queue, or with --stream the whole queue. Fences nothing.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_queue import describe_queue_object

    async def run(opened: Stream) -> InspectionReport:
        from headwater.cli.inspect_partition import describe_partition

        return await describe_partition(opened, partition, entries=entries)

    if stream is None:
        report = describe_queue_object(read_source(source, option), entries=entries)
    else:
        report = on_stream(_store_url(source), option, stream, run)
    _conclude(report, as_json)


@inspect_app.command()
def wal(
    source: str = SOURCE,
    frames: int = typer.Option(20, min=1, help="How many of the last frames to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a segment of a log: frames, groups, how far it was synced, what is torn or corrupt.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_segment import describe_log_segment

    _conclude(describe_log_segment(read_source(source, option), frames=frames), as_json)


@inspect_app.command()
@takes_event_log
def event(
    source: str = SOURCE,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    metadata_partition: int | None = typer.Option(
        None, min=0, help="Read the event from this partition of the event log at URL."
    ),
    offset: int = typer.Option(0, min=0, help="The offset of that event."),
    *,
    events: EventLogOptions,
) -> None:
    """Show a metadata event of the tier, as Kafka writes it: segment, states, epochs, publisher.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_event import describe_event, describe_in_log

    async def run(partition: int) -> InspectionReport:
        async with AsyncExitStack() as stack:
            store = None
            if events.bootstrap_servers is None:
                opened = open_with_options(_store_url(source), option)
                store = await stack.enter_async_context(opened)
            log = await stack.enter_async_context(events.opened(store))
            return await describe_in_log(log, partition, offset)

    if metadata_partition is None:
        report = describe_event(read_source(source, option))
    else:
        report = run_loop(run(metadata_partition))
    _conclude(report, as_json)


@inspect_app.command()
def segment(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a segment of the tier: LSNs, terms, columns, row groups, every checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspect_segment import describe_segment

    _conclude(describe_segment(read_source(source, option), records=records), as_json)


def _conclude(report: InspectionReport, as_json: bool) -> None:
    conclude(report, good=report.is_good, as_json=as_json)


def _store_url(source: str) -> str:
    """The address of the store whose streams or events are inspected, and not one object."""
    url = os.environ.get(URL_VARIABLE, "") if source == STANDARD_INPUT else source
    if not url:
        raise Refused(f"it needs the address of the store: give URL, or set {URL_VARIABLE}")
    return url


READ_MAX_BYTES: Final = 1 * GIB
"""More than any object of the buffer has."""
_HEX: Final = re.compile(rb"[0-9A-Fa-f]+")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class InspectedObject(NamedTuple):
    """The bytes of an object, and what it is called, where that is known."""

    name: str
    data: bytes

    @property
    def key(self) -> str:
        """The last part of the name: what the object itself says it is called."""
        return self.name.rpartition("/")[2]


def read_source(place: str, options: list[str]) -> InspectedObject:
    """Read an object; what cannot be read at all is `NotFound` or `Refused`."""
    if place == STANDARD_INPUT:
        return InspectedObject("", _from_standard_input())
    if _SCHEME.match(place) and not place.startswith("file://"):
        return _from_store(place, options)
    path = unquote(urlsplit(place).path) if place.startswith("file://") else place
    return InspectedObject(path, _from_file(Path(path)))


def split_key(url: str) -> tuple[str, str]:
    """The address of a store and a key in it, from the address of an object."""
    parts = urlsplit(url)
    root, _, key = parts.path.rpartition("/")
    if not key:
        raise BadUrl(f"{url} is the address of a store or a folder: name an object in it")
    return urlunsplit(parts._replace(path=root)), key


def _from_store(url: str, options: list[str]) -> InspectedObject:
    root, key = split_key(url)
    store = open_with_options(root, options)

    async def read() -> bytes:
        async with store:
            try:
                meta = await store.head(key)
                _check_size(meta.size_bytes)
                return bytes((await store.get(key)).data)
            except NotFound:
                raise NotFound(f"{url} does not exist") from None

    return InspectedObject(urlsplit(url).path, run_loop(read()))


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(READ_MAX_BYTES + 1)
    except FileNotFoundError:
        raise Refused(f"there is no file {path}") from None
    except IsADirectoryError:
        raise Refused(f"{path} is a directory: name a file in it") from None
    except PermissionError:
        raise Denied(f"{path} may not be read") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    _check_size(len(data))
    return data


def _from_standard_input() -> bytes:
    if sys.stdin.isatty():
        raise Refused(
            "nothing to inspect: name a file or the address of an object, or send its bytes, or "
            "their hexadecimal digits, to standard input"
        )
    check_input()
    data = sys.stdin.buffer.read(READ_MAX_BYTES + 1)
    _check_size(len(data))
    if not data:
        raise Refused("standard input was empty: check the command that should send the bytes")
    digits = b"".join(data.split()).removeprefix(b"0x")
    if not digits or not _HEX.fullmatch(digits):
        return data
    if len(digits) % 2:
        raise Refused(f"{len(digits):,} hexadecimal digits are not whole bytes: one is missing")
    return bytes.fromhex(digits.decode("ascii"))


def _check_size(size_bytes: int) -> None:
    if size_bytes > READ_MAX_BYTES:
        raise LimitExceeded(
            f"{size_bytes:,} bytes or more: no object of the buffer is larger than "
            f"{READ_MAX_BYTES:,}"
        )


class ObjectFormat(NamedTuple):
    """What an object is, and which word after `inspect` shows it, if any does."""

    what: str
    word: str = ""


_BEGINNINGS: Final[dict[bytes, ObjectFormat]] = {
    b"HWB1": ObjectFormat("a native batch", "batch"),
    b"HWC": ObjectFormat("a chunk of a native queue", "queue"),
    b"HWA1": ObjectFormat("a segment of acknowledged entries of a published v1 queue", "queue"),
    b'{"register":': ObjectFormat("a register", "queue"),
    b'{"dead_letter":': ObjectFormat("a dead letter, which is JSON and says itself what it tells"),
    b"RDLW": ObjectFormat("a segment of a log", "wal"),
    b"HWE1": ObjectFormat("an event of the tier's log", "event"),
    b"HWT1": ObjectFormat("a snapshot of the tier's events", "event"),
    b"HWX1": ObjectFormat("the index of a segment of a log, which is made again when it is gone"),
    b"PAR1": ObjectFormat("a Parquet file"),
    b"ARROW1": ObjectFormat("an Arrow file"),
}


def recognise(data: bytes) -> ObjectFormat | None:
    """What these bytes look like; None if nothing is recognised."""
    from headwater.buffer.queue.v1 import batch_format, manifest_format
    from headwater.tier.event_codec import decode_event
    from headwater.tier.segments.seal import PARQUET_MAGIC, is_sealed

    if data.startswith(PARQUET_MAGIC) and is_sealed(data):
        return ObjectFormat("a segment of the tier", "segment")
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    with contextlib.suppress(HeadwaterError):
        manifest_format.decode_manifest(data)
        return ObjectFormat("a published v1 manifest", "manifest")
    with contextlib.suppress(HeadwaterError):
        batch_format.decode_batch(data)
        return ObjectFormat("a published v1 batch", "batch")
    with contextlib.suppress(HeadwaterError):
        decode_event(data)
        return ObjectFormat("a metadata event", "event")
    return None


def empty_object(what: str, title: str) -> InspectionReport:
    """The report of an object without bytes: Headwater writes none."""
    message = (
        f"it has no bytes: no {what} is written so, so it was cut off, or something else made it"
    )
    problem = Problem("length", message, None, advice_for(Corrupt("")), "Corrupt")
    return InspectionReport(title, size_bytes=0, problems=[problem])


class FailedCheck(NamedTuple):
    """A check that a reader makes and that an object fails."""

    check: str
    offset: int | None = None
    detail: str = ""


def failed_size(stated: int, size: int, check: FailedCheck) -> Iterator[FailedCheck]:
    """The check, with the difference, if an object does not have the size that it states."""
    missing = stated - size
    if missing:
        words = f"{missing:,} are missing" if missing > 0 else f"{-missing:,} are too many"
        yield check._replace(detail=f"{check.detail}, so {words}")


def failed_checksum(data: bytes, offset: int) -> Iterator[FailedCheck]:
    """The check, if the XXH3 of all before an offset is not the one that is there."""
    import xxhash

    stored = int.from_bytes(data[offset : offset + 8], "little")
    computed = xxhash.xxh3_64_intdigest(data[:offset])
    if stored != computed:
        detail = f"It is {stored:016x}, and that of the bytes is {computed:016x}"
        yield FailedCheck("checksum", offset, detail)


_PARTS: Final = {"queue": "part of a queue", "wal": "segment of a log", "event": "metadata event"}


def fail_as_other(report: InspectionReport, data: bytes, word: str) -> bool:
    """Report that these bytes are something else than what `inspect WORD` shows, if they are."""
    other = recognise(data)
    if other is None or other.word == word:
        return False
    advice = f"Use: {command()} inspect {other.word} …" if other.word else None
    message = f"this is not a {_PARTS.get(word, word)}: it looks like {other.what}"
    report.problems.append(Problem("kind", message, 0, advice, "Corrupt"))
    return True


def show_records(
    report: Report,
    records: pa.RecordBatch,
    shown: int,
    total: int,
    *,
    first_lsn: int | None = None,
) -> None:
    """Add the first records of so many, by their LSNs where those are known, or counted from 0."""
    if not shown or not records.num_rows:
        return
    from headwater.cli.read_output import python_values

    place = "record" if first_lsn is None else "_lsn"
    names, columns = records.schema.names, records.slice(0, shown).columns
    values = zip(*map(python_values, columns), strict=True)
    rows = [
        {place: number, **dict(zip(names, row, strict=True))}
        for number, row in enumerate(values, first_lsn or 0)
    ]
    report.table("first_records", rows, total, is_data=True)
