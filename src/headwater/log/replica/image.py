"""An image of a keyed state: one Parquet file of the latest record of each key.

Columns are those of the records, `_lsn`, and `_collection`. The file's own metadata say what it is;
pages have checksums, and the whole file's is in its name (see `image_store`).
"""

from __future__ import annotations

import io
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.core.errors import Corrupt, NotSupported
from headwater.log.record.columns import COLLECTION
from headwater.log.replica.keyed_table import LSN
from headwater.log.replica.target import Image

FORMAT: Final = 1
_METADATA: Final = b"headwater.image"


class _Head(msgspec.Struct, frozen=True):
    image_format: int
    lsn: int
    """Everything through this one is in it."""
    rows: int
    collections: list[str]
    """Also those that hold nothing."""


def encode_image(collections: dict[str, pa.Table], lsn: int) -> bytes:
    """The bytes of an image of everything through `lsn`."""
    names = sorted(collections)
    parts = [_named(collections[name], name) for name in names if collections[name].num_rows]
    empty = pa.table({LSN: pa.array([], pa.int64())})
    table = pa.concat_tables(parts, promote_options="permissive") if parts else empty
    head = _Head(FORMAT, lsn, table.num_rows, names)
    table = table.replace_schema_metadata({_METADATA: msgspec.json.encode(head)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def decode_image(data: bytes, image: Image) -> dict[str, pa.Table]:
    """The records of each collection; `Corrupt` if it is not the image that its name says."""
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        head = msgspec.json.decode((table.schema.metadata or {})[_METADATA], type=_Head)
    except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
        raise Corrupt(f"{image.key} is not an image of a keyed state: {error}") from error
    if head.image_format != FORMAT:
        raise NotSupported(
            f"{image.key} is an image of format {head.image_format}; this version reads {FORMAT}. "
            "Upgrade Headwater."
        )
    if (head.lsn, head.rows) != (image.lsn, table.num_rows):
        raise Corrupt(f"{image.key} holds {table.num_rows} rows through LSN {head.lsn}")
    table = table.replace_schema_metadata(None)
    return {name: _of(table, name) for name in head.collections}


def _named(table: pa.Table, collection: str) -> pa.Table:
    if COLLECTION in table.schema.names:
        table = table.drop_columns([COLLECTION])
    column = pa.repeat(pa.scalar(collection), table.num_rows)
    return table.append_column(COLLECTION, column)


def _of(table: pa.Table, collection: str) -> pa.Table:
    if COLLECTION not in table.schema.names:
        return table
    return table.filter(pc.equal(table.column(COLLECTION), collection))
