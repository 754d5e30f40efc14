"""What a store holds: every object below the address that has a checksum, read and compared.

    streams/…        retained batches, by the queue that names them: what `stream verify` reads
    the rest         registers, segments of the tier, metadata events and their snapshots: each by
                     itself, as `inspect` reads it

Chunks and manifests are read on the way to the batches, from the floor on. What stands below a
floor, and uploads that no queue names, is not read by anything: it is garbage, and is not checked.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from headwater.buffer.retained import BadBatch, Verified, verify_stream
from headwater.buffer.stream import open_stream, stream_names
from headwater.cli.doctor_checks import Finding, ok, wrong
from headwater.cli.inspection.event import inspect_event
from headwater.cli.inspection.register import inspect_register
from headwater.cli.inspection.segment import inspect_segment
from headwater.cli.inspection.source import READ_MAX_BYTES, InspectedObject
from headwater.cli.report import InspectionReport
from headwater.cli.stream_report import bad_words
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused
from headwater.store import Store

Progress = Callable[[str], None]
RESTORE: Final = "Stop writing there, keep a copy, and restore the object from a backup"

_CHECKED: Final[
    tuple[tuple[re.Pattern[str], Callable[[InspectedObject], InspectionReport]], ...]
] = (
    (
        re.compile(
            r"streams/[^/]+/(?!.*(?:^|/)dlq/).*\.json|metadata/(?:[0-9]+/)?(?:log|floor)\.json"
        ),
        lambda source: inspect_register(source, entries=1),
    ),
    (
        re.compile(r"streams/[^/]+/[0-9]+/segments/.*\.parquet"),
        lambda source: inspect_segment(source, records=0),
    ),
    (re.compile(r"metadata/[0-9]+/(?:[0-9]{20}|snapshot-.*)"), inspect_event),
)


class BadObject(msgspec.Struct, frozen=True):
    """An object that is not what was written."""

    key: str
    kind: str
    cause: str


class Contents(msgspec.Struct):
    """What was read of a store, and what could not be."""

    streams: dict[str, Verified] = {}
    objects: int = 0
    """Registers, segments and events."""
    size_bytes: int = 0
    """Of these."""
    bad: list[BadObject] = []


async def check_contents(
    store: Store, contents: Contents, progress: Progress = lambda _: None
) -> AsyncIterator[Finding]:
    """Read everything; a finding for each stream, each damaged object, and the rest together.

    `contents` is filled on the way.
    """
    try:
        for name in await stream_names(store):
            async for finding in _check_stream(store, name, contents, progress):
                yield finding
        async for finding in _check_objects(store, contents, progress):
            yield finding
    except HeadwaterError as error:
        words = f"{type(error).__name__}: {error}"
        yield wrong("contents", f"not read to the end: {words}", "mend that, and verify again")


async def _check_stream(
    store: Store, name: str, contents: Contents, progress: Progress
) -> AsyncIterator[Finding]:
    about = f"contents of {name}"

    def advance(found: Verified) -> None:
        progress(f"stream {name}: {found.batches:,} batches, {found.size_bytes:,} bytes")

    try:
        found = await verify_stream(await open_stream(store, name), progress=advance)
    except NotFound:
        return  # deleted
    except (Damaged, Refused) as error:
        words = f"{type(error).__name__}: {error}"
        yield wrong(about, words, f"headwater stream describe URL {name} says more")
        return
    contents.streams[name] = found
    for bad in found.bad:
        yield wrong(about, bad_words(bad), _cure(name, bad))
    if not found.bad:
        read = f"{found.batches:,} batches, {found.records:,} records, {found.size_bytes:,} bytes"
        yield ok(about, f"every checksum matches: {read}")


def _cure(name: str, bad: BadBatch) -> str:
    if bad.sequence is None:
        return f"{RESTORE}; headwater inspect queue URL --stream {name} says more"
    return f"{RESTORE}; headwater read URL {name} --skip-unreadable reads the rest"


async def _check_objects(
    store: Store, contents: Contents, progress: Progress
) -> AsyncIterator[Finding]:
    async for meta in store.list():
        inspect = next((how for names, how in _CHECKED if names.fullmatch(meta.key)), None)
        if inspect is None:
            continue
        progress(f"{contents.objects:,} registers, segments and events")
        try:
            bad = await _check_object(store, meta.key, meta.size_bytes, inspect)
        except NotFound:
            continue  # deleted since it was listed
        contents.objects += 1
        contents.size_bytes += meta.size_bytes
        if bad is not None:
            contents.bad.append(bad)
            yield wrong("contents", f"{bad.key}: {bad.cause}", RESTORE)
    if not contents.bad:
        read = f"{contents.objects:,} registers, segments and events"
        yield ok("contents", f"every checksum matches: {read}, {contents.size_bytes:,} bytes")


async def _check_object(
    store: Store, key: str, size_bytes: int, inspect: Callable[[InspectedObject], InspectionReport]
) -> BadObject | None:
    if size_bytes > READ_MAX_BYTES:
        return BadObject(key, "unknown", f"it has {size_bytes:,} bytes: Headwater writes none such")
    data = bytes((await store.get(key)).data)
    report = await runtime.run_blocking(inspect, InspectedObject(key, data))
    if report.is_good:
        return None
    return BadObject(key, report.title, "; ".join(one.message for one in report.problems))
