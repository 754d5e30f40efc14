"""The payload of a frame that Headwater writes: an envelope, and the records as an Arrow stream.

    "HWG1" | u8 kind | 2 zero bytes | u64 first_lsn | u64 synced_lsn | u64 offset | body

`kind` is 0 for records (the body is an Arrow stream of one record batch) and 1 for a range that is
lost (the body is the cause, as UTF-8). The frame's own LSN is the last one in it.

`synced_lsn` is how far the writer knew the log to be synced when it wrote the frame: the frame
that follows tells of the ones before it whether they were safe. `offset` is where the frame begins
in its file: a frame that somebody stored inside a record is no frame of this log.

With the frame's header it makes 64 bytes, so that Arrow's buffers stand at multiples of eight.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.buffer import arrow_stream
from headwater.buffer.soundness import check_sound
from headwater.core.errors import Corrupt, Refused
from headwater.log.record.change import DEFAULT_TERM, ChangeRecord
from headwater.log.record.columns import NO_RECORDS
from headwater.log.record.group import Group
from headwater.log.record.nulls import with_nulls_allowed
from headwater.log.record.rows import group_of
from headwater.log.spool.crc import crc32_after
from headwater.log.spool.frame import CRC_BYTES, MAGIC, V3, Header, check_payload_bytes

GROUP_MAGIC: Final = b"HWG1"
_ENVELOPE: Final = struct.Struct("<4sB2xQQQ")
ENVELOPE_BYTES: Final = _ENVELOPE.size
HEAD_BYTES: Final = V3.size + ENVELOPE_BYTES
_CRC: Final = struct.Struct("<I")


class Kind(IntEnum):
    """What the body of a group is."""

    RECORDS = 0
    LOST = 1


class Envelope(NamedTuple):
    """What Headwater adds to a frame."""

    kind: int
    first_lsn: int
    synced_lsn: int
    offset: int


@dataclass(slots=True, eq=False)
class Body:
    """A frame that has all but its place: room for its head, the body, room for its checksum."""

    frame: bytearray
    crc: int
    """Of the body alone."""
    kind: Kind
    lsns: int
    records: pa.RecordBatch
    """As whoever reads the frame gets them, in its own memory: nobody can change them afterwards,
    and they keep nothing else alive."""
    lost: str | None = None
    given: pa.Schema | None = None
    """The columns that whoever appends it gave; those beyond are nulls. None where it is lost."""

    @classmethod
    def of_records(cls, records: pa.RecordBatch, *, given: pa.Schema | None = None) -> Body:
        """The body of a group of records, which can be read: `Refused` if it could not be.

        Goes over all bytes more than once; best done outside of locks.
        """
        parts = [
            part for part in arrow_stream.parts(records) if isinstance(part, bytes | memoryview)
        ]
        body = cls._of(parts, Kind.RECORDS, records.num_rows, NO_RECORDS)
        try:
            stream = memoryview(body.frame)[HEAD_BYTES:-CRC_BYTES]
            body.records = arrow_stream.read_back(stream)
        except Corrupt as error:
            check_sound(records)
            raise Refused(f"these records could not be read afterwards: {error}") from error
        body.given = records.schema if given is None else given
        return body

    @classmethod
    def of_lost(cls, lsns: int, cause: str) -> Body:
        """The body of a range without records."""
        return cls._of([cause.encode()], Kind.LOST, lsns, NO_RECORDS, cause)

    @classmethod
    def _of(
        cls,
        parts: list[bytes | memoryview],
        kind: Kind,
        lsns: int,
        records: pa.RecordBatch,
        lost: str | None = None,
    ) -> Body:
        frame = bytearray().join((bytes(HEAD_BYTES), *parts, bytes(CRC_BYTES)))
        check_payload_bytes(len(frame) - V3.size - CRC_BYTES)
        crc = zlib.crc32(memoryview(frame)[HEAD_BYTES:-CRC_BYTES])
        return cls(frame, crc, kind, lsns, records, lost)

    def place(
        self, *, term: int, first_lsn: int, timestamp_ms: int, synced_lsn: int, offset: int
    ) -> Group:
        """Fill in head and checksum; the frame can then be written at `offset`."""
        frame, last_lsn = self.frame, first_lsn + self.lsns - 1
        size = len(frame) - V3.size - CRC_BYTES
        V3.pack_into(frame, 0, MAGIC, 3, term, last_lsn, timestamp_ms, size)
        envelope = (GROUP_MAGIC, self.kind, first_lsn, synced_lsn, offset)
        _ENVELOPE.pack_into(frame, V3.size, *envelope)
        with memoryview(frame) as view:
            head = zlib.crc32(view[len(MAGIC) : HEAD_BYTES])
            crc = crc32_after(head, view[HEAD_BYTES:-CRC_BYTES], self.crc)
        _CRC.pack_into(frame, len(frame) - CRC_BYTES, crc)
        return Group(term, first_lsn, last_lsn, self.records, timestamp_ms, self.lost)


def moved_frame(frame: memoryview, *, synced_lsn: int, offset: int) -> bytearray:
    """The same group as a frame that stands elsewhere."""
    moved = bytearray(frame)
    magic, kind, first_lsn, _, _ = _ENVELOPE.unpack_from(moved, V3.size)
    _ENVELOPE.pack_into(moved, V3.size, magic, kind, first_lsn, synced_lsn, offset)
    crc = zlib.crc32(memoryview(moved)[len(MAGIC) : -CRC_BYTES])
    _CRC.pack_into(moved, len(moved) - CRC_BYTES, crc)
    return moved


def read_envelope(payload: bytes | memoryview) -> Envelope | None:
    """The envelope of a payload; None if another implementation wrote it."""
    if len(payload) < ENVELOPE_BYTES or payload[:4] != GROUP_MAGIC:
        return None
    return Envelope._make(_ENVELOPE.unpack_from(payload)[1:])


def decode_group(header: Header, payload: memoryview) -> Group:
    """The group in a whole frame, of whichever version. Shares the memory of `payload`."""
    envelope = read_envelope(payload)
    if envelope is None:
        return _published(header, payload)
    term, body = header.term or 0, payload[ENVELOPE_BYTES:]
    first, last = envelope.first_lsn, header.lsn
    if not 1 <= first <= last:
        raise Corrupt(f"a group says that it holds LSNs {first} to {last}: there are none such")
    if envelope.kind == Kind.LOST:
        cause = str(body, "utf-8", "replace")
        return Group(term, first, last, NO_RECORDS, header.timestamp_ms, cause)
    if envelope.kind != Kind.RECORDS:
        raise Corrupt(f"a group of kind {envelope.kind}; this version reads 0 and 1. Upgrade it.")
    records = arrow_stream.read_stored(body)
    if records.num_rows != last - first + 1:
        raise Corrupt(f"a group of LSNs {first} to {last} holds {records.num_rows} records")
    return Group(term, first, last, with_nulls_allowed(records), header.timestamp_ms)


def _published(header: Header, payload: memoryview) -> Group:
    """One record a frame. The frame's LSN and term are those that count."""
    try:
        change = ChangeRecord.from_json(payload)
        records = group_of([change]).records
    except (Corrupt, Refused):
        # The format leaves payloads to whoever writes them, and has numbers beyond ours.
        change = ChangeRecord(header.lsn, entity_bytes=bytes(payload))
        records = group_of([change]).records
    term = change.term if header.term is None else header.term
    return Group(term or DEFAULT_TERM, header.lsn, header.lsn, records, header.timestamp_ms)
