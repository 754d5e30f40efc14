"""Environments of their own for other versions of Spark: everything else as it is pinned here."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from tests.interop.cache import REPO, install_once, require_tool, run_installer

SPARK_4_1 = "4.1.4"
"""The newest on which Iceberg's own runtime works."""
SPARK_4_2 = "4.2.1"
"""The newest on which Delta's own runtime works."""

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

TEST_TOOLS = ("hypothesis", "ministack", "pytest", "pytest-cov")
_OF_SPARK = ("py4j", "pyspark")
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==[^\\]+")


def python_with_spark(version: str) -> Path:
    """The interpreter of an environment with this Spark; the project itself is not in it.

    Raises Unavailable.
    """
    pinned = {**pins("dev"), **pins("spark")}
    asked = [*pins("spark"), *TEST_TOOLS]
    lines = [
        f"pyspark=={version}",
        *sorted(pinned[name] for name in asked if name not in _OF_SPARK),
    ]
    constraints = sorted(line for name, line in pinned.items() if name not in _OF_SPARK)

    def build(folder: Path) -> None:
        (folder / "requirements.txt").write_text("\n".join(lines))
        (folder / "constraints.txt").write_text("\n".join(constraints))
        run_installer([sys.executable, "-m", "venv", "env"], folder, {})
        command = ["env/bin/python", "-m", "pip", "install", "--quiet"]
        command += ["--disable-pip-version-check", "-r", "requirements.txt"]
        run_installer([*command, "-c", "constraints.txt"], folder, {})

    # An environment does not survive being moved, and belongs to the Python that made it.
    known = "\n".join([*lines, *constraints, sys.version, str(REPO)])
    pin = f"{version} {hashlib.sha256(known.encode()).hexdigest()}"
    return install_once(f"pyspark-{version}", pin, "env/bin/python", build)


def iceberg_runtime() -> Path:
    """The jar with which Spark 4.1 reads Iceberg tables by itself. Raises Unavailable."""

    def build(folder: Path) -> None:
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
        command = [require_tool("mvn"), "-q", "-B", goal, f"-Dartifact={ICEBERG_RUNTIME}"]
        options = [f"-DoutputDirectory={folder}", "-Dmdep.stripVersion=true"]
        run_installer([*command, *options], folder, {})

    artifact = ICEBERG_RUNTIME.split(":")[1]
    return install_once("iceberg-runtime", ICEBERG_RUNTIME, f"{artifact}.jar", build)


def pins(name: str) -> dict[str, str]:
    """The lines of a pin set by package, without their hashes."""
    text = (REPO / "requirements" / f"{name}.txt").read_text()
    found = [match for line in text.splitlines() if (match := _PIN.match(line))]
    # A package may be pinned twice, for different Pythons.
    lines: dict[str, str] = {}
    for match in found:
        line = match.group(0).strip()
        lines[match["name"]] = "\n".join(filter(None, [lines.get(match["name"]), line]))
    return lines
