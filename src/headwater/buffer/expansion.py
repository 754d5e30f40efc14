"""What columns take once they are written out: a dictionary, or a view, names one value many times.

A thousand indices of a value of a mebibyte are a gibibyte in the batch. That is counted, from the
lengths alone, before any of it is allocated.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import limits
from headwater.core.errors import LimitExceeded

_OF_VARIABLE_SIZE: Final = frozenset(
    {pa.binary(), pa.string(), pa.large_binary(), pa.large_string()}
)


def check_expansion(table: pa.Table) -> None:
    """Refuse columns that take more than EXPANDED_MAX_BYTES once they are written out."""
    total = 0
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if not _shares_values(column.type):
            continue
        total += sum(map(_written_out_bytes, column.chunks))
        if total > limits.EXPANDED_MAX_BYTES:
            raise LimitExceeded(
                f"column {name!r} is {column.type}: written out, as it is carried, the call takes "
                f"{total:,} bytes, and EXPANDED_MAX_BYTES is {limits.EXPANDED_MAX_BYTES:,}. Give "
                "it in several calls"
            )


def _shares_values(kind: pa.DataType) -> bool:
    """Whether several rows of a type may share the memory of one value."""
    if pa.types.is_dictionary(kind) or _is_view(kind):
        return True
    return any(_shares_values(kind.field(place).type) for place in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _written_out_bytes(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _total(_lengths(column.dictionary).take(column.indices))
    if pa.types.is_struct(kind):
        return sum(map(_written_out_bytes, column.flatten()))
    if pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        column = column.cast(pa.list_(pa.field("entries", entry, nullable=False)))
        return _written_out_bytes(column.flatten())
    if pa.types.is_nested(kind):
        return _written_out_bytes(column.flatten())
    return _total(_lengths(column))


def _lengths(column: pa.Array) -> pa.Array:
    """The bytes of every value, null where there is none."""
    kind = column.type
    if _is_view(kind):
        # Arrow has no kernel for it. A view begins with the length of what it points to.
        views = pa.Array.from_buffers(
            pa.binary(16), len(column), column.buffers()[:2], offset=column.offset
        )
        return pc.binary_slice(views, 0, 4).view(pa.int32())
    if kind in _OF_VARIABLE_SIZE:
        return pc.binary_length(column)
    return pa.repeat(pa.scalar(_width_bytes(kind), pa.int64()), len(column))


def _width_bytes(kind: pa.DataType) -> int:
    """Of a type of fixed width; what is nested in a dictionary cannot be written out at all."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 0


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
