"""Style as a check: what a reviewer should never have to say twice.

In `src`: files and functions of a readable size, packages whose `__init__.py` is a table of
contents, names from the field, each class name once, no swallowed errors, no unfinished words, no
prints. In every file of the repository: a final newline, no trailing blanks, and no words that
belong to one machine and not to the project.

    python scripts/tidy.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

FILE_LINES = 450
"""Past this, ask whether the file is two concepts; LONG_FILES names those that are not."""
FILE_LINES_HARD = 600
"""Past this there is no exception."""
FUNCTION_LINES = 70
"""A function fits a screen. Its docstring does not count: explaining more is never the offence."""

LONG_FILES: dict[str, str] = {
    "src/headwater/buffer/producer/sender.py": "a sender and its partitions are read together",
}
"""Path → why this file of more than FILE_LINES lines is still one thing."""

_VAGUE = "says nothing: name the concept"
_VERB = "is a participle: name what the module holds or what the class is, with a noun"
_FIGURE = "is a figure of speech: use the word that Kafka, Spark or PostgreSQL uses"
BANNED_NAMES = {
    **dict.fromkeys(("utils", "helpers", "common", "misc", "stuff"), _VAGUE),
    **dict.fromkeys(("place", "thing", "kind", "loose", "about"), _VAGUE),
    **dict.fromkeys(("asked", "found", "given", "kept", "known", "made", "said", "seen"), _VERB),
    **dict.fromkeys(("told", "taken", "wanted", "riding", "giving_up", "sole_work"), _VERB),
    **dict.fromkeys(("carrier", "desk", "flight", "gathering", "lane", "line", "parcel"), _FIGURE),
    **dict.fromkeys(("likeness", "setbacks", "stage", "voice", "whereabouts"), _FIGURE),
}
"""Names that no module and no class may have, with the reason. A reader who knows the field guesses
what `sender` holds and has to open `lane` to learn it."""
PRINTING_PACKAGES = ("src/headwater/cli/", "src/headwater/testing/")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")

_HOSTS = (
    ("pypi", "org"),
    ("files.pythonhosted", "org"),
    ("repo1.maven", "org"),
    ("repo.maven.apache", "org"),
    ("proxy.golang", "org"),
    ("sum.golang", "org"),
    ("registry.npmjs", "org"),
    ("index.crates", "io"),
    ("static.crates", "io"),
    ("rubygems", "org"),
    ("conda.anaconda", "org"),
    ("deb.debian", "org"),
    ("archive.ubuntu", "com"),
    ("ghcr", "io"),
)
FOREIGN = {
    "names a package registry: installers know their own": re.compile(
        "|".join(rf"\b{re.escape(name)}\.{top}\b" for name, top in _HOSTS)
    ),
    "names a path of one machine": re.compile(r"(?<![\w.~}>$-])/(?:work|root|home/\w+|Users/\w+)/"),
    "names a working session": re.compile(r"(?i)\b(?:this|last|next|previous)\s+session\b"),
    "names an issue: history is git's": re.compile(r"(?i)\bissues?\s+#?\d|\bGH-\d|\(#\d+\)"),
}
"""Reason → what no file of the repository may contain. Hosts are put together from parts, and the
other patterns do not match their own spelling, so that this file passes its own check."""

Finding = tuple[int, str]


def check(root: Path) -> list[str]:
    """All that is untidy under `root` as `path:line: reason`, in the order of the files."""
    found: list[str] = []
    classes: dict[str, str] = {}
    for name in _files(root):
        data = (root / name).read_bytes()
        if b"\0" in data:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        findings = list(_check_text(text))
        if name.startswith("src/"):
            findings += _check_source(name, text)
            findings += _check_classes(name, text, classes)
        found += [f"{name}:{line}: {why}" for line, why in sorted(findings)]
    return found


def _files(root: Path) -> list[str]:
    """What git tracks or would track, so that caches and environments are never looked at."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = sorted(set(listed.split("\0")) - {""})
    return [name for name in names if (root / name).is_file() and not (root / name).is_symlink()]


def _check_text(text: str) -> Iterator[Finding]:
    lines = text.split("\n")
    if text and lines[-1]:
        yield len(lines), "does not end with a newline"
    if text.endswith("\n\n"):
        yield len(lines), "ends with an empty line"
    for number, line in enumerate(lines, start=1):
        if line != line.rstrip():
            yield number, "trailing whitespace"
        for why, pattern in FOREIGN.items():
            if pattern.search(line):
                yield number, why


