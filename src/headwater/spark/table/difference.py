"""Where columns that are written and those of a table differ, and whether the table can follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException

from headwater.spark.versions import spark_schema

_WIDER: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


class Kind(Enum):
    """What a difference takes."""

    NEW = auto()
    WIDER = auto()
    UNFIT = auto()


class Difference(NamedTuple):
    """One column that a table does not have as it is written."""

    kind: Kind
    path: str
    written: pa.DataType
    held: pa.DataType | None
    spelled: str | None = None

    def __str__(self) -> str:
        if self.spelled is not None:
            return (
                f"{self.path} is called {self.spelled} in the table, which Spark takes for the "
                "same name"
            )
        if self.held is None:
            return f"{self.path} {_words(self.written)} is new"
        return f"{self.path} is {_words(self.written)}, and {_words(self.held)} in the table"


def differences(written: Iterable[pa.Field], held: Iterable[pa.Field]) -> Iterator[Difference]:
    """What the table would have to change for these columns, or cannot."""
    return _of_fields("", written, held)


def _of_fields(
    within: str, written: Iterable[pa.Field], held: Iterable[pa.Field]
) -> Iterator[Difference]:
    kinds = {field.name: field.type for field in held}
    spelled = {name.lower(): name for name in kinds}
    for field in written:
        path = f"{within}{field.name}"
        kind = kinds.get(field.name)
        if kind is not None:
            yield from _of_types(path, field.type, kind)
        elif field.name.lower() in spelled:
            name = f"{within}{spelled[field.name.lower()]}"
            yield Difference(Kind.UNFIT, path, field.type, None, name)
        else:
            yield Difference(Kind.NEW, path, field.type, None)


def _of_types(path: str, written: pa.DataType, held: pa.DataType) -> Iterator[Difference]:
    if pa.types.is_struct(written) and pa.types.is_struct(held):
        yield from _of_fields(f"{path}.", written, held)
    elif pa.types.is_list(written) and _is_list(held):
        yield from _of_types(f"{path}.element", written.value_type, held.value_type)
    elif pa.types.is_map(written) and pa.types.is_map(held):
        yield from _of_types(f"{path}.key", written.key_type, held.key_type)
        yield from _of_types(f"{path}.value", written.item_type, held.item_type)
    elif not _holds(held, written):
        kind = Kind.WIDER if _holds(written, held) else Kind.UNFIT
        yield Difference(kind, path, written, held)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of one type is one of the other, and Iceberg says so too."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    plain_wide, plain_narrow = _plain(wide), _plain(narrow)
    return bool(plain_wide == plain_narrow or plain_wide in _WIDER.get(plain_narrow, ()))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same whether Arrow keeps it with long offsets or short ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _words(kind: pa.DataType) -> str:
    """As Spark calls the type; those it has no name for as Arrow does."""
    try:
        return str(spark_schema(pa.schema([("x", kind)]))["x"].dataType.simpleString())
    except (PySparkException, TypeError):
        return str(kind)
