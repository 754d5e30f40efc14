"""One record batch as an Arrow IPC stream, and back from bytes that are not trusted.

Arrow verifies the structure of its messages, not what they ask for: a compressed buffer names
its own size, and offsets may point anywhere. So a stream read here has a schema and one record
batch, uncompressed, and every offset is checked before the batch is handed out.
"""

from __future__ import annotations

import functools
import struct
from typing import Final

import pyarrow as pa

from headwater.buffer.extension_names import read_stored_schema
from headwater.buffer.loose import Apart, is_stand_in
from headwater.buffer.soundness import validate
from headwater.core.errors import Corrupt

# Places in Arrow's flatbuffers, by field number: Message.header, RecordBatch.compression.
_MESSAGE_HEADER_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3


Part = bytes | memoryview | Apart
"""A stretch of bytes: at hand, or still to be put together."""


def parts(batch: pa.RecordBatch, loose: Apart | None = None) -> list[Part]:
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

    def __init__(self, loose: Apart | None) -> None:
        self.parts: list[Part] = []
        self.closed = False
        self._loose = loose

    def write(self, data: bytes | pa.Buffer) -> None:
        if isinstance(data, bytes):
            self.parts.append(data)
        elif self._loose is not None and is_stand_in(data):
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
