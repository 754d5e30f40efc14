from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import tidy

ROOT = Path(__file__).resolve().parents[2]
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * tidy.FUNCTION_LINES
DOOR = '"""Door."""\n__all__ = []\n'
LONG_DOCSTRING = 'def f():\n    """' + "line\n" * tidy.FUNCTION_LINES + '    """\n    return 1\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    return tmp_path


def findings(root: Path, name: str, content: str | bytes) -> list[str]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return tidy.check(root)


def test_the_repository_is_tidy() -> None:
    assert tidy.check(ROOT) == []


def test_a_class_name_that_two_files_have_is_found_in_the_second(tree: Path) -> None:
    assert findings(tree, "src/headwater/a.py", "class Slot: ...\n") == []
    [found] = findings(tree, "src/headwater/b.py", "class Slot: ...\n")
    assert found.startswith("src/headwater/b.py:1: class Slot is also in src/headwater/a.py")
    assert findings(tree, "tests/test_slot.py", "class Slot: ...\n") == [found]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("src/headwater/a.py", "x = 1\n" * (tidy.FILE_LINES + 1), "is this two concepts?"),
        ("src/headwater/a.py", "x = 1\n" * (tidy.FILE_LINES_HARD + 1), "this is two concepts"),
        ("src/headwater/a.py", LONG_FUNCTION, "more than 70"),
        ("src/headwater/a.py", "async " + LONG_FUNCTION, "more than 70"),
        ("src/headwater/utils.py", "", "utils.py says nothing"),
        ("src/headwater/core/helpers.py", "", "helpers.py says nothing"),
        ("src/headwater/store/common.py", "", "common.py says nothing"),
        ("src/headwater/store/known.py", "", "known.py is a participle"),
        ("src/headwater/store/lane.py", "", "lane.py is a figure of speech"),
        ("src/headwater/store/a.py", "class Desk: ...\n", "class Desk is a figure of speech"),
        ("src/headwater/store/a.py", "class _Kept: ...\n", "class _Kept is a participle"),
        ("src/headwater/__init__.py", "__all__ = []\n", "without a docstring"),
        ("src/headwater/__init__.py", '"""Door."""\n', "without __all__"),
        ("src/headwater/__init__.py", '"""Door."""\n__all__ = ["b", "a"]\n', "not a sorted list"),
        ("src/headwater/__init__.py", '"""Door."""\n__all__ = ["a", "a"]\n', "not a sorted list"),
        ("src/headwater/__init__.py", '"""Door."""\n__all__ = sorted(x)\n', "not a sorted list"),
        ("src/headwater/__init__.py", '"""Door."""\n__all__ = []\nx = 1\n', "no logic"),
        ("src/headwater/__init__.py", DOOR + "if x:\n    import a\n", "no logic"),
        ("src/headwater/__init__.py", DOOR + "if TYPE_CHECKING:\n    x = 1\n", "no logic"),
        (
            "src/headwater/__init__.py",
            DOOR + "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n",
            "no logic",
        ),
        ("src/headwater/a.py", "try:\n    f()\nexcept Exception:\n    pass\n", "swallowed"),
        ("src/headwater/a.py", "try:\n    f()\nexcept BaseException:\n    ...\n", "swallowed"),
        ("src/headwater/a.py", "try:\n    f()\nexcept (A, Exception):\n    pass\n", "swallowed"),
        ("src/headwater/a.py", "try:\n    f()\nexcept:\n    g()\n", "bare except"),
        ("src/headwater/a.py", "with suppress(Exception):\n    f()\n", "swallowed"),
        ("src/headwater/a.py", "with contextlib.suppress(Exception):\n    f()\n", "swallowed"),
        ("src/headwater/a.py", "x = 1  # " + "TO" + "DO\n", "unfinished"),
        ("src/headwater/a.py", "x = 1  # " + "FIX" + "ME later\n", "unfinished"),
        ("src/headwater/a.py", "x = 1  # " + "X" * 3 + "\n", "unfinished"),
        ("src/headwater/store/a.py", "print(1)\n", "only a command prints"),
        ("notes.md", "no end", "does not end with a newline"),
        ("notes.md", "two ends\n\n", "ends with an empty line"),
        ("notes.md", "blank \n", "trailing whitespace"),
        ("docs/a.md", "from https://pypi" + ".org/simple\n", "package registry"),
        ("docs/a.md", "proxy.golang" + ".org\n", "package registry"),
        ("docs/a.md", "see /" + "work/main\n", "path of one machine"),
        ("docs/a.md", "see `/" + "root/.cache`\n", "path of one machine"),
        ("docs/a.md", "done in this " + "session\n", "working session"),
        ("docs/a.md", "as issue" + " #3 says\n", "names an issue"),
        ("docs/a.md", "Issue" + " 12\n", "names an issue"),
    ],
)
def test_what_is_untidy_is_found(tree: Path, name: str, content: str, reason: str) -> None:
    found = findings(tree, name, content)
    assert len(found) == 1
    assert found[0].startswith(f"{name}:")
    assert reason in found[0]


@pytest.mark.parametrize("host", [".".join(parts) for parts in tidy._HOSTS])
def test_every_registry_is_known(tree: Path, host: str) -> None:
    assert len(findings(tree, "requirements/a.txt", f"--index-url https://{host}/x\n")) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("src/headwater/a.py", "x = 1\n" * tidy.FILE_LINES),
        ("src/headwater/a.py", LONG_DOCSTRING),
        ("src/headwater/__init__.py", '"""Door."""\n\nimport a\n\n__all__: list[str] = ["a"]\n'),
        ("src/headwater/__init__.py", DOOR + "if TYPE_CHECKING:\n    import a\n"),
        ("src/headwater/a.py", "try:\n    f()\nexcept KeyError:\n    pass\n"),
        ("src/headwater/a.py", "try:\n    f()\nexcept Exception:\n    report()\n"),
        ("src/headwater/cli/a.py", "print(1)\n"),
        ("src/headwater/testing/a.py", "print(1)\n"),
        ("tests/utils.py", "print(1)\n" * (tidy.FILE_LINES + 1)),
        ("tests/vectors/a.bin", b"\0no end "),
        ("docs/a.md", "a Spark session, network/work/x and the root\n"),
        ("empty.txt", ""),
    ],
)
def test_what_the_rules_allow_passes(tree: Path, name: str, content: str | bytes) -> None:
    assert findings(tree, name, content) == []


def test_what_git_ignores_is_not_looked_at(tree: Path) -> None:
    (tree / ".gitignore").write_text("build/\n", encoding="utf-8")
    assert findings(tree, "build/a.py", "blank \n") == []


def test_a_long_file_passes_only_with_a_reason(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tidy.LONG_FILES, "src/headwater/a.py", "one table")
    assert findings(tree, "src/headwater/a.py", "x = 1\n" * tidy.FILE_LINES_HARD) == []
    assert findings(tree, "src/headwater/a.py", "x = 1\n" * (tidy.FILE_LINES_HARD + 1)) != []


def test_a_file_allowed_to_be_long_exists_and_is_long() -> None:
    for name in tidy.LONG_FILES:
        lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        assert lines > tidy.FILE_LINES, f"{name} needs no exception any more"


def test_the_command_reports_and_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings(tree, "a.md", "blank \n")
    assert tidy.main([str(tree)]) == 1
    assert capsys.readouterr().out == "a.md:1: trailing whitespace\n"
