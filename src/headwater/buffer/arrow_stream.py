"""One record batch as an Arrow IPC stream, and back from untrusted bytes.

Arrow verifies the structure of its messages but not what they ask for: a compressed buffer
states its own size, and offsets may point anywhere. So a stream read here has a schema and
one record batch, uncompressed, and every offset is checked before the batch is returned.

`read` restores registered extension types. `read_stored` returns the storage types, so that
the result does not depend on the types that a process has registered.

Large columns are written without copying them together first: the record batch has a
placeholder of the same size, and `parts` puts the pieces of the column in its place.
"""

from __future__ import annotations

import functools
import mmap
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core import limits
from headwater.core.errors import Corrupt, Refused

# Extension types are names in the metadata of fields, and what they are stored in.
#
# Whether Arrow makes such a type of a column depends on which types a process has registered, and
# it reads nothing at all where the name and the storage do not fit. Without the names a column is
# the same to everybody.


_PREFIX: Final = b"ARROW:extension:"
_NAME: Final = _PREFIX + b"name"
_HIDDEN: Final = _PREFIX + b"n_me"
"""As long as the name's key, so that it can stand in its place, and none that Arrow knows."""


def has_names(schema: bytes) -> bool:
    """Whether a serialised schema may name extension types."""
    return _NAME in schema


def read_stored_schema(data: bytes) -> pa.Schema:
    """The schema of these bytes, with each extension type as what it is stored in."""
    if not has_names(data):
        return pa.ipc.read_schema(pa.py_buffer(data))
    return without_names(pa.ipc.read_schema(pa.py_buffer(data.replace(_NAME, _HIDDEN))))


def without_names(schema: pa.Schema) -> pa.Schema:
    """The same schema without names of extension types in the metadata of its fields."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    told = field.metadata or {}
    kept = {key: text for key, text in told.items() if not key.startswith(_PREFIX)}
    return pa.field(field.name, _plain_type(field.type), field.nullable, kept or None)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        key, item = _plain_field(kind.key_field), _plain_field(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return pa.list_(_plain_field(kind.value_field)) if pa.types.is_list(kind) else kind


# Whether Arrow data are what their types say: the rule by which a batch is read.
#
# Arrow hands on what it was given without a look: Parquet files and casts bring text that is no
# UTF-8, numbers beyond their precision, indices beyond their dictionary. A batch with one such
# value could not be read, nor could anything that shares the batch with it. So whoever writes
# checks by the rule of whoever reads, and before anything else touches the data.


def validate(data: pa.RecordBatch | pa.Table) -> None:
    """The rule itself; `pa.ArrowException` or `UnicodeDecodeError` if the data do not hold to it.

    Of columns without text, decimals and dictionaries this looks at offsets alone.
    """
    _ = data.schema.names  # which need not be text
    data.validate(full=True)


def check_valid(data: pa.RecordBatch | pa.Table) -> None:
    """Refuse data that nobody could read afterwards, naming the column."""
    try:
        validate(data)
    except UnicodeDecodeError as error:
        raise Refused(f"the name of a column is no text: rename it ({error})") from error
    except pa.ArrowException as error:
        raise _invalid(data, error) from error


def _invalid(data: pa.RecordBatch | pa.Table, error: pa.ArrowException) -> Refused:
    for name, column in zip(data.schema.names, data.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as found:
            return Refused(
                f"column {name!r} is {column.type}, and holds what is none: {_plain_text(found)}"
            )
    return Refused(f"the columns are not what they say: {error}")


def _plain_text(error: pa.ArrowException) -> str:
    # Arrow says "Invalid: " once for every level that it came through.
    text = str(error).replace("Invalid: ", "")
    if "UTF8" in text:
        return f"{text}. Decode the text in its own encoding first, or carry the column as binary"
    return text


# A column of bytes whose values stand apart until somebody writes them: one by one, or in chunks.
#
# To put the values of a batch together takes fresh memory of the batch's size, which costs more
# than the copy: every page of it is cleared first. Written piece by piece, one small piece of
# memory serves for all, and is still in the processor's cache when it is checksummed and written.
#
# In the meantime a record batch has a stand-in for the column: an array of the same length,
# offsets and size, whose bytes nobody may read. Arrow frames it as it would frame the column
# itself.


PIECE_BYTES: Final = limits.MIB
"""What is put together at a time: from this size on Python lets others run while it copies."""

_ZERO: Final = bytes(4)


@functools.cache
def _placeholder_memory() -> pa.Buffer:
    """Addresses without memory behind them: nothing is ever read or written there."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, limits.BATCH_MAX_BYTES, flags=flags, prot=mmap.PROT_READ))


