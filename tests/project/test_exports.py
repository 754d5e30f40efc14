"""Every door of the package: what `__all__` promises is there, in order, and explained."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import headwater

EXTRAS = {"spark": "pyspark", "server": "starlette"}
"""Rooms that import only with an extra installed, and the library that shows whether it is."""

ROOMS = sorted(door.parent.name for door in Path(headwater.__path__[0]).glob("*/__init__.py"))


@pytest.fixture(params=["", *ROOMS])
def door(request: pytest.FixtureRequest) -> ModuleType:
    room: str = request.param
    library = EXTRAS.get(room)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{room} needs {library}, which is not installed")
    return importlib.import_module(f"headwater.{room}" if room else "headwater")


def test_all_is_sorted_and_distinct(door: ModuleType) -> None:
    assert list(door.__all__) == sorted(set(door.__all__))


def test_every_exported_name_exists(door: ModuleType) -> None:
    assert [name for name in door.__all__ if not hasattr(door, name)] == []


def test_names_that_are_loaded_when_asked_for_are_told_before() -> None:
    assert set(headwater.__all__) <= set(dir(headwater))
    assert importlib.import_module("headwater").read is headwater.read
    with pytest.raises(AttributeError, match="no attribute 'raed'"):
        importlib.import_module("headwater").raed  # noqa: B018  to ask is what is tested


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
