"""One record batch as an Arrow IPC stream, and back from untrusted bytes.

Arrow verifies the structure of its messages but not the sizes and offsets in them: a compressed
buffer states its own size, and offsets may point anywhere. So a stream read here has a schema and
one record batch, uncompressed, and every offset is checked before the batch is returned.

`read` restores registered extension types. `read_stored` returns the storage types, so that
the result does not depend on the types that a process has registered.

Large columns are written without copying them together first: the record batch has a
placeholder of the same size, and `parts` puts the pieces of the column in its place.
"""

from __future__ import annotations

import contextlib
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

# Extension types: a name in the metadata of a field, and a storage type. Whether Arrow restores the
# type depends on what a process has registered, and reading fails if name and storage do not match.

_PREFIX: Final = b"ARROW:extension:"
_NAME: Final = _PREFIX + b"name"
_HIDDEN: Final = _PREFIX + b"n_me"
"""As long as the key of the name, which it replaces, and unknown to Arrow."""


def has_names(schema: bytes) -> bool:
    """Whether a serialised schema may contain extension types."""
    return _NAME in schema


@functools.lru_cache(maxsize=64)  # the frames of a log have few schemas
def _stored_schema(data: bytes) -> pa.Schema:
    """Decode a schema, with the storage type for each extension type."""
    if not has_names(data):
        return pa.ipc.read_schema(pa.py_buffer(data))
    return without_names(pa.ipc.read_schema(pa.py_buffer(data.replace(_NAME, _HIDDEN))))


def without_names(schema: pa.Schema) -> pa.Schema:
    """Remove the names of extension types from the metadata of all fields."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def _plain_field(field: pa.Field) -> pa.Field:
    metadata = {k: v for k, v in (field.metadata or {}).items() if not k.startswith(_PREFIX)}
    return pa.field(field.name, _plain_type(field.type), field.nullable, metadata or None)


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


# Validation. Arrow does not check its input: Parquet files and casts bring text that is not UTF-8,
# numbers beyond their precision, indices beyond their dictionary. One such value would make its
# whole batch unreadable, so producers apply the reader's check before anything else.


def validate(data: pa.RecordBatch | pa.Table) -> None:
    """Check that values match their types: raises `pa.ArrowException` or `UnicodeDecodeError`.

    Columns without text, decimals and dictionaries cost only a check of their offsets.
    """
    _ = data.schema.names  # raises if a name is not UTF-8
    data.validate(full=True)


def check_valid(data: pa.RecordBatch | pa.Table) -> None:
    """Refuse data that a reader would reject; the error names the column."""
    try:
        validate(data)
    except UnicodeDecodeError as error:
        raise Refused(f"the name of a column is not UTF-8: rename it ({error})") from error
    except pa.ArrowException as error:
        raise _invalid(data, error) from error


def _invalid(data: pa.RecordBatch | pa.Table, error: pa.ArrowException) -> Refused:
    for name, column in zip(data.schema.names, data.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as invalid:
            # Arrow prefixes "Invalid: " once per level of nesting.
            why = str(invalid).replace("Invalid: ", "")
            if "UTF8" in why:
                why += ". Decode the text in its own encoding first, or carry the column as binary"
            return Refused(f"column {name!r} is {column.type}, and holds an invalid value: {why}")
    return Refused(f"the columns are invalid: {error}")


# Deferred columns. Joining the values of a batch needs fresh memory of the batch's size, and the
# system clears every page of it, which costs more than the copy. Joined piece by piece while they
# are written, the values share one small buffer, which is still in the processor's cache when it is
# checksummed. Until then the record batch has a placeholder with the same length and offsets, whose
# bytes must not be read.

PIECE_BYTES: Final = limits.MIB
"""Joined at a time: from this size on, Python releases the lock while it copies."""

_ZERO: Final = bytes(4)


@functools.cache
def _placeholder_memory() -> pa.Buffer:
    """Reserved addresses without memory: they are never read or written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, limits.BATCH_MAX_BYTES, flags=flags, prot=mmap.PROT_READ))


class DeferredBytes(Protocol):
    """Bytes that are joined when they are written."""

    def __len__(self) -> int:
        """The total size in bytes."""
        ...

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes, in order."""
        ...


class ChunkedColumn:
    """A column of bytes or text in several arrays of one type."""

    __slots__ = ("_chunks", "_datas", "_length", "_starts")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self._chunks = chunks
        self._datas: list[memoryview] = []
        self._starts: list[int] = []
        for chunk in chunks:
            _, offsets, data = chunk.buffers()
            ends = memoryview(offsets).cast("i")
            start, end = ends[chunk.offset], ends[chunk.offset + len(chunk)]
            self._starts.append(start)
            # An array's memory may hold more than its values.
            self._datas.append(memoryview(data or b"").cast("B")[start:end])
        self._length = sum(map(len, self._datas))

    def __len__(self) -> int:
        return self._length

    def pieces(self) -> Iterator[memoryview]:
        return iter(self._datas)

    def placeholder(self) -> pa.Array:
        """An array with this column's offsets, without its bytes."""
        ends, before = [pa.array([0], pa.int32())], 0
        for chunk, start, data in zip(self._chunks, self._starts, self._datas, strict=True):
            offsets = pa.Array.from_buffers(
                pa.int32(), len(chunk), [None, chunk.buffers()[1]], offset=chunk.offset + 1
            )
            ends.append(pc.add(offsets, pa.scalar(before - start, pa.int32())))
            before += len(data)
        validity = None
        if any(chunk.null_count for chunk in self._chunks):
            validity = pa.concat_arrays([chunk.is_valid() for chunk in self._chunks]).buffers()[1]
        return pa.Array.from_buffers(
            self._chunks[0].type,
            sum(map(len, self._chunks)),
            [
                validity,
                pa.concat_arrays(ends).buffers()[1],
                _placeholder_memory().slice(0, len(self)),
            ],
        )


