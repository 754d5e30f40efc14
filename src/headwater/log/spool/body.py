"""The body of a group: its records as an Arrow stream, or the cause of their loss.

`Body` is a group on its way into a segment, `decode_group` one that comes back.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

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
from headwater.log.spool.envelope import (
    CRC,
    ENVELOPE,
    ENVELOPE_BYTES,
    GROUP_MAGIC,
    HEAD_BYTES,
    Kind,
    read_envelope,
)
from headwater.log.spool.frame import CRC_BYTES, MAGIC, V3, Header, check_payload_bytes


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
        ENVELOPE.pack_into(frame, V3.size, *envelope)
        with memoryview(frame) as view:
            head = zlib.crc32(view[len(MAGIC) : HEAD_BYTES])
            crc = crc32_after(head, view[HEAD_BYTES:-CRC_BYTES], self.crc)
        CRC.pack_into(frame, len(frame) - CRC_BYTES, crc)
        return Group(term, first_lsn, last_lsn, self.records, timestamp_ms, self.lost)


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
