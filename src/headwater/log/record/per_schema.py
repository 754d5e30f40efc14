"""What is known of a schema, worked out once: it is asked for every append and every group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

_Found = TypeVar("_Found")
_REMEMBERED: Final = 16


def per_schema(work_out: Callable[[pa.Schema], _Found]) -> Callable[[pa.Schema], _Found]:
    """Remember the answers for the last few schemas.

    Schemas are compared with all their metadata, which is cheap. To `lru_cache` those that differ
    in metadata alone would be one, to hash them takes longer than to compare a few, and those with
    extension types that were made in Python cannot be hashed at all.
    """
    known: tuple[tuple[pa.Schema, _Found], ...] = ()

    def answer(schema: pa.Schema) -> _Found:
        nonlocal known
        for one, found in known:
            if one.equals(schema, check_metadata=True):
                return found
        found = work_out(schema)
        # One assignment: whoever looks meanwhile sees all of it or nothing.
        known = ((schema, found), *known[: _REMEMBERED - 1])
        return found

    return answer
