"""What may be asked of a stream that exists, or existed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.buffer.stream.config import StreamConfig
from headwater.core.errors import AlreadyExists, Refused

if TYPE_CHECKING:
    import pyarrow as pa


class Replaces(Exception):
    """Types that were inferred are to be replaced by others, which are not wider."""

    def __init__(self, schema: pa.Schema, columns: list[pa.Field]) -> None:
        super().__init__(", ".join(field.name for field in columns))
        self.schema = schema
        """With the types in their place."""
        self.columns = columns
        """Those that every retained value has to fit."""


def check_agrees(
    now: StreamConfig, given: Mapping[str, Any], declared: pa.Schema | None
) -> StreamConfig:
    """The stream itself, if it is as these settings ask; those not given may be anything."""
    wrong = [
        (name, f"is {getattr(now, name)}, and {value} was asked for")
        for name, value in given.items()
        if name not in ("schemas", "shape") and getattr(now, name) != value
    ]
    if declared is not None and (now.is_inferred or not _is_latest(now, declared)):
        wrong.append(("schema", "another one is declared" if now.schemas else "none is declared"))
    if wrong:
        from headwater.buffer.stream.schema import difference

        raise AlreadyExists(
            f"stream {now.name!r} exists, with other settings:{difference(wrong)}", current=now
        )
    return now


def check_alterable(now: StreamConfig, given: Mapping[str, Any]) -> None:
    """Refuse what a stream cannot change in its life."""
    asked = given.get("format", now.format)
    if asked != now.format:
        raise Refused(
            f"stream {now.name!r} is in the {now.format} format for its life: create another in "
            f"{asked}, and copy"
        )
    partitions = given.get("partitions", now.partitions)
    if partitions < now.partitions:
        raise Refused(
            f"stream {now.name!r} has {now.partitions} partitions, and cannot have {partitions}: "
            "records stay where they are, so partitions are added and never removed"
        )


def check_cleaned(before: StreamConfig | None) -> None:
    """Refuse to build where the objects of a deleted v1 stream may still be.

    The published layout has no place for an id: what is left of the old stream would be part of
    the next one, and whoever is still deleting it would delete that.
    """
    if before is not None and before.format == "v1" and not before.cleaned:
        raise Refused(
            f"a stream {before.name!r} in the published v1 format was deleted here, and not all of "
            "its objects are gone: delete it once more, or take another name"
        )


def declaring(now: StreamConfig, declared: pa.Schema, added_ms: int) -> dict[str, Any]:
    """What changes when `declared` is the latest schema; nothing if it is that already."""
    from headwater.buffer.stream.schema import arrow_schema, evolved, schema_version

    if now.is_opaque:
        raise Refused(
            f"stream {now.name!r} carries opaque values, for its life: declare the schema of "
            "another stream, and write columns to that one"
        )
    number = now.next_schema_version
    if not now.schemas:
        first = schema_version(number, declared, added_ms=added_ms)
        return {"shape": "typed", "schemas": [first]}
    latest = now.schemas[-1]
    schema = evolved(now.name, latest, declared)
    if schema is None and not now.is_inferred:
        return {}
    schema = arrow_schema(latest) if schema is None else schema
    return {"schemas": [*now.schemas, schema_version(number, schema, added_ms=added_ms)]}


def tombstone(now: StreamConfig, *, deleted_ms: int) -> StreamConfig:
    """What stays of a stream: which objects were its own, so that they can be removed."""
    if not now.is_live:
        return now
    return msgspec.structs.replace(now, state="deleted", deleted_ms=deleted_ms, cleaned=False)


def _is_latest(now: StreamConfig, declared: pa.Schema) -> bool:
    if not now.schemas:
        return False
    from headwater.buffer.stream.schema import evolved

    try:
        return evolved(now.name, now.schemas[-1], declared) is None
    except Refused:
        return False