def _check_source(name: str, text: str) -> Iterator[Finding]:
    path = PurePosixPath(name)
    for number, line in enumerate(text.splitlines(), start=1):
        if UNFINISHED.search(line):
            yield number, "unfinished: do it, or name the limit in the docs"
    if path.suffix != ".py":
        return
    yield from _check_size(name, len(text.splitlines()))
    if path.stem in BANNED_NAMES:
        yield 1, f"{path.name} {BANNED_NAMES[path.stem]}"
    tree = ast.parse(text, filename=name)
    if path.name == "__init__.py":
        yield from _check_init(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_function(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from _check_handler(node)
        elif isinstance(node, ast.Call):
            yield from _check_call(name, node)


def _check_classes(name: str, text: str, classes: dict[str, str]) -> Iterator[Finding]:
    """Banned class names, and those that `classes` (name → file so far) has already."""
    if not name.endswith(".py"):
        return
    for node in ast.parse(text, filename=name).body:
        if not isinstance(node, ast.ClassDef):
            continue
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name.lstrip("_")).lower()
        if snake in BANNED_NAMES:
            yield node.lineno, f"class {node.name} {BANNED_NAMES[snake]}"
        first = classes.setdefault(node.name, name)
        if first != name:
            yield node.lineno, f"class {node.name} is also in {first}: one name, one thing"


def _check_size(name: str, lines: int) -> Iterator[Finding]:
    if lines > FILE_LINES_HARD:
        yield 1, f"{lines} lines, more than {FILE_LINES_HARD}: this is two concepts"
    elif lines > FILE_LINES and name not in LONG_FILES:
        yield 1, f"{lines} lines, more than {FILE_LINES}: is this two concepts?"


def _check_init(tree: ast.Module) -> Iterator[Finding]:
    if not ast.get_docstring(tree):
        yield 1, "__init__.py without a docstring: what enters, what leaves, what always holds"
    has_all = False
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom) or _imports_types(node):
            continue
        if ast.unparse(node).startswith("__getattr__, __dir__ = exports(__name__, {"):
            continue  # what `headwater.lazy_exports` loads when it is used
        if index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == "__all__":
            has_all = True
            names = _strings(node.value)
            if names is None or names != sorted(set(names)):
                yield node.lineno, "__all__ is not a sorted list of distinct strings"
            continue
        yield node.lineno, "__init__.py holds imports and __all__ only, no logic"
    if not has_all:
        yield 1, "__init__.py without __all__"


def _imports_types(node: ast.stmt) -> bool:
    """Whether this is for the type checker: a door may load what it offers when it is asked."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
        and all(isinstance(line, ast.Import | ast.ImportFrom) for line in node.body)
    )


def _target(node: ast.Assign | ast.AnnAssign) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else None


def _strings(node: ast.expr | None) -> list[str] | None:
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    strings = [value for value in values if isinstance(value, str)]
    return strings if len(strings) == len(node.elts) else None


def _check_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    if lines > FUNCTION_LINES:
        yield node.lineno, f"{node.name} has {lines} lines, more than {FUNCTION_LINES}"


def _check_handler(node: ast.ExceptHandler) -> Iterator[Finding]:
    if node.type is None:
        yield node.lineno, "bare except: name what is expected here"
    elif _catches_all(node.type) and all(_does_nothing(statement) for statement in node.body):
        yield node.lineno, "swallowed error: handle it, report it or let it through"


def _check_call(name: str, node: ast.Call) -> Iterator[Finding]:
    called = node.func
    if (
        isinstance(called, ast.Name)
        and called.id == "print"
        and not name.startswith(PRINTING_PACKAGES)
    ):
        yield node.lineno, "print: only a command prints"
    function = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    if function == "suppress" and any(_catches_all(argument) for argument in node.args):
        yield node.lineno, "swallowed error: handle it, report it or let it through"


def _catches_all(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_catches_all(item) for item in node.elts)
    return isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Pass | ast.Continue)


def main(arguments: list[str]) -> int:
    """Print what is untidy; 1 if anything is."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    found = check(root)
    for line in found:
        print(line)
    if found:
        print(f"tidy: {len(found)} to repair; the rules are in CONTRIBUTING.md", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
