"""`headwater doctor`: checks this machine and a store, and says how to repair them."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import typer

from headwater.cli import doctor_checks
from headwater.cli.advice import address, command
from headwater.cli.options import AS_JSON, OPTION, open_with_options
from headwater.cli.render import Progress, conclude, show
from headwater.cli.report import Report
from headwater.cli.terminal import run_loop
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused

if TYPE_CHECKING:
    from headwater.buffer.retained import BadBatch, Verified
    from headwater.cli.inspect_command import InspectedObject
    from headwater.cli.report import InspectionReport
    from headwater.store import Store


def doctor(
    url: str | None = typer.Argument(
        None, metavar="URL", help="A store to check as well: file:///path, s3://bucket/prefix"
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Read everything in the store, and compare every checksum."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Check this machine, and a store if given, and say how to repair what is wrong.

    Writes a little below one new folder of the store and removes it. With --verify it also reads
    every batch, register, segment and event there. Exit status: 0 if nothing is wrong, 1 if
    something is.
    """
    if verify and url is None:
        raise typer.BadParameter("name the store to read", param_hint="--verify")
    contents = Contents() if verify else None
    # Before anything is shown: an address that is refused may hold a credential.
    store = None if url is None else open_with_options(url, option)
    findings: list[doctor_checks.Finding] = []
    for found in _findings(store, url, contents):
        finding = dataclasses.replace(found, cure=_as_typed(found.cure))
        findings.append(finding)
        if not as_json:
            show(finding.describe())
    wrong = sum(finding.status == "wrong" for finding in findings)
    report = Report(f"{wrong} to repair" if wrong else "nothing is wrong")
    report.record = {"well": not wrong, "findings": findings}
    if contents is not None:
        report.record["verified"] = contents
    conclude(report, good=not wrong, as_json=as_json)


def _as_typed(cure: str) -> str:
    """A cure with the commands as the user would type them from here."""
    words = re.sub(r"\bheadwater (?=store|stream|inspect)", f"{command()} ", cure)
    return words.replace(" URL", f" {address()}")


def _findings(
    store: Store | None, url: str | None, contents: Contents | None
) -> Iterator[doctor_checks.Finding]:
    yield doctor_checks.check_python(tuple(sys.version_info[:3]))
    yield from doctor_checks.check_packages(installed_version)
    if importlib.util.find_spec("pyspark") is not None:
        yield from _spark()
    folder = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    yield doctor_checks.check_space("disk", folder, shutil.disk_usage(folder.split(",")[0]).free)
    if store is not None and url is not None:
        yield from _store_findings(store, urlsplit(url).scheme, contents)


def installed_version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _spark() -> Iterator[doctor_checks.Finding]:
    from headwater.spark import java

    javas = ((one, java.inspect(one)[0]) for _, one in java.candidates(os.environ))
    yield doctor_checks.check_java(javas, java.packaged(), java.OLDEST, java.ADVICE)
    yield doctor_checks.check_workers(os.environ)
    yield doctor_checks.check_settings(os.environ, _spark_defaults())


def _spark_defaults() -> str:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    path = Path(folder, "spark-defaults.conf") if folder else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _jars() -> list[str]:
    home = os.environ.get("SPARK_HOME")
    found = importlib.util.find_spec("pyspark")
    parents = [home] if home else list((found and found.submodule_search_locations) or [])
    return [jar.name for parent in parents for jar in Path(parent, "jars").glob("*.jar")]


def _store_findings(
    store: Store, scheme: str, contents: Contents | None
) -> Iterator[doctor_checks.Finding]:
    yield doctor_checks.check_credentials(scheme, os.environ)
    if scheme == "s3" and importlib.util.find_spec("pyspark") is not None:
        yield doctor_checks.check_s3_jars(_jars())

    async def look() -> list[doctor_checks.Finding]:
        async with store:
            found = [finding async for finding in doctor_checks.check_reach_and_streams(store)]
            if contents is not None and found[0].status != "wrong":
                with Progress() as progress:
                    found += [one async for one in check_contents(store, contents, progress)]
            return found

    yield from run_loop(look())


RESTORE: Final = "Stop writing there, keep a copy, and restore the object from a backup"

_CHECKED: Final = (
    (
        "register",
        re.compile(
            r"streams/[^/]+/(?!.*(?:^|/)dlq/).*\.json|metadata/(?:[0-9]+/)?(?:log|floor)\.json"
        ),
    ),
    ("segment", re.compile(r"streams/[^/]+/[0-9]+/segments/.*\.parquet")),
    ("event", re.compile(r"metadata/[0-9]+/(?:[0-9]{20}|snapshot-.*)")),
)
"""What an object is, by its key: each is read by itself, as `inspect` reads it."""


