"""Python, packages and disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headwater.cli.doctor.finding import Finding, note, ok, wrong
from headwater.core.limits import GIB

OLDEST_PYTHON: Final = (3, 11)
FREE_BYTES_MIN: Final = GIB
"""Spark spills and keeps checkpoints; less than this is soon gone."""

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
