"""The columns of a DataFrame: Kafka's for opaque values, a stream's own for typed ones.

    opaque   key, value, topic, partition, offset, timestamp, timestampType; headers, metadata
    typed    the columns of the rows, then the same ones with a leading underscore: _key, _topic, …

Names with an underscore belong to Headwater in every stream, so they never meet a typed column.
Only by name, through the option `columns`: _operation, _collection, _kind, _rid, _refresh_records.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.consumer import FetchHandle, UnreadableBatch
from headwater.buffer.records import HEADERS_TYPE
from headwater.buffer.stream import Stream
from headwater.buffer.stream.deleted import telling_of_deletion
from headwater.core.errors import Refused
from headwater.spark.options import ReadOptions

PLACED: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
}
KAFKA: Final[dict[str, pa.DataType]] = {"key": pa.binary(), "value": pa.binary(), **PLACED}
EXTRA: Final[dict[str, pa.DataType]] = {"headers": HEADERS_TYPE, "metadata": pa.binary()}
LOOKED_AT: Final = 16
"""Batches of a partition that are looked at for one with rows."""
ON_REQUEST: Final[dict[str, pa.DataType]] = {
    "_operation": pa.string(),
    "_collection": pa.string(),
    "_kind": pa.string(),
    "_rid": pa.int64(),
    "_refresh_records": pa.list_(pa.field("element", pa.binary())),
}


class Shape(msgspec.Struct, frozen=True):
    """What the rows of a stream are made of."""

    typed: tuple[tuple[str, object], ...] = ()
    """Names and Arrow types of the columns; none if values are opaque."""
    is_declared: bool = False
    """Whether the stream declares them, so that columns may be added while it is read."""
    is_known: bool = True
    """Whether anything tells: a stream that declares nothing and has no rows yet may get any."""

    def columns(self, options: ReadOptions) -> pa.Schema:
        """The columns that were asked for, in their order."""
        shown, offered = self._offered(options)
        names = list(shown) if options.columns is None else options.columns
        unknown = [name for name in names if name not in offered]
        if unknown:
            raise Refused(f"columns: there is no {unknown[0]!r}; there are {', '.join(offered)}")
        return pa.schema([pa.field(name, offered[name]) for name in names])

    def _offered(self, options: ReadOptions) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is shown without being named, and what may be named."""
        placed = {"key": pa.binary(), **PLACED} if self.typed else KAFKA
        mark = "_" if self.typed else ""
        shown = dict(self.typed) | {f"{mark}{name}": kind for name, kind in placed.items()}
        extra = {f"{mark}{name}": kind for name, kind in EXTRA.items()}
        if options.include_headers:
            shown[f"{mark}headers"] = extra[f"{mark}headers"]
        if options.include_metadata:
            shown[f"{mark}metadata"] = extra[f"{mark}metadata"]
        return shown, shown | extra | ON_REQUEST

    def names(self, options: ReadOptions) -> list[str]:
        """Every column that may be asked for."""
        return list(self._offered(options)[1])


async def shape_of(streams: Sequence[Stream], options: ReadOptions) -> Shape:
    """The one shape that all streams of a query have."""
    shapes = {stream.name: await _shape_of_one(stream, options) for stream in streams}
    if not shapes:
        return Shape()
    (first_name, first), *others = shapes.items()
    for name, shape in others:
        if shape.typed != first.typed:
            raise Refused(
                f"streams {first_name!r} and {name!r} have different columns ({_words(first)}; "
                f"{_words(shape)}): read them in two DataFrames, and union what they share"
            )
    return first


async def check_given(streams: Sequence[Stream], names: list[str], options: ReadOptions) -> None:
    """Refuse a schema given by hand that has a column which no stream has: it would be null."""
    known: dict[str, None] = {}
    for stream in streams:
        shape = await _shape_of_one(stream, options)
        if not shape.is_known:
            return
        known |= dict.fromkeys(shape.names(options))
    unknown = [name for name in names if name not in known]
    if streams and unknown:
        first = streams[0]
        raise Refused(
            f"the schema has a column {unknown[0]!r}, and there are {', '.join(known)}. Leave the "
            "schema out, and Spark is told it; if later records have the column, declare it: "
            f"headwater stream alter {shlex.quote(first.store.url)} {first.name} --schema FILE"
        )


async def _shape_of_one(stream: Stream, options: ReadOptions) -> Shape:
    asked = options.value_format
    if stream.schema is not None:
        if asked == "raw":
            raise Refused(
                f"valueFormat=raw: stream {stream.name!r} declares columns and has no opaque values"
            )
        return Shape(_typed(stream.schema), is_declared=True)
    if stream.config.format == "v1":
        if asked == "arrow":
            raise Refused(
                f"valueFormat=arrow: stream {stream.name!r} is in the published v1 format, which "
                "carries opaque values alone"
            )
        return Shape()
    async with telling_of_deletion(stream):
        found = await _shape_of_first_batch(stream)
    if asked == "raw":
        if found.typed and options.columns is None:
            raise Refused(
                f"valueFormat=raw: the oldest records of stream {stream.name!r} have columns "
                f"({_words(found)}) and no opaque values: leave the option out"
            )
        return Shape(is_known=found.is_known)
    if asked == "arrow" and not found.typed:
        raise Refused(
            f"valueFormat=arrow: stream {stream.name!r} declares no columns, and its oldest "
            "batch has none. Declare a schema (headwater stream alter), or use valueFormat=raw"
        )
    return found


async def _shape_of_first_batch(stream: Stream) -> Shape:
    for partition in range(stream.partitions):
        handle = FetchHandle.of(stream, partition)
        for descriptor in await stream.looker(partition).after(None, LOOKED_AT):
            try:
                records = (await handle.fetch(descriptor)).records
            except UnreadableBatch:
                continue  # whoever reads it is told
            if records.num_rows:
                kept = [field for field in records.schema if not field.name.startswith("_")]
                return Shape(_typed(pa.schema(kept)))
    return Shape(is_known=False)


def _typed(schema: pa.Schema) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.type) for field in schema)


def _words(shape: Shape) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in shape.typed) or "opaque values"
