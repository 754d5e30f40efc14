"""`headwater doctor`: what is wrong here, and how to mend it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from headwater.cli.advice import EXIT_NO, address, command
from headwater.cli.options import AS_JSON, OPTION, open_with_options
from headwater.cli.render import Progress, show
from headwater.cli.report import Report
from headwater.cli.terminal import run_loop

if TYPE_CHECKING:
    from headwater.cli.doctor_checks import Finding
    from headwater.cli.doctor_contents import Contents
    from headwater.store import Store


def doctor(
    url: str | None = typer.Argument(
        None, metavar="URL", help="A store to look at as well: file:///path, s3://bucket/prefix"
    ),
    verify: bool = typer.Option(
        False, "--verify", help="Read all that the store holds, and compare every checksum."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Find out what is wrong with this machine and a store, and how to mend it.

    Writes a little below one fresh folder of the store and removes it. With --verify it also reads
    every batch, register, segment and event there. Exit status: 0 if nothing is wrong, 1 if
    something is.
    """
    import msgspec

    from headwater.cli.doctor_contents import Contents

    if verify and url is None:
        raise typer.BadParameter("name the store to read", param_hint="--verify")
    contents = Contents() if verify else None
    # Before anything is shown: an address that is refused may hold a credential.
    store = None if url is None else open_with_options(url, option)
    findings: list[Finding] = []
    for found in _everything(store, url, contents):
        finding = msgspec.structs.replace(found, cure=_as_typed(found.cure))
        findings.append(finding)
        if not as_json:
            show(finding.describe())
    wrong = sum(finding.status == "wrong" for finding in findings)
    report = Report(f"{wrong} to mend" if wrong else "nothing is wrong")
    report.record = {"well": not wrong, "findings": findings}
    if contents is not None:
        report.record["verified"] = contents
    show(report, as_json=as_json)
    if wrong:
        raise typer.Exit(EXIT_NO)


def _as_typed(cure: str) -> str:
    """A cure with the commands as the user would type them from here."""
    words = re.sub(r"\bheadwater (?=store|stream|inspect)", f"{command()} ", cure)
    return words.replace(" URL", f" {address()}")


def _everything(
    store: Store | None, url: str | None, contents: Contents | None
) -> Iterator[Finding]:
    from headwater.cli import doctor_checks

    yield doctor_checks.check_python(tuple(sys.version_info[:3]))
    yield from doctor_checks.check_packages(_version_of)
    if importlib.util.find_spec("pyspark") is not None:
        yield from _spark()
    folder = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    yield doctor_checks.check_space("disk", folder, shutil.disk_usage(folder.split(",")[0]).free)
    if store is not None and url is not None:
        yield from _place(store, urlsplit(url).scheme, contents)


def _version_of(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _spark() -> Iterator[Finding]:
    from headwater.cli import doctor_checks
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


def _place(store: Store, scheme: str, contents: Contents | None) -> Iterator[Finding]:
    from headwater.cli import doctor_checks
    from headwater.cli.doctor_contents import check_contents

    yield doctor_checks.check_credentials(scheme, os.environ)
    if scheme == "s3" and importlib.util.find_spec("pyspark") is not None:
        yield doctor_checks.check_s3_jars(_jars())

    async def look() -> list[Finding]:
        async with store:
            found = [finding async for finding in doctor_checks.check_reach_and_streams(store)]
            if contents is not None and found[0].status != "wrong":
                with Progress() as progress:
                    found += [one async for one in check_contents(store, contents, progress.show)]
            return found

    yield from run_loop(look())
