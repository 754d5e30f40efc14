"""A stream's schema: its versions, and how columns of producers are added to it.

Versions count from 1. A version may add nullable columns and widen types (conversion.py), so that
its readers can read what was written under earlier versions; reordering columns is not a change.
Other changes are refused with the difference, column by column.

Before the first append that carries something, the stream's register records it: opaque values, or
columns and their types. Columns are only added, so a producer with an older config writes what
every later version accepts: fewer columns, narrower types. A change is all or nothing: if one
column of a batch cannot be recorded, none is. That is not an error here: fitting the records then
refuses them (fitting.py).

An alter that replaces a type first reserves a version, and writes it once no batch of an older
version can be appended. Producers with older records wait for that version, and write it themselves
if the alter does not, because it may have died.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from headwater.buffer.conversion import all_nullable, common_type, evolved_type
from headwater.buffer.records import RESERVED, VALUE
from headwater.buffer.stream.config import (
    Column,
    Origin,
    RetypeNeeded,
    SchemaVersion,
    StreamConfig,
    StreamRegister,
)
from headwater.buffer.types import (
    carried_schema,
    check_names,
    check_nested,
    field_text,
    parse_field,
    type_text,
)
from headwater.core import runtime
from headwater.core.errors import (
    Corrupt,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.core.settings import closest
from headwater.store import Store

COLUMNS_MAX: Final = 10_000

SchemaLike: TypeAlias = pa.Schema | Mapping[str, str]
"""An Arrow schema, or {"column": "type"} as `types.parse_field` reads it."""


def declared_schema(declared: SchemaLike) -> pa.Schema:
    """The schema in the types that a stream carries; `Refused` names what cannot be declared."""
    if isinstance(declared, pa.Schema):
        schema = declared
    else:
        schema = pa.schema([parse_field(str(name), str(text)) for name, text in declared.items()])
    if not schema.names:
        raise Refused("a schema has at least one column")
    check_columns(schema.names)
    reserved = [name for name in schema.names if name.startswith("_")]
    if reserved:
        raise Refused(
            f"column {reserved[0]!r}: names that begin with '_' are reserved, and every record has "
            "those columns already; declare only the columns of the value"
        )
    carried = carried_schema(schema)
    for field in carried:
        check_nested(field.name, field.type)
    return carried


def check_columns(names: list[str]) -> None:
    """Refuse too many columns, and names that Spark cannot tell apart."""
    if len(names) > COLUMNS_MAX:
        raise LimitExceeded(f"{len(names):,} columns; COLUMNS_MAX is {COLUMNS_MAX:,}")
    check_names("", names)


def schema_version(
    version: int, schema: pa.Schema, *, added_ms: int, origin: Origin = "declared"
) -> SchemaVersion:
    """The stored form of a schema."""
    columns = [Column(field.name, type_text(field.type), field.nullable) for field in schema]
    return SchemaVersion(version, added_ms, origin, columns)


def arrow_schema(version: SchemaVersion) -> pa.Schema:
    try:
        fields = [parse_field(c.name, c.type).with_nullable(c.nullable) for c in version.columns]
    except Refused as error:
        raise Corrupt(f"schema version {version.version} cannot be read: {error}") from error
    return pa.schema(fields)


def evolve_schema(stream: str, latest: SchemaVersion, declared: pa.Schema) -> pa.Schema | None:
    """The next schema if `declared` is to follow `latest`; None if nothing changes.

    Columns keep their position; new ones come last. `RetypeNeeded`: inferred types are to be
    replaced, which depends on the retained records.
    """
    replaced: list[pa.Field] = []
    before = arrow_schema(latest)
    added = {field.name: field for field in declared}
    fields: list[pa.Field] = []
    wrong: list[tuple[str, str]] = []
    for field in before:
        next_field = added.pop(field.name, None)
        if next_field is None:
            near = closest(field.name, [name for name in added if name not in before.names])
            hint = f" (renamed to {near!r}? add that one, and keep this)" if near else ""
            change = f"{field_text(field)} → missing: columns cannot be removed{hint}"
            wrong.append((field.name, change))
            continue
        change = f"{field_text(field)} → {field_text(next_field)}"
        kind = evolved_type(field.type, next_field.type)
        if kind is None and latest.origin == "declared":
            wrong.append((field.name, f"{change}: not a wider type"))
        elif field.nullable != next_field.nullable:
            wrong.append((field.name, f"{change}: nullability cannot change"))
        elif kind is not None:
            fields.append(pa.field(field.name, kind, field.nullable))
        else:
            fields.append(next_field)
            replaced.append(next_field)
    for field in added.values():
        if not field.nullable:
            wrong.append((field.name, f"added as {field_text(field)}: it must be nullable"))
        fields.append(field)
    if wrong:
        raise Refused(
            f"the schema of stream {stream!r} (version {latest.version}) can add nullable columns "
            f"and widen types, nothing else:{difference(wrong)}"
        )
    check_names("", [field.name for field in fields])
    schema = pa.schema(fields)
    if replaced:
        raise RetypeNeeded(schema, replaced)
    return None if schema == before else schema


def schema_change(now: StreamConfig, declared: pa.Schema, added_ms: int) -> dict[str, Any]:
    """The fields that change when `declared` becomes the latest schema; none if it is already."""
    if now.is_opaque:
        raise Refused(
            f"stream {now.name!r} carries opaque values, which never changes: declare the schema "
            "of another stream, and write columns to that one"
        )
    number = now.next_schema_version
    if not now.schemas:
        first = schema_version(number, declared, added_ms=added_ms)
        return {"shape": "typed", "schemas": [first]}
    latest = now.schemas[-1]
    schema = evolve_schema(now.name, latest, declared)
    if schema is None and not now.is_inferred:
        return {}
    schema = arrow_schema(latest) if schema is None else schema
    return {"schemas": [*now.schemas, schema_version(number, schema, added_ms=added_ms)]}


def difference(lines: Iterable[tuple[str, str]]) -> str:
    """A difference column by column, one to a line."""
    rows = list(lines)
    width = max((len(name) for name, _ in rows), default=0)
    return "".join(f"\n  {name:<{width}}  {text}" for name, text in rows)


REPLACEMENT_TIMEOUT_S: Final = 30.0
"""How long an alter that replaces a type may take before waiting producers withdraw it."""
_PATIENT: Final = RetryPolicy(attempts=1 << 62, deadline_s=float("inf"))


def taking_in(now: StreamConfig, records: pa.Schema, *, added_ms: int) -> StreamConfig:
    """The config with the columns of these records; unchanged if it has them, or cannot."""
    if now.format == "v1":
        return now
    if VALUE in records.names:
        return now if now.shape else msgspec.structs.replace(now, shape="opaque")
    columns = [field for field in records if field.name not in RESERVED]
    if not columns or now.shape == "opaque" or (now.schemas and not now.is_inferred):
        return now
    merged = _merge_columns(now, columns)
    if merged is None or (now.schemas and merged == arrow_schema(now.schemas[-1])):
        return now
    check_columns(merged.names)
    # It takes the place of an inferred version before it: one version for each of ten thousand
    # columns that were added one by one would make the register too large.
    number = now.next_schema_version
    version = schema_version(number, merged, added_ms=added_ms, origin="inferred")
    return msgspec.structs.replace(now, shape="typed", schemas=[version])


def _merge_columns(now: StreamConfig, columns: list[pa.Field]) -> pa.Schema | None:
    """The stream's columns and these, in common types; None if two types have no common one."""
    types = {} if not now.schemas else {f.name: f.type for f in arrow_schema(now.schemas[-1])}
    for field in columns:
        kind = all_nullable(field.type)
        types[field.name] = common_type(types.get(field.name, kind), kind)
    if any(kind is None for kind in types.values()):
        return None
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


