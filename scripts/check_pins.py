"""Prove that every pin set is closed: it holds all that its pins require.

The sets are installed with `--no-deps`. An installer that resolves dependencies asks the index even
if everything is pinned: pip looks up a requirement that names an extra, finds a release newer than
the pin, and refuses the whole set. A closed set needs no resolving: later releases change nothing.
The price is that a missing pin would show as an import error, which this check prevents.

What a pinned distribution requires is in its metadata. `make pins` copies it to
`requirements/requires.json`, so that `make check` needs no network and covers the sets that are not
installed. Copies of installed distributions are compared with the installed metadata.

    python scripts/check_pins.py             check every set
    python scripts/check_pins.py --record    read the metadata of all pins from the index (uses uv)
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PYTHON_VERSIONS = tuple(f"3.{minor}.{patch}" for minor in (11, 12, 13, 14) for patch in (0, 99))
"""The first and a late patch: `python_full_version < "3.11.3"` tells them apart."""
PLATFORMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "x86_64"),
    ("darwin", "Darwin", "arm64"),
)

SET_INPUTS: dict[str, tuple[str, ...]] = {
    "all": ("pyproject.toml[*]", "all.in", "build.in"),
    "base": ("pyproject.toml",),
    "build": ("build.in",),
    "dev": ("pyproject.toml[dev]",),
    "spark": ("pyproject.toml[demo]",),
    "java": ("java.in",),
    "interop": ("interop.in",),
    "peers": ("peers.in",),
}
"""Pin set → what it was compiled from: files of `requirements`, or the project with extras."""

RECORD = "requirements/requires.json"

parse = functools.cache(Requirement)
"""The same lines are met for every set and machine."""


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    marker: Marker | None
    hashes: int

    @property
    def release(self) -> str:
        return f"{self.name}=={self.version}"

    def applies(self, environment: dict[str, str]) -> bool:
        return self.marker is None or self.marker.evaluate(environment)


def environments() -> Iterator[dict[str, str]]:
    """Every machine that the pins are made for."""
    for python in PYTHON_VERSIONS:
        for platform, system, machine in PLATFORMS:
            yield {
                **{key: str(value) for key, value in default_environment().items()},
                "python_full_version": python,
                "python_version": ".".join(python.split(".")[:2]),
                "implementation_version": python,
                "sys_platform": platform,
                "platform_system": system,
                "platform_machine": machine,
            }


def read_pins(path: Path) -> list[Pin]:
    logical_lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    pins = []
    for line in logical_lines:
        text, *hashes = line.split("--hash=")
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        try:
            requirement = Requirement(text.strip())
            (specifier,) = requirement.specifier
        except ValueError:
            raise _not_exact(path, text) from None
        is_exact = specifier.operator == "==" and not specifier.version.endswith(".*")
        if not is_exact or requirement.extras:
            raise _not_exact(path, text)
        name = canonicalize_name(requirement.name)
        pins.append(Pin(name, specifier.version, requirement.marker, len(hashes)))
    return pins


def _not_exact(path: Path, line: str) -> SystemExit:
    return SystemExit(f"{path}: {line.strip()!r} is not one exact version")


def read_inputs(root: Path, inputs: Iterable[str]) -> list[Requirement]:
    """What a set is there for; the project's extras that name other extras of it are followed."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    lines: list[str] = []
    for given in inputs:
        if not given.startswith("pyproject.toml"):
            text = (root / "requirements" / given).read_text(encoding="utf-8")
            lines += [line for line in text.splitlines() if line and not line.startswith("#")]
            continue
        lines += project["dependencies"]
        wanted = given.removeprefix("pyproject.toml").strip("[]")
        open_extras = list(extras) if wanted == "*" else [wanted] if wanted else []
        seen: set[str] = set()
        while open_extras:
            extra = open_extras.pop()
            if extra in seen:
                continue
            seen.add(extra)
            for line in extras[extra]:
                requirement = Requirement(line)
                if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
                    open_extras += requirement.extras
                else:
                    lines.append(line)
    return [Requirement(line) for line in lines]


