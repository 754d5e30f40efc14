"""The streams of a reader or writer, and the columns of the DataFrame that reads them.

    opaque   key, value, topic, partition, offset, timestamp, timestampType; on request headers,
             ingestionTimestamp, metadata
    typed    the columns of the rows, then the same ones with a leading underscore: _key, _topic, …

Names with an underscore are reserved for Headwater in every stream, so they never collide with a
typed column. Only by name, through the option `columns`: _operation, _collection, _kind, _rid,
_refresh_records.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.buffer.records import HEADERS_TYPE
from headwater.buffer.stream import Stream, open_stream, open_streams, stream_names
from headwater.core.errors import HeadwaterError, NotFound, Refused
from headwater.spark.options import ReadOptions
from headwater.spark.source.offset import StreamPartition
from headwater.store import Store


async def named_stream(store: Store, name: str, *, writing: bool = False) -> Stream:
    """Open a stream; the error for a missing one lists those that exist."""
    try:
        return await open_stream(store, name, writing=writing)
    except NotFound as error:
        names = ", ".join((await stream_names(store))[:10]) or "none"
        raise NotFound(
            f"there is no stream {name!r} at {store.url} (streams there: {names}). To make it: "
            f"headwater stream create {shlex.quote(store.url)} {name}"
        ) from error


POSITION_COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
}
KAFKA: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    **POSITION_COLUMNS,
}
EXTRA: Final[dict[str, pa.DataType]] = {
    "headers": HEADERS_TYPE,
    "ingestionTimestamp": pa.timestamp("us", "UTC"),
    "metadata": pa.binary(),
}
ON_REQUEST: Final[dict[str, pa.DataType]] = {
    "_operation": pa.string(),
    "_collection": pa.string(),
    "_kind": pa.string(),
    "_rid": pa.int64(),
    "_refresh_records": pa.list_(pa.field("element", pa.binary())),
}


class SourceSchema(msgspec.Struct, frozen=True):
    """The columns that the rows of streams can have."""

    typed: tuple[tuple[str, object], ...] = ()
    """Names and Arrow types of the columns; empty if values are opaque."""
    versions: tuple[tuple[str, int], ...] = ()
    """The version of each stream's schema, which may grow while it is read."""
    is_known: bool = True
    """False for a stream without records, which may still get any columns."""

    def columns(self, options: ReadOptions) -> pa.Schema:
        """The columns that the options select, in their order."""
        shown, offered = self._offered(options)
        names = list(shown) if options.columns is None else options.columns
        unknown = [name for name in names if name not in offered]
        if unknown:
            raise Refused(f"columns: there is no {unknown[0]!r}; there are {', '.join(offered)}")
        return pa.schema([pa.field(name, offered[name]) for name in names])

    def _offered(self, options: ReadOptions) -> tuple[dict[str, Any], dict[str, Any]]:
        """The columns by default, and all that can be selected."""
        placed = {"key": pa.binary(), **POSITION_COLUMNS} if self.typed else KAFKA
        mark = "_" if self.typed else ""
        shown = dict(self.typed) | {f"{mark}{name}": kind for name, kind in placed.items()}
        extra = {f"{mark}{name}": kind for name, kind in EXTRA.items()}
        included = {
            "headers": options.include_headers,
            "ingestionTimestamp": options.include_ingestion_timestamp,
            "metadata": options.include_metadata,
        }
        for name, is_included in included.items():
            if is_included:
                shown[f"{mark}{name}"] = extra[f"{mark}{name}"]
        return shown, shown | extra | ON_REQUEST

    def names(self, options: ReadOptions) -> list[str]:
        """Every column that can be selected."""
        return list(self._offered(options)[1])


def source_schema(streams: Sequence[Stream], options: ReadOptions) -> SourceSchema:
    """The columns that all streams of a query have in common."""
    schemas = {stream.name: _schema_of(stream, options) for stream in streams}
    if not schemas:
        return SourceSchema()
    (first_name, first), *others = schemas.items()
    for name, schema in others:
        if schema.typed != first.typed:
            raise Refused(
                f"streams {first_name!r} and {name!r} have different columns ({_describe(first)}; "
                f"{_describe(schema)}): read them in two DataFrames, and union what they share"
            )
    return msgspec.structs.replace(
        first, versions=tuple((stream.name, stream.schema_version) for stream in streams)
    )


def check_user_schema(streams: Sequence[Stream], names: list[str], options: ReadOptions) -> None:
    """Refuse a user's schema with a column that no stream has, which would always be null."""
    offered: dict[str, None] = {}
    for stream in streams:
        schema = _schema_of(stream, options)
        if not schema.is_known:
            return
        offered |= dict.fromkeys(schema.names(options))
    unknown = [name for name in names if name not in offered]
    if streams and unknown:
        first = streams[0]
        raise Refused(
            f"the schema has a column {unknown[0]!r}, and there are {', '.join(offered)}. Leave "
            "the schema out to get these; if later records have the column, declare it: "
            f"{first.alter_command}"
        )


def _schema_of(stream: Stream, options: ReadOptions) -> SourceSchema:
    value_format = options.value_format
    if stream.schema is not None:
        if value_format == "raw":
            raise Refused(
                f"valueFormat=raw: stream {stream.name!r} carries columns and has no opaque "
                "values: leave the option out"
            )
        return SourceSchema(tuple((field.name, field.type) for field in stream.schema))
    if value_format == "arrow":
        why = (
            "is in the published v1 format, which carries opaque values alone"
            if stream.config.format == "v1"
            else "carries opaque values: use valueFormat=raw"
            if stream.is_opaque
            else "carries nothing yet: declare its columns (headwater stream alter)"
        )
        raise Refused(f"valueFormat=arrow: stream {stream.name!r} {why}")
    return SourceSchema(is_known=stream.is_opaque)


def _describe(schema: SourceSchema) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema.typed) or "opaque values"


async def subscribed_streams(store: Store, options: ReadOptions) -> list[Stream]:
    """Open the streams that the options name. Opens no consumer."""
    if options.subscribe_pattern is None:
        names = sorted(options.subscribe or options.assign)
        return [await named_stream(store, name) for name in names]
    pattern = re.compile(options.subscribe_pattern)
    matching = [name for name in await stream_names(store) if pattern.fullmatch(name)]
    streams = []
    for opened in (await open_streams(store, matching)).values():
        if isinstance(opened, HeadwaterError):
            raise opened
        streams.append(opened)
    return streams


def parts_of(
    streams: Sequence[Stream], options: ReadOptions
) -> list[tuple[Stream, StreamPartition]]:
    """The partitions of the streams: those that are assigned, or all."""
    parts: list[tuple[Stream, StreamPartition]] = []
    for stream in streams:
        numbers = options.assign.get(stream.name) or range(stream.partitions)
        beyond = [number for number in numbers if number >= stream.partitions]
        if beyond:
            raise Refused(
                f"assign: stream {stream.name!r} has partitions 0 to {stream.partitions - 1}, not "
                f"{beyond[0]}"
            )
        parts += [(stream, StreamPartition(stream.name, number)) for number in numbers]
    return parts