class DeferredBytes(Protocol):
    """What stands apart."""

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        ...

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes, in order."""
        ...


class ChunkedColumn:
    """A column of bytes or text in several arrays, of one type."""

    __slots__ = ("_chunks", "_datas", "_length", "_starts")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self._chunks = chunks
        self._datas: list[memoryview] = []
        self._starts: list[int] = []
        for chunk in chunks:
            _, offsets, data = chunk.buffers()
            places = memoryview(offsets).cast("i")
            start, end = places[chunk.offset], places[chunk.offset + len(chunk)]
            self._starts.append(start)
            # An array's memory may hold more than its values.
            self._datas.append(memoryview(data or b"").cast("B")[start:end])
        self._length = sum(map(len, self._datas))

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        return self._length

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, chunk by chunk."""
        return iter(self._datas)

    def stand_in(self) -> pa.Array:
        """The column as far as its frame goes."""
        ends, before = [pa.array([0], pa.int32())], 0
        for chunk, start, data in zip(self._chunks, self._starts, self._datas, strict=True):
            offsets = pa.Array.from_buffers(
                pa.int32(), len(chunk), [None, chunk.buffers()[1]], offset=chunk.offset + 1
            )
            ends.append(pc.add(offsets, pa.scalar(before - start, pa.int32())))
            before += len(data)
        known = None
        if any(chunk.null_count for chunk in self._chunks):
            known = pa.concat_arrays([chunk.is_valid() for chunk in self._chunks]).buffers()[1]
        return pa.Array.from_buffers(
            self._chunks[0].type,
            sum(map(len, self._chunks)),
            [known, pa.concat_arrays(ends).buffers()[1], _placeholder_memory().slice(0, len(self))],
        )


