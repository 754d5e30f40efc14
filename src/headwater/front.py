"""What is called by its short name, and loaded when it is asked for.

Importing Headwater loads no room: a script that opens a store does not wait for Arrow, a command
that prints its help does not wait for the store, and Ctrl-C is listened for before either is there.
"""

from __future__ import annotations

import importlib
from typing import Final

_HOMES: Final = {
    "HeadwaterError": "headwater.core.errors",
    "Store": "headwater.store",
    "open_store": "headwater.store",
    "read": "headwater.buffer.consumer",
    "read_async": "headwater.buffer.consumer",
}


def load(name: str) -> object:
    """A public name of the package, from the room where it lives."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(home), name)
    setattr(importlib.import_module("headwater"), name, found)
    return found


def names() -> list[str]:
    """What the package has to offer, loaded or not."""
    return sorted({*vars(importlib.import_module("headwater")), *_HOMES})
