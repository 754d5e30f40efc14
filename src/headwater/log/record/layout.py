"""The same memory under another type: for what a cast refuses, or would change."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def retyped(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same memory under a type of the same layout.

    A cast would refuse nulls below a null, where the inner field by itself allows none.
    """
    if column.type.equals(kind, check_metadata=True):
        return column
    return pa.array(_Retyped(column, kind))


def loosened(
    kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType] = lambda kind: kind
) -> pa.DataType:
    """The same shape with other leaves, if any, and with nulls allowed everywhere within."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, loosened(one.type, leaf)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(loosened(kind.key_type, leaf), loosened(kind.item_type, leaf))
    if is_list(kind):
        return list_like(kind, pa.field("element", loosened(kind.value_type, leaf)))
    return leaf(kind)


def is_list(kind: pa.DataType) -> bool:
    """Whether it is one of those that a log carries; maps are none here."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def list_like(kind: pa.DataType, element: pa.Field) -> pa.DataType:
    """A list of the same kind with other elements."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)


class _Retyped:
    """Hands out an array under another type, by Arrow's C data interface."""

    def __init__(self, column: pa.Array, kind: pa.DataType) -> None:
        self._column = column
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self._column.__arrow_c_array__()
        return self._kind.__arrow_c_schema__(), array