class ValuesColumn:
    """Values of one column, in order, none of them null."""

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: Sequence[bytes], sizes: array[int] | None = None) -> None:
        """`sizes` are those of the values, if they are known. `TypeError` if a value is None."""
        self._values = values
        found = array("i", map(len, values)) if sizes is None else sizes
        lengths = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(found)])
        ends = pc.cumulative_sum(lengths).buffers()[1]
        self._offsets = memoryview(_ZERO + memoryview(ends).cast("B")).cast("i")

    def __len__(self) -> int:
        """Of all values together, in bytes."""
        return self._offsets[-1]

    def stand_in(self) -> pa.Array:
        """The column as far as its frame goes."""
        return self._column(_placeholder_memory().slice(0, len(self)))

    def column(self) -> pa.Array:
        """The column itself."""
        return self._column(pa.py_buffer(b"".join(self._values)))

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, put together a piece at a time."""
        start, values, offsets = 0, self._values, self._offsets
        while start < len(values):
            end = min(bisect_left(offsets, offsets[start] + PIECE_BYTES), len(values))
            yield b"".join(values[start:end])
            start = end

    def _column(self, data: pa.Buffer) -> pa.Array:
        buffers = [None, pa.py_buffer(self._offsets), data]
        return pa.Array.from_buffers(pa.binary(), len(self._values), buffers)


def is_placeholder(buffer: pa.Buffer) -> bool:
    """Whether these are the bytes that nobody may read."""
    return bool(buffer.address == _placeholder_memory().address)


# Places in Arrow's flatbuffers, by field number: Message.header, RecordBatch.compression.
_MESSAGE_HEADER_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3


BytesPart = bytes | memoryview | DeferredBytes
"""A stretch of bytes: at hand, or still to be put together."""


def parts(batch: pa.RecordBatch, loose: DeferredBytes | None = None) -> list[BytesPart]:
    """The stream's bytes, to stand at a place that is a multiple of eight.

    Columns are not copied: their parts share the memory of `batch`. `loose` is the column that one
    of them stands in for.
    """
    sink = _Sink(loose)
    # A Python file is the one sink to which Arrow hands its buffers as they are.
    with (
        pa.PythonFile(sink, mode="w") as file,
        pa.ipc.new_stream(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    return sink.parts


class _Sink:
    """Keeps what is written to it where it stands."""

    def __init__(self, loose: DeferredBytes | None) -> None:
        self.parts: list[BytesPart] = []
        self.closed = False
        self._loose = loose

    def write(self, data: bytes | pa.Buffer) -> None:
        if isinstance(data, bytes):
            self.parts.append(data)
        elif self._loose is not None and is_placeholder(data):
            self.parts.append(self._loose)
        else:
            self.parts.append(memoryview(data).cast("B"))

    def tell(self) -> int:
        return sum(map(len, self.parts))

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def read(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The one batch of a stream. Shares the memory of `data`."""
    buffer = pa.py_buffer(data)
    try:
        _check_messages(buffer)
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        validate(batch)
    except (pa.ArrowException, OSError, ValueError, StopIteration, struct.error) as error:
        raise Corrupt(f"not the Arrow stream that a batch holds: {error}") from error
    return batch


def read_stored(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """As `read`, with each extension type as what it is stored in: the same to everybody, whoever
    has registered which."""
    buffer = pa.py_buffer(data)
    try:
        schema_message, batch_message = _check_messages(buffer)
        schema = _stored_schema(schema_message.serialize().to_pybytes())
        batch = pa.ipc.read_record_batch(batch_message, schema)
        validate(batch)
    except (pa.ArrowException, OSError, ValueError, StopIteration, struct.error) as error:
        raise Corrupt(f"not the Arrow stream that a batch holds: {error}") from error
    return batch


def read_back(data: memoryview) -> pa.RecordBatch:
    """The batch of a stream that `parts` made, in the memory of `data`.

    By the rule of `read_stored`, without what only bytes of others need: it is done for every
    write.
    """
    # The schema's message: a mark, the length of its metadata with their padding, and no body.
    _, metadata_bytes = struct.unpack_from("<Ii", data)
    begins = 8 + metadata_bytes
    try:
        schema = _stored_schema(bytes(data[:begins]))
        batch = pa.ipc.read_record_batch(pa.py_buffer(data[begins:]), schema)
        validate(batch)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"what was written cannot be read: {error}") from error
    return batch


# The frames of a log have few schemas.
_stored_schema = functools.lru_cache(maxsize=64)(read_stored_schema)


def _check_messages(buffer: pa.Buffer) -> list[pa.Message]:
    messages = []
    for message in pa.ipc.MessageReader.open_stream(buffer):
        messages.append(message)
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise Corrupt("a batch's Arrow buffers are not compressed one by one")
        if len(messages) > 2:
            break
    kinds = [message.type for message in messages]
    if kinds != ["schema", "record batch"]:
        raise Corrupt(f"a batch holds a schema and one record batch, not {kinds}")
    return messages


def _is_compressed(metadata: memoryview) -> bool:
    """Whether a record batch message names a compression of its buffers."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, root, _MESSAGE_HEADER_FIELD)
    if header is None:
        raise Corrupt("a record batch message has no header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION_FIELD) is not None


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a flatbuffer table keeps a field; None if it does not have it."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0:
        raise Corrupt("a message's table points before its beginning")
    (size,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + offset if offset else None
