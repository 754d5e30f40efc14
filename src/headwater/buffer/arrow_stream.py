"""One record batch as an Arrow IPC stream, and back from bytes that are not trusted.

Arrow verifies the structure of its messages, not what they ask for: a compressed buffer names
its own size, and offsets may point anywhere. So a stream read here has a schema and one record
batch, uncompressed, and every offset is checked before the batch is handed out.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from headwater.core.errors import Corrupt

# Places in Arrow's flatbuffers, by field number: Message.header, RecordBatch.compression.
_MESSAGE_HEADER_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3


def size_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes `write` writes."""
    sink = pa.MockOutputStream()
    write(sink, batch)
    return int(sink.size())


def write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    """Write the stream's bytes, at a place that is a multiple of eight."""
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def read(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """The one batch of a stream. Shares the memory of `data`."""
    buffer = pa.py_buffer(data)
    try:
        _check_messages(buffer)
        with pa.ipc.open_stream(buffer) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
        _ = batch.schema.names  # which need not be text
    except (pa.ArrowException, OSError, ValueError, StopIteration, struct.error) as error:
        raise Corrupt(f"not the Arrow stream that a batch holds: {error}") from error
    return batch


def _check_messages(buffer: pa.Buffer) -> None:
    kinds = []
    for message in pa.ipc.MessageReader.open_stream(buffer):
        kinds.append(message.type)
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise Corrupt("a batch's Arrow buffers are not compressed one by one")
        if len(kinds) > 2:
            break
    if kinds != ["schema", "record batch"]:
        raise Corrupt(f"a batch holds a schema and one record batch, not {kinds}")


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
