"""Images of keyed states: Parquet files of the latest record of each key.

Columns are those of the records and `_lsn`, in types that Parquet returns unchanged. Records of one
collection and one schema form a *part*. Where a column is stored in another type in another part,
it has another name in the file; the file's metadata have the names and the records' own types. So
every record comes back as it was. The metadata also have the hashes of the last applied records, so
that a leader's log can be compared with them. Pages have checksums.

Always holds: an image counts only after it was read back, because the log before it may be pruned
then.
"""

from __future__ import annotations

import io
import itertools
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core.errors import Corrupt, NotSupported, Refused
from headwater.log.record.arrow_types import (
    from_parquet_column,
    nullable_type,
    parquet_type,
    to_parquet_column,
)
from headwater.log.record.group import Group
from headwater.log.record.hashes import range_hash
from headwater.log.replica.contract import Image
from headwater.log.replica.keyed_table import LSN_COLUMN

IMAGE_FORMAT: Final = 3
_IMAGE_METADATA: Final = b"headwater.image"


class _ImagePart(msgspec.Struct, frozen=True):
    collection: str
    rows: int
    columns: list[str]
    """Their names in the file, in the order of the schema."""
    schema: str
    """The records' own: an Arrow schema, serialised, in base64."""


class _ImageFormat(msgspec.Struct, frozen=True):
    image_format: int


class _ImageHead(msgspec.Struct, frozen=True):
    image_format: int
    lsn: int
    """Everything through this one is in it."""
    rows: int
    collections: list[str]
    """Also those that hold nothing."""
    parts: list[_ImagePart]
    """In the order of their rows."""
    last_hashes: list[int]
    """Of the last records through `lsn`, whether or not they are still in it."""


class ImageContent(NamedTuple):
    collections: dict[str, list[pa.Table]]
    last_hashes: list[int]


def encode_image(
    collections: Mapping[str, Sequence[pa.Table]], lsn: int, last_hashes: Sequence[int] = ()
) -> bytes:
    """The bytes of an image of everything through `lsn`; each table is of one schema.

    They were read back: `NotSupported` if the state cannot be had from them.
    """
    try:
        data = _encoded(collections, lsn, last_hashes)
        content = decode_image(data, Image(lsn, "what was written"))
        if not _is_same(content.collections, collections):
            raise Corrupt("reading it back returns other records")
    except (pa.ArrowException, OSError, ValueError, Refused, Corrupt) as error:
        raise NotSupported(
            f"the state at LSN {lsn} cannot be stored as an image: {error}"
        ) from error
    return data


def _encoded(
    collections: Mapping[str, Sequence[pa.Table]], lsn: int, last_hashes: Sequence[int]
) -> bytes:
    names = _FileNames()
    parts: list[_ImagePart] = []
    tables = [pa.table({LSN_COLUMN: pa.array([], pa.int64())})]
    for collection in sorted(collections):
        for table in collections[collection]:
            stored = _parquet_table(table)
            columns = [names.of(field) for field in stored.schema]
            schema = b64encode(table.schema.serialize().to_pybytes()).decode()
            parts.append(_ImagePart(collection, table.num_rows, columns, schema))
            tables.append(stored.rename_columns(columns))
    rows = sum(part.rows for part in parts)
    head = _ImageHead(IMAGE_FORMAT, lsn, rows, sorted(collections), parts, list(last_hashes))
    sink = io.BytesIO()
    table = pa.concat_tables(tables, promote_options="default")
    table = table.replace_schema_metadata({_IMAGE_METADATA: msgspec.json.encode(head)})
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def decode_image(data: bytes, image: Image) -> ImageContent:
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        written = (table.schema.metadata or {})[_IMAGE_METADATA]
        version = msgspec.json.decode(written, type=_ImageFormat).image_format
        if version != IMAGE_FORMAT:
            raise NotSupported(
                f"{image.key} is an image of format {version}; this version reads {IMAGE_FORMAT}. "
                + (
                    "Upgrade Headwater."
                    if version > IMAGE_FORMAT
                    else "It cannot be used any more."
                )
            )
        head = msgspec.json.decode(written, type=_ImageHead)
        if (head.lsn, head.rows) != (image.lsn, table.num_rows):
            raise Corrupt(f"{image.key} holds {table.num_rows} rows through LSN {head.lsn}")
        return ImageContent(_collections(table, head), head.last_hashes)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Corrupt(f"{image.key} is not an image of a keyed state: {error}") from error


def _collections(table: pa.Table, head: _ImageHead) -> dict[str, list[pa.Table]]:
    collections: dict[str, list[pa.Table]] = {name: [] for name in head.collections}
    begins = 0
    for part in head.parts:
        rows = table.slice(begins, part.rows).select(part.columns)
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(part.schema)))
        columns = [
            pa.chunked_array(
                [from_parquet_column(one, field.type) for one in column.chunks], field.type
            )
            for field, column in zip(schema, rows.columns, strict=True)
        ]
        collections[part.collection].append(pa.table(columns, schema=schema))
        begins += part.rows
    return collections


def _parquet_table(table: pa.Table) -> pa.Table:
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        stored = nullable_type(parquet_type(field.name, field.type))
        chunks = [to_parquet_column(one, stored) for one in column.chunks]
        columns[field.name] = pa.chunked_array(chunks, stored)
    return pa.table(columns)


def _is_same(
    one: Mapping[str, Sequence[pa.Table]], other: Mapping[str, Sequence[pa.Table]]
) -> bool:
    return one.keys() == other.keys() and all(
        len(tables) == len(other[name]) and all(map(_is_same_table, tables, other[name]))
        for name, tables in one.items()
    )


def _is_same_table(one: pa.Table, other: pa.Table) -> bool:
    if not one.schema.equals(other.schema):
        return False
    # For Arrow NaN is unequal to itself; hashes compare it, and are slower.
    return one.equals(other) or range_hash([*_groups(one)]) == range_hash([*_groups(other)])


def _groups(table: pa.Table) -> Iterator[Group]:
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    ends = list(itertools.accumulate(batch.num_rows for batch in batches))
    for batch, end in zip(batches, ends, strict=True):
        yield Group(0, end - batch.num_rows + 1, end, batch)


class _FileNames:
    def __init__(self) -> None:
        self._names: dict[tuple[str, pa.DataType], str] = {}
        self._taken: set[str] = set()

    def of(self, field: pa.Field) -> str:
        name = self._names.get((field.name, field.type))
        if name is None:
            name, number = field.name, 2
            while name in self._taken:
                name, number = f"{field.name}.{number}", number + 1
            self._names[field.name, field.type] = name
            self._taken.add(name)
        return name
