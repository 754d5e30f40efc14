"""What the pages show runs, and what they point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.warm_process import warm_process

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]*)#?([^)]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MODULE = re.compile(r"`([\w/]+/\w+\.py)`")
SCENARIO = re.compile(r'Scenario\((?:package=)?"(\w+)", (?:name=)?"([\w-]+)"')


def _programs() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8"))):
            # A program that starts Spark runs in tests/spark/test_reading.py.
            if "import" in code and "bucket" not in code and "__main__" not in code:
                found.append((f"{page.relative_to(ROOT)}#{number}", code))
    return found


@pytest.mark.parametrize(("name", "code"), _programs(), ids=[name for name, _ in _programs()])
def test_a_program_on_a_page_runs(name: str, code: str, tmp_path: Path) -> None:
    program = code.replace("file:///tmp/headwater", f"file://{tmp_path}/store")
    warm_process("tests.project.programs").run(tmp_path, code=program)


def test_there_are_programs_to_run() -> None:
    assert len(_programs()) >= 2


def _anchors(page: Path) -> set[str]:
    """The ids that GitHub gives the headings of a page."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} points to {target}"
            assert not anchor or anchor in _anchors(linked), (
                f"{page.name} points to {target}#{anchor}"
            )


def test_every_invariant_names_a_test_that_exists() -> None:
    named = TEST.findall((ROOT / "docs/invariants.md").read_text(encoding="utf-8"))
    assert len(named) >= 20
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), f"{path} has no {test}"


def test_every_file_that_the_architecture_names_exists() -> None:
    named = MODULE.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert len(named) >= 20
    for path in named:
        assert any((root / path).exists() for root in (ROOT, ROOT / "src/headwater")), path


def test_the_page_on_testing_lists_every_scenario() -> None:
    listed = set()
    package = ""
    rows = (ROOT / "docs/testing.md").read_text(encoding="utf-8").split("| package | scenario |")[1]
    for row in rows.splitlines():
        cells = row.split("|")
        if len(cells) == 5:
            package = cells[1].strip(" `") or package
            listed |= {(package, name) for name in re.findall(r"`([\w-]+)`", cells[2])}
    written = {
        pair
        for path in (ROOT / "tests/torture").glob("*_scenarios.py")
        for pair in SCENARIO.findall(path.read_text(encoding="utf-8"))
    }
    assert listed == written


def test_the_page_on_operating_names_every_logger() -> None:
    rows = (ROOT / "docs/operating.md").read_text(encoding="utf-8").split("| logger | what |")[1]
    listed = re.findall(r"^\| `([\w.*]+)` \|", rows.split("\n\n")[0], re.MULTILINE)
    used = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for name in re.findall(r"getLogger\(([^)]*)\)", path.read_text(encoding="utf-8")):
            used.add(module if name == "__name__" else name.strip('"'))
    assert used
    patterns = [re.escape(name).replace(r"\*", r"\w+") for name in listed]
    unlisted = {name for name in used if not any(re.fullmatch(one, name) for one in patterns)}
    assert unlisted == set()
    assert [name for name in patterns if not any(re.fullmatch(name, one) for one in used)] == []