class ValuesColumn:
    """The values of a column, in order, without nulls."""

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: Sequence[bytes], sizes: array[int] | None = None) -> None:
        """`sizes` are the lengths of the values, if they were taken. `TypeError` for a None."""
        self._values = values
        sizes = array("i", map(len, values)) if sizes is None else sizes
        lengths = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(sizes)])
        ends = pc.cumulative_sum(lengths).buffers()[1]
        self._offsets = memoryview(_ZERO + memoryview(ends).cast("B")).cast("i")

    def __len__(self) -> int:
        return self._offsets[-1]

    def placeholder(self) -> pa.Array:
        return self._column(_placeholder_memory().slice(0, len(self)))

    def column(self) -> pa.Array:
        """The column, with all values joined."""
        return self._column(pa.py_buffer(b"".join(self._values)))

    def pieces(self) -> Iterator[bytes]:
        """The bytes, joined one piece at a time."""
        start, values, offsets = 0, self._values, self._offsets
        while start < len(values):
            end = min(bisect_left(offsets, offsets[start] + PIECE_BYTES), len(values))
            yield b"".join(values[start:end])
            start = end

    def _column(self, data: pa.Buffer) -> pa.Array:
        buffers = [None, pa.py_buffer(self._offsets), data]
        return pa.Array.from_buffers(pa.binary(), len(self._values), buffers)


# Field numbers in Arrow's flatbuffers: Message.header, RecordBatch.compression.
_MESSAGE_HEADER_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3


BytesPart = bytes | memoryview | DeferredBytes
"""Bytes, or bytes that are joined when they are written."""


def parts(batch: pa.RecordBatch, deferred: DeferredBytes | None = None) -> list[BytesPart]:
    """The bytes of the stream, to be written at an offset that is a multiple of eight.

    Columns are not copied: their parts share the memory of `batch`. `deferred` has the bytes of the
    column that is a placeholder.
    """
    sink = _Sink(deferred)
    # A Python file is the only sink that gets Arrow's buffers without a copy.
    with (
        pa.PythonFile(sink, mode="w") as file,
        pa.ipc.new_stream(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    return sink.parts


class _Sink:
    """Collects the buffers that are written, without copying them."""

    def __init__(self, deferred: DeferredBytes | None) -> None:
        self.parts: list[BytesPart] = []
        self.closed = False
        self._deferred = deferred

    def write(self, data: bytes | pa.Buffer) -> None:
        if isinstance(data, bytes):
            self.parts.append(data)
        elif self._deferred is not None and data.address == _placeholder_memory().address:
            self.parts.append(self._deferred)
        else:
            self.parts.append(memoryview(data).cast("B"))

    def tell(self) -> int:
        return sum(map(len, self.parts))

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True


def read(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The record batch of a stream. Shares the memory of `data`."""
    buffer = pa.py_buffer(data)
    with _corrupt("not the Arrow stream that a batch holds"):
        _check_messages(buffer)
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        validate(batch)
    return batch


def read_stored(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """As `read`, with the storage type for each extension type."""
    with _corrupt("not the Arrow stream that a batch holds"):
        schema_message, batch_message = _check_messages(pa.py_buffer(data))
        schema = _stored_schema(schema_message.serialize().to_pybytes())
        batch = pa.ipc.read_record_batch(batch_message, schema)
        validate(batch)
    return batch


def read_back(data: memoryview) -> pa.RecordBatch:
    """The record batch of a stream that `parts` made, in the memory of `data`.

    As `read_stored`, without the checks that only untrusted bytes need: every write does this.
    """
    # The schema message: a marker, the length of its padded metadata, and no body.
    _, metadata_bytes = struct.unpack_from("<Ii", data)
    begins = 8 + metadata_bytes
    with _corrupt("what was written cannot be read"):
        schema = _stored_schema(bytes(data[:begins]))
        batch = pa.ipc.read_record_batch(pa.py_buffer(data[begins:]), schema)
        validate(batch)
    return batch


@contextlib.contextmanager
def _corrupt(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, StopIteration, struct.error) as error:
        raise Corrupt(f"{what}: {error}") from error


def _check_messages(buffer: pa.Buffer) -> list[pa.Message]:
    messages = []
    for message in pa.ipc.MessageReader.open_stream(buffer):
        messages.append(message)
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise Corrupt("the Arrow buffers of a batch must not be compressed individually")
        if len(messages) > 2:
            break
    kinds = [message.type for message in messages]
    if kinds != ["schema", "record batch"]:
        raise Corrupt(f"a batch holds a schema and one record batch, not {kinds}")
    return messages


def _is_compressed(metadata: memoryview) -> bool:
    """Whether a record batch message states a compression of its buffers."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, root, _MESSAGE_HEADER_FIELD)
    if header is None:
        raise Corrupt("a record batch message has no header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION_FIELD) is not None


def _field(data: memoryview, table: int, number: int) -> int | None:
    """The offset of a field in a flatbuffer table; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0:
        raise Corrupt("a message's table points before its beginning")
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else None
