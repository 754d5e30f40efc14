"""The schema that a stream declares: how it is written down, and how it may change.

Versions count from 1. The next version may add nullable columns and widen types (widening.py), so
that every reader of it can read what was written under the ones before; an order of columns is
not a change. Whatever else is asked for is refused with the difference, column by column.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa

from headwater.buffer.stream.changes import Replaces
from headwater.buffer.stream.config import Column, Origin, SchemaVersion
from headwater.buffer.type_text import field_text, parse_field, type_text
from headwater.buffer.types import carried_schema, check_names, check_nested
from headwater.buffer.widening import widens
from headwater.core.errors import Corrupt, LimitExceeded, Refused

COLUMNS_MAX: Final = 10_000

SchemaLike: TypeAlias = pa.Schema | Mapping[str, str]
"""An Arrow schema, or {"column": "type"} as type_text.py reads it."""


def declared_schema(given: SchemaLike) -> pa.Schema:
    """The schema in the types that a stream carries; `Refused` says what cannot be declared."""
    if isinstance(given, pa.Schema):
        schema = given
    else:
        schema = pa.schema([parse_field(str(name), str(text)) for name, text in given.items()])
    if not schema.names:
        raise Refused("a schema has at least one column")
    check_columns(schema.names)
    reserved = [name for name in schema.names if name.startswith("_")]
    if reserved:
        raise Refused(
            f"column {reserved[0]!r}: names that begin with '_' are reserved, and every record has "
            "those columns already; declare the columns of the value alone"
        )
    carried = carried_schema(schema)
    for field in carried:
        check_nested(field.name, field.type)
    return carried


def check_columns(names: list[str]) -> None:
    """Refuse more columns than a stream may have, and such that Spark cannot tell apart."""
    if len(names) > COLUMNS_MAX:
        raise LimitExceeded(f"{len(names):,} columns; COLUMNS_MAX is {COLUMNS_MAX:,}")
    check_names("", names)


def schema_version(
    version: int, schema: pa.Schema, *, added_ms: int, origin: Origin = "declared"
) -> SchemaVersion:
    """How a schema is written down."""
    columns = [Column(field.name, type_text(field.type), field.nullable) for field in schema]
    return SchemaVersion(version, added_ms, origin, columns)


def arrow_schema(version: SchemaVersion) -> pa.Schema:
    """The schema that was written down."""
    try:
        fields = [parse_field(c.name, c.type).with_nullable(c.nullable) for c in version.columns]
    except Refused as error:
        raise Corrupt(f"schema version {version.version} cannot be read: {error}") from error
    return pa.schema(fields)


def evolved(stream: str, latest: SchemaVersion, declared: pa.Schema) -> pa.Schema | None:
    """The schema that follows `latest` if `declared` is asked for; None if that is the same.

    Columns keep their place, and those that are added come last. `Replaces`: it depends on the
    records that are retained, because types that were inferred are to become others.
    """
    replaced: list[pa.Field] = []
    before = arrow_schema(latest)
    given = {field.name: field for field in declared}
    fields: list[pa.Field] = []
    wrong: list[tuple[str, str]] = []
    for field in before:
        asked = given.pop(field.name, None)
        if asked is None:
            renamed = _near(field.name, [name for name in given if name not in before.names])
            wrong.append((field.name, f"{field_text(field)} → missing: no column goes{renamed}"))
            continue
        kind = merged_type(field.type, asked.type)
        if kind is None and latest.origin == "declared":
            change = f"{field_text(field)} → {field_text(asked)}: not a wider type"
            wrong.append((field.name, change))
        elif field.nullable != asked.nullable:
            change = f"{field_text(field)} → {field_text(asked)}: whether it may be null stays"
            wrong.append((field.name, change))
        elif kind is not None:
            fields.append(pa.field(field.name, kind, field.nullable))
        else:
            fields.append(asked)
            replaced.append(asked)
    for asked in given.values():
        if not asked.nullable:
            wrong.append((asked.name, f"added as {field_text(asked)}: it must be nullable"))
        fields.append(asked)
    if wrong:
        raise Refused(
            f"the schema of stream {stream!r} (version {latest.version}) can add nullable columns "
            f"and widen types, nothing else:{difference(wrong)}"
        )
    check_names("", [field.name for field in fields])
    schema = pa.schema(fields)
    if replaced:
        raise Replaces(schema, replaced)
    return None if schema == before else schema


def merged_type(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The type that holds what `old` holds and is what `new` asks for; None if there is none."""
    if old == new or widens(old, new):
        return new
    if pa.types.is_list(old) and pa.types.is_list(new):
        kind = merged_type(old.value_type, new.value_type)
        if kind is None or old.value_field.nullable != new.value_field.nullable:
            return None
        return pa.list_(pa.field("element", kind, old.value_field.nullable))
    if pa.types.is_map(old) and pa.types.is_map(new):
        kind = merged_type(old.item_type, new.item_type)
        return pa.map_(old.key_type, kind) if kind and old.key_type == new.key_type else None
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _merged_struct(old, new)
    return None


def difference(lines: Iterable[tuple[str, str]]) -> str:
    """A difference column by column, one to a line."""
    rows = list(lines)
    width = max((len(name) for name, _ in rows), default=0)
    return "".join(f"\n  {name:<{width}}  {text}" for name, text in rows)


def _merged_struct(old: pa.StructType, new: pa.StructType) -> pa.DataType | None:
    given = {field.name: field for field in new}
    fields = []
    for field in old:
        asked = given.pop(field.name, None)
        kind = None if asked is None else merged_type(field.type, asked.type)
        if asked is None or kind is None or asked.nullable != field.nullable:
            return None
        fields.append(pa.field(field.name, kind, field.nullable))
    if not all(field.nullable for field in given.values()):
        return None
    return pa.struct([*fields, *given.values()])


def _near(name: str, names: list[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (renamed to {found[0]!r}? add that one, and keep this)" if found else ""
