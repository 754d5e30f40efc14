"""Extension types are names in the metadata of fields, and what they are stored in.

Whether Arrow makes such a type of a column depends on which types a process has registered, and it
reads nothing at all where the name and the storage do not fit. Without the names a column is the
same to everybody.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_PREFIX: Final = b"ARROW:extension:"
_NAME: Final = _PREFIX + b"name"
_HIDDEN: Final = _PREFIX + b"n_me"
"""As long as the name's key, so that it can stand in its place, and none that Arrow knows."""


def has_names(schema: bytes) -> bool:
    """Whether a serialised schema may name extension types."""
    return _NAME in schema


def read_stored_schema(data: bytes) -> pa.Schema:
    """The schema of these bytes, with each extension type as what it is stored in."""
    if not has_names(data):
        return pa.ipc.read_schema(pa.py_buffer(data))
    return without_names(pa.ipc.read_schema(pa.py_buffer(data.replace(_NAME, _HIDDEN))))


def without_names(schema: pa.Schema) -> pa.Schema:
    """The same schema without names of extension types in the metadata of its fields."""
    return pa.schema([_bare(field) for field in schema], schema.metadata)


def _bare(field: pa.Field) -> pa.Field:
    told = field.metadata or {}
    kept = {key: text for key, text in told.items() if not key.startswith(_PREFIX)}
    return pa.field(field.name, _bare_type(field.type), field.nullable, kept or None)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_bare(field) for field in kind])
    if pa.types.is_map(kind):
        key, item = _bare(kind.key_field), _bare(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_bare(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_bare(kind.value_field))
    return pa.list_(_bare(kind.value_field)) if pa.types.is_list(kind) else kind
