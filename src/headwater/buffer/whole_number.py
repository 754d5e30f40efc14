"""Whole numbers as people give them: partitions, sequences, LSNs, counts."""

from __future__ import annotations

import operator
from typing import Any

from headwater.core.errors import Refused


def whole_number(what: str, given: Any) -> int:
    """The number itself, also of numpy's kinds; `Refused` if it is none.

    A bool is an int to Python and a slip of the pen here: `True` would be batch 1.
    """
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise Refused(f"{what} is {given!r}: a whole number is needed")
