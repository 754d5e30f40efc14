"""An image of a keyed state: one Parquet file of the latest record of each key.

Columns are those of the records, and `_lsn`, in types that Parquet keeps as they are. Records of
one collection and one schema stand together, as a *part*; where a column is kept in another type in
another part, it has another name in the file, and the file's metadata say which is which, and what
the records' own types are. So every record comes back as it was. They also have the hashes of the
last records that were applied: a leader's log can be compared with them. Pages have checksums, and
the whole file's is in its name (see `image_store`).

Always holds: an image that was made can be read. Whoever has written one lets the log before it go.
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
from headwater.log.record import Group, range_hash
from headwater.log.record.kept_columns import kept_column, restored_column
from headwater.log.record.kept_types import kept_type
from headwater.log.record.layout import loosened
from headwater.log.replica.keyed_table import LSN
from headwater.log.replica.target import Image

FORMAT: Final = 3
_METADATA: Final = b"headwater.image"


class _Part(msgspec.Struct, frozen=True):
    collection: str
    rows: int
    columns: list[str]
    """Their names in the file, in the order of the schema."""
    schema: str
    """The records' own: an Arrow schema, serialised, in base64."""


class _Format(msgspec.Struct, frozen=True):
    image_format: int


class _Head(msgspec.Struct, frozen=True):
    image_format: int
    lsn: int
    """Everything through this one is in it."""
    rows: int
    collections: list[str]
    """Also those that hold nothing."""
    parts: list[_Part]
    """In the order of their rows."""
    last_hashes: list[int]
    """Of the last records through `lsn`, whether or not they are still in it."""


class ImageContent(NamedTuple):
    """What an image holds."""

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
        found = decode_image(data, Image(lsn, "what was written"))
        if not _is_same(found.collections, collections):
            raise Corrupt("the records that come back are others")
    except (pa.ArrowException, OSError, ValueError, Refused, Corrupt) as error:
        raise NotSupported(f"the state at LSN {lsn} cannot be kept as an image: {error}") from error
    return data


def _encoded(
    collections: Mapping[str, Sequence[pa.Table]], lsn: int, last_hashes: Sequence[int]
) -> bytes:
    names = _FileNames()
    parts: list[_Part] = []
    tables = [pa.table({LSN: pa.array([], pa.int64())})]
    for collection in sorted(collections):
        for table in collections[collection]:
            kept = _kept(table)
            columns = [names.of(field) for field in kept.schema]
            parts.append(_Part(collection, table.num_rows, columns, _schema_text(table.schema)))
            tables.append(kept.rename_columns(columns))
    rows = sum(part.rows for part in parts)
    head = _Head(FORMAT, lsn, rows, sorted(collections), parts, list(last_hashes))
    sink = io.BytesIO()
    table = pa.concat_tables(tables, promote_options="default")
    table = table.replace_schema_metadata({_METADATA: msgspec.json.encode(head)})
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def decode_image(data: bytes, image: Image) -> ImageContent:
    """What an image holds; `Corrupt` if it is not the one that its name says."""
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        written = (table.schema.metadata or {})[_METADATA]
        found = msgspec.json.decode(written, type=_Format).image_format
        if found != FORMAT:
            raise NotSupported(
                f"{image.key} is an image of format {found}; this version reads {FORMAT}. "
                + ("Upgrade Headwater." if found > FORMAT else "It is of no use any more.")
            )
        head = msgspec.json.decode(written, type=_Head)
        if (head.lsn, head.rows) != (image.lsn, table.num_rows):
            raise Corrupt(f"{image.key} holds {table.num_rows} rows through LSN {head.lsn}")
        return ImageContent(_collections(table, head), head.last_hashes)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Corrupt(f"{image.key} is not an image of a keyed state: {error}") from error


def _collections(table: pa.Table, head: _Head) -> dict[str, list[pa.Table]]:
    found: dict[str, list[pa.Table]] = {name: [] for name in head.collections}
    begins = 0
    for part in head.parts:
        rows = table.slice(begins, part.rows).select(part.columns)
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(part.schema)))
        columns = [
            pa.chunked_array(
                [restored_column(one, field.type) for one in column.chunks], field.type
            )
            for field, column in zip(schema, rows.columns, strict=True)
        ]
        found[part.collection].append(pa.table(columns, schema=schema))
        begins += part.rows
    return found


def _kept(table: pa.Table) -> pa.Table:
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        kept = loosened(kept_type(field.name, field.type))
        chunks = [kept_column(one, kept) for one in column.chunks]
        columns[field.name] = pa.chunked_array(chunks, kept)
    return pa.table(columns)


def _schema_text(schema: pa.Schema) -> str:
    return b64encode(schema.serialize().to_pybytes()).decode()


def _is_same(
    found: Mapping[str, Sequence[pa.Table]], given: Mapping[str, Sequence[pa.Table]]
) -> bool:
    if {name: len(tables) for name, tables in found.items()} != {
        name: len(tables) for name, tables in given.items()
    }:
        return False
    pairs = (
        pair for name, tables in given.items() for pair in zip(tables, found[name], strict=True)
    )
    return all(_is_same_table(*pair) for pair in pairs)


def _is_same_table(one: pa.Table, other: pa.Table) -> bool:
    if not one.schema.equals(other.schema):
        return False
    # To Arrow, what is no number is unlike itself; to hashes it is not, and they take longer.
    return one.equals(other) or range_hash([*_groups(one)]) == range_hash([*_groups(other)])


def _groups(table: pa.Table) -> Iterator[Group]:
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    ends = list(itertools.accumulate(batch.num_rows for batch in batches))
    for batch, end in zip(batches, ends, strict=True):
        yield Group(0, end - batch.num_rows + 1, end, batch)


class _FileNames:
    """A name in the file for each column of each type."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, pa.DataType], str] = {}
        self._taken: set[str] = set()

    def of(self, field: pa.Field) -> str:
        known = self._names.get((field.name, field.type))
        if known is None:
            known, number = field.name, 2
            while known in self._taken:
                known, number = f"{field.name}.{number}", number + 1
            self._names[field.name, field.type] = known
            self._taken.add(known)
        return known
