"""Check who imports whom, and who touches the outside world.

The packages of `headwater` have a fixed order and each imports only those before it, so that any
package can be read, tested and simulated without the ones above. Libraries that reach outside have
one package each. The clock, randomness, tasks and threads belong to `core`: everything above asks
the seam, and that is what makes the simulator run the real code.

Imports inside functions and under TYPE_CHECKING count: a layer that is only crossed at run time, or
only for its types, is crossed all the same.

    python scripts/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT_PACKAGE = "headwater"
PACKAGES = (
    "core",
    "store",
    "buffer",
    "coordinator",
    "log",
    "tier",
    "table",
    "node",
    "spark",
    "server",
    "cli",
)
TESTING = "testing"
PLUGIN = "pyspark_headwater"
"""The package whose name makes Spark find the data source: a door to `spark` alone."""

LIBRARY_PACKAGES = {
    "confluent_kafka": ("tier",),
    "obstore": ("store",),
    "pyiceberg": ("table", "spark"),
    "pyspark": ("spark", PLUGIN),
}
"""A library that reaches outside, and the only places that import it."""

_CLOCK = "the clock is core's: under the simulator time is virtual"
_SLEEP = "sleeping is core's: under the simulator nothing waits for real time"
_RANDOM = "randomness is core's: a seed must replay the same history"
_TASKS = "spawning tasks is core's: the simulator must schedule every one of them"
_THREADS = "threads are core's: the simulator runs blocking work inline at a scheduled instant"

BANNED = {
    "asyncio.create_task": _TASKS,
    "asyncio.ensure_future": _TASKS,
    "asyncio.run": _TASKS,
    "asyncio.run_coroutine_threadsafe": _THREADS,
    "asyncio.sleep": _SLEEP,
    "asyncio.to_thread": _THREADS,
    "concurrent.futures.ProcessPoolExecutor": _THREADS,
    "concurrent.futures.ThreadPoolExecutor": _THREADS,
    "datetime.date.today": _CLOCK,
    "datetime.datetime.now": _CLOCK,
    "datetime.datetime.today": _CLOCK,
    "datetime.datetime.utcnow": _CLOCK,
    "multiprocessing": _THREADS,
    "os.getrandom": _RANDOM,
    "os.urandom": _RANDOM,
    "random": _RANDOM,
    "secrets": _RANDOM,
    "threading.Thread": _THREADS,
    "threading.Timer": _THREADS,
    "time.gmtime": _CLOCK,
    "time.localtime": _CLOCK,
    "time.monotonic": _CLOCK,
    "time.monotonic_ns": _CLOCK,
    "time.perf_counter": _CLOCK,
    "time.perf_counter_ns": _CLOCK,
    "time.sleep": _SLEEP,
    "time.time": _CLOCK,
    "time.time_ns": _CLOCK,
    "uuid.uuid1": _RANDOM,
    "uuid.uuid4": _RANDOM,
}
"""A name only `core` may use, and why. A module's name bans everything in it."""

BANNED_METHODS = {"run_in_executor": _THREADS}
"""Banned on whatever object they are called: the receiver's type is not visible here."""

ALLOWED: dict[str, dict[str, str]] = {
    "cli": {
        "asyncio.run": "a command is where an event loop starts",
    },
    TESTING: {
        "asyncio.create_task": "the simulator is what schedules tasks",
        "asyncio.run": "the simulator and the crash harness start event loops of their own",
        "multiprocessing": "the crash harness kills real processes",
        "random": "a seeded random.Random is the simulator's only source of choice",
        "time.monotonic": "the crash harness bounds how long it waits for a real process",
    },
}
"""Package → name → the reason why this package may use it."""

TOP_LEVEL = "top level"
TOP_LEVEL_FILES = (
    "__init__.py",
    "__main__.py",
    "blocking.py",
    "lazy_exports.py",
    "metrics.py",
    "version.py",
)
EXPORTS = "lazy_exports"
"""How a package loads its exports when they are used: it imports no package."""
TOP_LEVEL_USERS = ("cli", TESTING, TOP_LEVEL)
"""Everybody else names the package: the top level imports them all, so importing it climbs."""

Finding = tuple[int, str]


def check(root: Path) -> list[str]:
    """All broken rules under `root`/src as `path:line: reason`, in the order of the files."""
    source = root / "src"
    found: list[str] = []
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        findings = dict.fromkeys(_findings(relative, tree))
        found += [f"src/{relative.as_posix()}:{line}: {why}" for line, why in sorted(findings)]
    return found


def _findings(relative: Path, tree: ast.Module) -> Iterator[Finding]:
    package = _package_of(relative)
    if package is None:
        yield 1, f"no such package: {ROOT_PACKAGE} has {', '.join(PACKAGES)} and {TESTING}"
        return
    imports = list(_imports(relative, tree))
    for line, name in imports:
        why = _import_reason(package, name)
        if why:
            yield line, why
    if package != "core":
        for line, name in [*imports, *_attributes(tree)]:
            why = _use_reason(package, name)
            if why:
                yield line, why


def _package_of(relative: Path) -> str | None:
    parts = relative.parts
    if parts[0] == PLUGIN:
        return PLUGIN
    if parts[0] != ROOT_PACKAGE:
        return None
    if len(parts) == 2:
        return TOP_LEVEL if parts[1] in TOP_LEVEL_FILES else None
    return parts[1] if parts[1] in (*PACKAGES, TESTING) else None


def _imports(relative: Path, tree: ast.Module) -> Iterator[Finding]:
    """Line and full dotted name of everything imported, wherever in the file it stands."""
    package = relative.parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                climbed = package[: len(package) - node.level + 1]
                base = ".".join([*climbed, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _attributes(tree: ast.Module) -> Iterator[Finding]:
    """Line and dotted name of every attribute read, with import aliases undone."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, _dotted(node, bound)


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    """The dotted name of an attribute; `?` stands for a receiver that is not an imported name."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, bound)}.{node.attr}"
    if isinstance(node, ast.Name):
        return bound.get(node.id, "?")
    return "?"


def _import_reason(package: str, name: str) -> str | None:
    library, *rest = name.split(".")
    if library in LIBRARY_PACKAGES and package not in LIBRARY_PACKAGES[library]:
        return f"{library} is imported only in {' and '.join(LIBRARY_PACKAGES[library])}"
    if library != ROOT_PACKAGE:
        return None
    other = rest[0] if rest else ""
    if other == TESTING:
        return None if package == TESTING else f"nothing in src imports {ROOT_PACKAGE}.{TESTING}"
    if package in (TESTING, TOP_LEVEL) or other == EXPORTS:
        return None
    if package == PLUGIN:
        return None if other == "spark" else f"{PLUGIN} is a door to spark alone"
    if other not in PACKAGES:
        if package in TOP_LEVEL_USERS:
            return None
        return f"{package} imports the top level, which imports every package"
    if PACKAGES.index(other) > PACKAGES.index(package):
        return f"{package} imports {other}, which stands above it"
    return None


def _use_reason(package: str, name: str) -> str | None:
    method = name.rpartition(".")[2]
    if method in BANNED_METHODS:
        return f"{method}: {BANNED_METHODS[method]}"
    for banned, why in BANNED.items():
        if name == banned or name.startswith(f"{banned}."):
            return None if banned in ALLOWED.get(package, {}) else f"{banned}: {why}"
    return None


def main(arguments: list[str]) -> int:
    """Print what is broken; 1 if anything is."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = check(root)
    for line in found:
        print(line)
    if found:
        print(f"layers: {len(found)} broken; the rule is in CONTRIBUTING.md", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
