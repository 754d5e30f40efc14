"""Columns that a table can hold at all: one name each, and a type that Iceberg has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headwater.core.errors import Refused

_PLAIN: Final = (
    *(NumericType, DecimalType, StringType, BinaryType, BooleanType),
    *(DateType, TimestampType, TimestampNTZType),
)


def check_holdable(schema: StructType) -> None:
    """Refuse the first column that no table can hold, by its name."""
    _check_names(schema, "")
    for path, kind in _leaves(schema, ""):
        if isinstance(kind, NullType):
            raise Refused(
                f"column {path} has no type, only nulls: cast it to the one it is to have"
            )
        if isinstance(kind, VariantType):
            raise Refused(
                f"column {path} is variant, which a table cannot hold: write its text, "
                f"to_json({path}), or take columns out of it with variant_get"
            )
        if not isinstance(kind, _PLAIN):
            raise Refused(
                f"column {path} is {kind.simpleString()}, which a table cannot hold: cast it"
            )


def _check_names(schema: StructType, within: str) -> None:
    counted = Counter(name.lower() for name in schema.names)
    for name in schema.names:
        path = f"{within}{name}"
        if "." in name:
            raise Refused(
                f"column {path}: a name in a table has no dot, which leads into a struct there: "
                f"rename it, withColumnRenamed({name!r}, {name.replace('.', '_')!r})"
            )
        if counted[name.lower()] > 1:
            same = [f"{within}{other}" for other in schema.names if other.lower() == name.lower()]
            raise Refused(
                f"columns {', '.join(same)}: Spark takes these names for one, and a table with "
                "all of them could not be read: rename or drop all but one"
            )


def _leaves(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        if path:
            _check_names(kind, f"{path}.")
        for field in kind:
            yield from _leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from _leaves(kind.keyType, f"{path}.key")
        yield from _leaves(kind.valueType, f"{path}.value")
    else:
        yield path, kind
