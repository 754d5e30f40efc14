"""Names that a package exports, loaded when they are first used (PEP 562).

Importing a package then loads none of its modules: a command that lists streams does not wait for
Arrow, one that prints its help does not wait for the store, and Ctrl-C works before either is
loaded. The package repeats its exports as imports under `if TYPE_CHECKING:`, for type checkers and
editors; a test compares the two.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def exports(
    package: str, homes: Mapping[str, str], *, modules: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`, given the names that each of its modules has.

    `name=other` exports what the module calls `other`. `modules` are exported as such. Any other
    module must not have the name of an export: importing it would replace the export.
    """
    home_of: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for spelling in names.split():
            name, _, other = spelling.partition("=")
            home_of[name] = f"{package}.{home}", other or name
    exported = modules.split()

    def load(name: str) -> object:
        if name in exported:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, other = home_of[name]
        found: object = getattr(importlib.import_module(home), other)
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *exported})

    return load, listed
