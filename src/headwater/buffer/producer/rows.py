"""Records as plain lists, until there are enough of them to be worth an Arrow array.

An Arrow array costs microseconds, however small; one for each call of one record would cost more
than everything else that happens to the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.buffer.arrow_stream import ValuesColumn
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
)

Header = list[dict[str, Any]]


class Rows:
    """Valued records, column by column. A column that no call has used is None."""

    __slots__ = ("headers", "is_plain", "keys", "operations", "sizes", "timestamps", "values")

    def __init__(self) -> None:
        self.is_plain = True
        """Whether no column but the value is used."""
        self.values: list[bytes | None] = []
        self.sizes = array("i")
        """Of the values, as far as calls told them: of all of them, or of no use."""
        self.keys: list[bytes | None] | None = None
        self.headers: list[Header | None] | None = None
        self.timestamps: list[int | None] | None = None
        """In microseconds since 1970."""
        self.operations: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Header | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        operations: Sequence[int | None] | None = None,
        sizes: list[int] | None = None,
    ) -> None:
        """Add records; None in a column that others use means the same as if nobody used it."""
        before, count = len(self.values), len(values)
        self.values.extend(values)
        if sizes is not None:
            self.sizes.fromlist(sizes)
        self.keys = _grown(self.keys, keys, before, count)
        self.headers = _grown(self.headers, headers, before, count)
        self.timestamps = _grown(self.timestamps, timestamps, before, count)
        self.operations = _grown(self.operations, operations, before, count)
        used = (self.keys, self.headers, self.timestamps, self.operations)
        self.is_plain = all(column is None for column in used)

    def append(self, value: bytes, key: bytes | None) -> None:
        """Add one record that has nothing but a value and perhaps a key."""
        keys = self.keys
        if keys is not None:
            keys.append(key)
        elif key is not None:
            self.keys = [None] * len(self.values)
            self.keys.append(key)
            self.is_plain = False
        self.values.append(value)
        if self.headers is not None:
            self.headers.append(None)
        if self.timestamps is not None:
            self.timestamps.append(None)
        if self.operations is not None:
            self.operations.append(None)

    def to_arrow(self) -> pa.RecordBatch:
        """The records as columns, in the order of the record model."""
        try:
            return self._with_values(self._loose().column())
        except TypeError:
            return self._with_values(pa.array(self.values, RESERVED[VALUE]))

    def to_loose_arrow(self) -> tuple[pa.RecordBatch, ValuesColumn | None]:
        """The same with a stand-in for the values, and the values, where none of them is null."""
        try:
            loose = self._loose()
        except TypeError:
            return self._with_values(pa.array(self.values, RESERVED[VALUE])), None
        return self._with_values(loose.stand_in()), loose

    def _loose(self) -> ValuesColumn:
        known = self.sizes if len(self.sizes) == len(self.values) else None
        return ValuesColumn(self.values, known)  # type: ignore[arg-type]

    def _with_values(self, values: pa.Array) -> pa.RecordBatch:
        columns = {
            KEY: self.keys,
            VALUE: values,
            HEADERS: self.headers,
            TIMESTAMP: self.timestamps,
            OPERATION: self.operations,
        }
        used = {name: column for name, column in columns.items() if column is not None}
        arrays = [
            column if name == VALUE else pa.array(column, RESERVED[name])
            for name, column in used.items()
        ]
        return pa.record_batch(arrays, names=list(used))


def _grown(
    column: list[Any] | None, added: Sequence[Any] | None, before: int, count: int
) -> list[Any] | None:
    if added is None:
        if column is not None:
            column.extend([None] * count)
        return column
    if column is None:
        column = [None] * before
    column.extend(added)
    return column
