"""A schema from a file: JSON of columns and types, or whatever Arrow or Parquet file has one."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.stream.schema import SchemaLike


def read_schema_file(path: Path) -> SchemaLike:
    """What {"column": "type", …} says, or the schema of a Parquet or Arrow file or stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise Refused(f"the schema file {path} cannot be read: {error.strerror}") from error
    try:
        if head.startswith(b"PAR1"):
            return pq.read_schema(path)
        if head == b"ARROW1":
            with pa.ipc.open_file(path) as arrow:
                return arrow.schema
        if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
            return _columns(path)
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
            return stream.schema
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise Refused(
            f'{path} holds no schema: it is JSON as in {{"id": "int64 not null"}}, a Parquet '
            f"file, or an Arrow file ({error})"
        ) from error


def _columns(path: Path) -> dict[str, str]:
    def pairs(found: list[tuple[str, object]]) -> dict[str, str]:
        columns: dict[str, str] = {}
        for name, kind in found:
            if name in columns:
                raise ValueError(f"column {name!r} appears more than once")
            if not isinstance(kind, str):
                raise ValueError(f"the type of {name!r} is not text")
            columns[name] = kind
        return columns

    columns: dict[str, str] = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=pairs)
    return columns
