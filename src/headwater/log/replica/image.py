"""An image of a keyed state: one Parquet file of the latest record of each key.

Columns are those of the records, and `_lsn`. Records of one collection and one schema stand
together, as a *part*; where a column has another type in another part, it has another name in the
file, and the file's metadata say which is which. So every record comes back as it was. They also
have the hashes of the last records that were applied: a leader's log can be compared with them.
Pages have checksums, and the whole file's is in its name (see `image_store`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.core.errors import Corrupt, NotSupported
from headwater.log.record.columns import COLLECTION
from headwater.log.replica.keyed_table import LSN
from headwater.log.replica.target import Image

FORMAT: Final = 2
_ONE_SCHEMA: Final = 1
"""The format before: all records of all collections in one schema."""
_METADATA: Final = b"headwater.image"


class _Part(msgspec.Struct, frozen=True):
    collection: str
    rows: int
    columns: dict[str, str]
    """By its name in the file, what each is called in the records."""


class _Head(msgspec.Struct, frozen=True):
    image_format: int
    lsn: int
    """Everything through this one is in it."""
    rows: int
    collections: list[str]
    """Also those that hold nothing."""
    parts: list[_Part] = []
    """In the order of their rows."""
    last_hashes: list[int] = []
    """Of the last records through `lsn`, whether or not they are still in it."""


class ImageContent(NamedTuple):
    """What an image holds."""

    collections: dict[str, list[pa.Table]]
    last_hashes: list[int]


def encode_image(
    collections: Mapping[str, Sequence[pa.Table]], lsn: int, last_hashes: Sequence[int] = ()
) -> bytes:
    """The bytes of an image of everything through `lsn`; each table is of one schema."""
    names = _FileNames()
    parts: list[_Part] = []
    tables = [pa.table({LSN: pa.array([], pa.int64())})]
    for collection in sorted(collections):
        for table in collections[collection]:
            columns = {names.of(field): field.name for field in table.schema}
            parts.append(_Part(collection, table.num_rows, columns))
            tables.append(pa.table(dict(zip(columns, table.columns, strict=True))))
    rows = sum(part.rows for part in parts)
    head = _Head(FORMAT, lsn, rows, sorted(collections), parts, list(last_hashes))
    sink = io.BytesIO()
    try:
        table = pa.concat_tables(tables, promote_options="default")
        table = table.replace_schema_metadata({_METADATA: msgspec.json.encode(head)})
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    except pa.ArrowException as error:
        raise NotSupported(f"the state at LSN {lsn} cannot be kept as an image: {error}") from error
    return sink.getvalue()


def decode_image(data: bytes, image: Image) -> ImageContent:
    """What an image holds; `Corrupt` if it is not the one that its name says."""
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        head = msgspec.json.decode((table.schema.metadata or {})[_METADATA], type=_Head)
    except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
        raise Corrupt(f"{image.key} is not an image of a keyed state: {error}") from error
    if head.image_format not in (_ONE_SCHEMA, FORMAT):
        raise NotSupported(
            f"{image.key} is an image of format {head.image_format}; this version reads {FORMAT}. "
            "Upgrade Headwater."
        )
    if (head.lsn, head.rows) != (image.lsn, table.num_rows):
        raise Corrupt(f"{image.key} holds {table.num_rows} rows through LSN {head.lsn}")
    table = table.replace_schema_metadata(None)
    if head.image_format == _ONE_SCHEMA:
        return ImageContent({name: [_of(table, name)] for name in head.collections}, [])
    found: dict[str, list[pa.Table]] = {name: [] for name in head.collections}
    begins = 0
    for part in head.parts:
        rows = table.slice(begins, part.rows).select(list(part.columns))
        found[part.collection].append(rows.rename_columns(list(part.columns.values())))
        begins += part.rows
    return ImageContent(found, head.last_hashes)


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


def _of(table: pa.Table, collection: str) -> pa.Table:
    if COLLECTION not in table.schema.names:
        return table
    return table.filter(pc.equal(table.column(COLLECTION), collection))