def withdraw_replacement(now: StreamConfig, floor: int, *, added_ms: int) -> StreamConfig:
    """Write the current columns as version `floor`, which was reserved to replace types.

    The alter that reserved it then finds that the version is taken.
    """
    latest = now.schemas[-1]
    if now.schema_floor != floor or latest.version >= floor:
        return now
    again = SchemaVersion(floor, added_ms, latest.origin, latest.columns)
    before = [one for one in now.schemas if one.origin == "declared"]
    return msgspec.structs.replace(now, schemas=[*before, again])


async def await_schema(
    store: Store, before: StreamConfig, floor: int, *, is_patient: bool
) -> StreamConfig:
    """Wait until the schema has version `floor`, or withdraw that version after a timeout.

    The alter that reserved the version may have died. It can write it only while the number is
    free. With `is_patient`, requests to a store that does not answer are repeated.
    """
    register = StreamRegister(store, before.name)
    pauses = _PATIENT.start()
    reserved, until_s = floor, runtime.monotonic_s() + REPLACEMENT_TIMEOUT_S
    while True:
        try:
            if runtime.monotonic_s() < until_s:
                now = await register.read_live(writing=True)
            else:
                withdraw = functools.partial(
                    withdraw_replacement, floor=reserved, added_ms=runtime.wall_ms()
                )
                now = await register.update_live(before.id, withdraw)
        except (Unavailable, OutcomeUnknown):
            if not is_patient:
                raise
            await pauses.pause()
            continue
        if now.id != before.id:
            raise NotFound(f"stream {before.name!r} was deleted, and created again")
        if now.schemas and now.schemas[-1].version >= floor:
            return now
        if now.schema_floor < floor:
            raise RolledBack(
                f"stream {before.name!r}: version {floor} of its schema was reserved, and its "
                "stream.json does not have the reservation any more: it went back to an older "
                "state. Restore it from a backup"
            )
        if now.schema_floor > reserved:
            # A later alter, with the same timeout.
            reserved, until_s = now.schema_floor, runtime.monotonic_s() + REPLACEMENT_TIMEOUT_S
        await pauses.pause()