@dataclass(frozen=True, slots=True)
class BadObject:
    """An object that is not what was written."""

    key: str
    kind: str
    cause: str


@dataclass(slots=True)
class Contents:
    """What was read of a store, and what could not be."""

    streams: dict[str, Verified] = field(default_factory=dict)
    objects: int = 0
    """Registers, segments and events."""
    size_bytes: int = 0
    """Of these."""
    bad: list[BadObject] = field(default_factory=list)


async def check_contents(
    store: Store, contents: Contents, progress: Progress
) -> AsyncIterator[doctor_checks.Finding]:
    """Read everything; a finding for each stream, each damaged object, and the rest together.

    `contents` is filled on the way. Chunks and manifests are read on the way to the batches, from
    the floor on. What is below a floor, and uploads that no queue names, is garbage: it is not
    checked.
    """
    from headwater.buffer.stream import stream_names

    try:
        for name in await stream_names(store):
            async for finding in _verify_stream(store, name, contents, progress):
                yield finding
        async for finding in _verify_objects(store, contents, progress):
            yield finding
    except HeadwaterError as error:
        words = f"{type(error).__name__}: {error}"
        yield doctor_checks.wrong(
            "contents", f"not read to the end: {words}", "repair that, and verify again"
        )


async def _verify_stream(
    store: Store, name: str, contents: Contents, progress: Progress
) -> AsyncIterator[doctor_checks.Finding]:
    from headwater.buffer.retained import verify_stream
    from headwater.buffer.stream import open_stream
    from headwater.cli.stream_report import bad_words

    about = f"contents of {name}"

    def advance(found: Verified) -> None:
        unit = f"batches, {found.size_bytes:,} bytes"
        progress.show(f"stream {name}", found.batches, unit=unit)

    try:
        found = await verify_stream(await open_stream(store, name), progress=advance)
    except NotFound:
        return  # deleted
    except (Damaged, Refused) as error:
        yield doctor_checks.failed(about, error, f"headwater stream describe URL {name} says more")
        return
    contents.streams[name] = found
    for bad in found.bad:
        yield doctor_checks.wrong(about, bad_words(bad), _cure(name, bad))
    if not found.bad:
        read = f"{found.batches:,} batches, {found.records:,} records, {found.size_bytes:,} bytes"
        yield doctor_checks.ok(about, f"every checksum matches: {read}")


def _cure(name: str, bad: BadBatch) -> str:
    if bad.sequence is None:
        return f"{RESTORE}; headwater inspect queue URL --stream {name} says more"
    return f"{RESTORE}; headwater read URL {name} --skip-unreadable reads the rest"


async def _verify_objects(
    store: Store, contents: Contents, progress: Progress
) -> AsyncIterator[doctor_checks.Finding]:
    async for meta in store.list():
        kind = next((kind for kind, keys in _CHECKED if keys.fullmatch(meta.key)), None)
        if kind is None:
            continue
        progress.show("objects", contents.objects, unit="registers, segments and events")
        try:
            bad = await _verify_object(store, meta.key, meta.size_bytes, kind)
        except NotFound:
            continue  # deleted since it was listed
        contents.objects += 1
        contents.size_bytes += meta.size_bytes
        if bad is not None:
            contents.bad.append(bad)
            yield doctor_checks.wrong("contents", f"{bad.key}: {bad.cause}", RESTORE)
    if not contents.bad:
        read = f"{contents.objects:,} registers, segments and events"
        yield doctor_checks.ok(
            "contents", f"every checksum matches: {read}, {contents.size_bytes:,} bytes"
        )


async def _verify_object(store: Store, key: str, size_bytes: int, kind: str) -> BadObject | None:
    from headwater.cli.inspect_command import READ_MAX_BYTES, InspectedObject

    if size_bytes > READ_MAX_BYTES:
        return BadObject(key, "unknown", f"it has {size_bytes:,} bytes: Headwater writes none such")
    source = InspectedObject(key, bytes((await store.get(key)).data))
    report = await runtime.run_blocking(_inspect, kind, source)
    if report.is_good:
        return None
    return BadObject(key, report.title, "; ".join(one.message for one in report.problems))


def _inspect(kind: str, source: InspectedObject) -> InspectionReport:
    if kind == "register":
        from headwater.cli.inspect_register import describe_register

        return describe_register(source, entries=1)
    if kind == "segment":
        from headwater.cli.inspect_segment import describe_segment

        return describe_segment(source, records=0)
    from headwater.cli.inspect_event import describe_event

    return describe_event(source)
