"""Every door of the package: what `__all__` promises is there, in order, and explained."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import headwater

EXTRAS = {"spark": "pyspark", "server": "starlette"}
"""Packages that import only with an extra installed, and the library that shows whether it is."""

PACKAGES = sorted(door.parent.name for door in Path(headwater.__path__[0]).glob("*/__init__.py"))


@pytest.fixture(params=["", *PACKAGES])
def door(request: pytest.FixtureRequest) -> ModuleType:
    package: str = request.param
    library = EXTRAS.get(package)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{package} needs {library}, which is not installed")
    return importlib.import_module(f"headwater.{package}" if package else "headwater")


def test_all_is_sorted_and_distinct(door: ModuleType) -> None:
    assert list(door.__all__) == sorted(set(door.__all__))


def test_every_exported_name_exists(door: ModuleType) -> None:
    assert [name for name in door.__all__ if not hasattr(door, name)] == []


def test_names_that_are_loaded_when_asked_for_are_told_before() -> None:
    assert set(headwater.__all__) <= set(dir(headwater))
    assert importlib.import_module("headwater").read is headwater.read
    with pytest.raises(AttributeError, match="no attribute 'raed'"):
        importlib.import_module("headwater").raed  # noqa: B018  to ask is what is tested


FRONTS = [
    path
    for path in sorted(Path(headwater.__path__[0]).rglob("__init__.py"))
    if "__getattr__, __dir__ = exports(" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", FRONTS, ids=lambda path: path.parent.name)
def test_a_name_that_is_loaded_when_used_is_the_one_that_type_checkers_see(path: Path) -> None:
    package = importlib.import_module(
        ".".join(("headwater", *path.parent.relative_to(headwater.__path__[0]).parts))
    )
    imported = {
        alias.asname or alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imported) == list(package.__all__)
    # After the imports above: a module with an export's name would have replaced the export.
    assert {name: getattr(package, name) for name in package.__all__} == imported
    assert set(package.__all__) <= set(dir(package))


def test_no_exported_name_is_private(door: ModuleType) -> None:
    private = [name for name in door.__all__ if name.startswith("_") and name != "__version__"]
    assert private == []


def test_every_exported_class_and_function_is_explained(door: ModuleType) -> None:
    assert [name for name in door.__all__ if not is_explained(getattr(door, name))] == []


def is_explained(thing: object) -> bool:
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return True
    text = thing.__doc__ or ""
    # A dataclass without a docstring gets its signature for one.
    return bool(text.strip()) and not text.startswith(f"{thing.__name__}(")


def test_what_waits_has_a_blocking_twin_of_the_same_name() -> None:
    from headwater import blocking

    twins = {"Consumer", "Producer", "read"} | {
        name for name in headwater.__all__ if inspect.iscoroutinefunction(getattr(headwater, name))
    }
    assert twins == set(blocking.__all__)
    assert not [one for one in twins if inspect.iscoroutinefunction(getattr(blocking, one))]


def test_the_page_on_the_api_lists_every_exported_name() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == headwater.__all__
    programs = "".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    errors = {name for name in headwater.__all__ if is_error(getattr(headwater, name))}
    used = set(re.findall(r"\b(?:headwater|blocking)\.(\w+)", programs))
    handles = {"Store", "Stream", "blocking", "metrics"}
    assert set(headwater.__all__) - used - errors - handles == set()


def is_error(exported: object) -> bool:
    return inspect.isclass(exported) and issubclass(exported, headwater.HeadwaterError)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_the_page_for_users_on_its_first_line(package: str) -> None:
    front = Path(headwater.__path__[0]) / package / "__init__.py"
    first = front.read_text(encoding="utf-8").splitlines()[0]
    assert "For builders" in first
    assert first.endswith("docs/api.md.")