def unmet(
    pins: dict[str, Pin],
    inputs: list[Requirement],
    requires: dict[str, list[str]],
    environment: dict[str, str],
) -> Iterator[str]:
    """Each requirement that no pin of the set meets, extras followed as far as they go."""
    work = [("the set's own input", requirement, "") for requirement in inputs]
    for pin in pins.values():
        work += [(pin.release, parse(line), "") for line in requires.get(pin.release, ())]
    opened: set[tuple[str, str]] = set()
    while work:
        source, requirement, extra = work.pop()
        scope = {**environment, "extra": extra}
        if requirement.marker is not None and not requirement.marker.evaluate(scope):
            continue
        found = pins.get(canonicalize_name(requirement.name))
        if found is None:
            yield f"{source} requires {requirement}, and nothing pins {requirement.name}"
            continue
        if not requirement.specifier.contains(Version(found.version), prereleases=True):
            yield f"{source} requires {requirement}, and the pin is {found.release}"
            continue
        for wanted in requirement.extras:
            if (found.name, wanted) not in opened:
                opened.add((found.name, wanted))
                lines = requires.get(found.release, ())
                work += [(f"{found.release}[{wanted}]", parse(x), wanted) for x in lines]


def clashes(sets: dict[str, list[Pin]], environment: dict[str, str]) -> Iterator[str]:
    """Each distribution that one machine would get in two versions, of one set or of two.

    Sets are installed beside each other: one that pins another version would replace what a set
    before it needs.
    """
    seen: dict[str, tuple[str, Pin]] = {}
    for name, pins in sets.items():
        for pin in pins:
            if not pin.applies(environment):
                continue
            first, other = seen.setdefault(pin.name, (name, pin))
            if other is not pin and (first == name or other.version != pin.version):
                yield f"{name}.txt: {pin.release} beside {other.release} of {first}.txt"


def check(root: Path, sets: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    sets = SET_INPUTS if sets is None else sets
    requires: dict[str, list[str]] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    findings: list[str] = []
    known: set[str] = set()
    files = {path.stem for path in (root / "requirements").glob("*.txt")}
    for name in sorted(files ^ set(sets)):
        findings.append(
            f"requirements/{name}.txt: SET_INPUTS of {Path(__file__).name} and the files differ"
        )
    folder = root / "requirements"
    pinned = {name: read_pins(folder / f"{name}.txt") for name in sorted(files & set(sets))}
    for environment in environments():
        findings += clashes(pinned, environment)
    for name, pins in pinned.items():
        path = folder / f"{name}.txt"
        wanted = read_inputs(root, sets[name])
        findings += [f"{path.name}: {pin.release} has no hash" for pin in pins if not pin.hashes]
        for environment in environments():
            here = {pin.name: pin for pin in pins if pin.applies(environment)}
            known |= {pin.release for pin in here.values()}
            findings += [
                f"{path.name}: {RECORD} knows nothing of {pin.release}"
                for pin in here.values()
                if pin.release not in requires
            ]
            where = (
                f"{environment['sys_platform']} {environment['platform_machine']}, "
                f"Python {environment['python_full_version']}"
            )
            findings += [
                f"{path.name}: {problem} ({where})"
                for problem in unmet(here, wanted, requires, environment)
            ]
    findings += [
        f"{RECORD}: {release} is pinned nowhere" for release in sorted(set(requires) - known)
    ]
    return list(dict.fromkeys(findings))


def compare_with_installed(root: Path) -> list[str]:
    """Where the recorded metadata is not that of the distribution installed here."""
    requires: dict[str, list[str]] = json.loads((root / RECORD).read_text(encoding="utf-8"))
    findings = []
    for installed in importlib.metadata.distributions():
        release = f"{canonicalize_name(installed.name)}=={installed.version}"
        recorded = requires.get(release)
        if recorded is not None and sorted(recorded) != sorted(installed.requires or ()):
            findings.append(
                f"{RECORD}: {release} requires something else in its installed metadata"
            )
    return findings


def record(root: Path) -> None:
    """Read what each pinned release requires, by installing it without its dependencies."""
    pins = {
        pin.release: pin
        for path in sorted((root / "requirements").glob("*.txt"))
        for pin in read_pins(path)
    }
    requires: dict[str, list[str]] = {}
    uv = Path(sys.executable).with_name("uv")
    for environment in environments():
        missing = [p for p in pins.values() if p.applies(environment) and p.release not in requires]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", folder]
            command += ["--python", sys.executable]
            command += ["--python-version", environment["python_full_version"]]
            subprocess.run([*command, *(pin.release for pin in missing)], check=True)
            for installed in importlib.metadata.distributions(path=[folder]):
                release = f"{canonicalize_name(installed.name)}=={installed.version}"
                requires[release] = sorted(installed.requires or ())
    text = json.dumps(dict(sorted(requires.items())), indent=1, ensure_ascii=False)
    (root / RECORD).write_text(text + "\n", encoding="utf-8")


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    if sys.argv[1:] == ["--record"]:
        record(root)
    findings = check(root) + compare_with_installed(root)
    for finding in findings:
        print(finding)
    if findings:
        print("→ make pins compiles the sets and reads their metadata again")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
