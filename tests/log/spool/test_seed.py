"""The tests of the published spool, under their names."""

from __future__ import annotations

import struct
import zlib

from headwater.buffer.records import Operation
from headwater.core.limits import LOG_INDEX_BYTES
from headwater.log import ChangeRecord, Spool, changes_of, group_of
from headwater.log.record.change import DEFAULT_TERM
from headwater.log.spool.folder import SparseIndex, decode_index
from headwater.testing.disk import FaultyDisk
from tests.log.given import contents, opened, planted, spans, values, wait


def test_logical_wal_spool_roundtrip_and_prune() -> None:
    disk = FaultyDisk()
    spool = opened(disk, first_lsn=7)
    insert = ChangeRecord(
        lsn=7,
        term=2,
        timestamp_ms=1,
        operation=Operation.INSERT,
        collection="users",
        rid=10,
        kind="row",
        entity_bytes=b"\x01\x02\x03",
    )
    update = ChangeRecord(
        lsn=8,
        term=2,
        timestamp_ms=2,
        operation=Operation.UPDATE,
        collection="users",
        rid=10,
        kind="row",
        entity_bytes=b"\x04\x05\x06",
    )
    wait(spool.append(group_of([insert]).records, term=2, first_lsn=7, timestamp_ms=11))
    wait(spool.append(group_of([update]).records, term=2, first_lsn=8, timestamp_ms=12))
    groups = wait(spool.read_since(0))
    assert [change for group in groups for change in changes_of(group)] == [insert, update]
    assert [(group.term, group.timestamp_ms) for group in groups] == [(2, 11), (2, 12)]

    wait(spool.prune_through(7))
    (retained,) = wait(spool.read_since(0))
    assert list(changes_of(retained)) == [update]
    wait(spool.close())
    (reopened,) = wait(opened(disk).read_since(0))
    assert list(changes_of(reopened)) == [update]


def test_logical_wal_spool_reads_v2_without_term() -> None:
    payload = (
        b'{"lsn":3,"timestamp":44,"operation":"delete","collection":"users","rid":9,"kind":"row"}'
    )
    spool = opened(planted({"data.rdb.logical.wal": _v2(3, 44, payload)}))
    (group,) = wait(spool.read_since(0))
    (record,) = changes_of(group)
    assert (record.term, record.lsn, group.timestamp_ms) == (DEFAULT_TERM, 3, 44)
    assert record == ChangeRecord(
        lsn=3,
        term=DEFAULT_TERM,
        timestamp_ms=44,
        operation=Operation.DELETE,
        collection="users",
        rid=9,
        kind="row",
    )


def _v2(lsn: int, timestamp_ms: int, payload: bytes) -> bytes:
    head = struct.pack("<4sBQQI", b"RDLW", 2, lsn, timestamp_ms, len(payload))
    return head + payload + zlib.crc32(head[4:] + payload).to_bytes(4, "little")


def test_wal_buffer_fan_out_shares_refcounted_payload() -> None:
    spool = opened(FaultyDisk())
    wait(spool.append(values(b"\xde\xad\xbe\xef"), term=1))
    (one,) = wait(spool.read_since(0))
    (other,) = wait(spool.read_since(0))
    assert one is other
    assert (
        one.records.column(0).buffers()[2].address == other.records.column(0).buffers()[2].address
    )
    assert one.records.column("_value").to_pylist() == [b"\xde\xad\xbe\xef"]


def test_spool_seek_index_resume_is_sublinear() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    for lsn in range(1, 201):
        wait(spool.append(values(bytes([lsn % 251, 0xAB])), term=1, first_lsn=lsn))
    _check_resume(spool)
    wait(spool.close())
    _check_resume(opened(disk))


def _check_resume(spool: Spool) -> None:
    spool._tail.prune_through(200)
    assert len(wait(spool.read_since(0))) == 200
    assert seek_offset(spool, 0) == 0
    resumed = wait(spool.read_since(130))
    assert spans(resumed) == [(lsn, lsn) for lsn in range(131, 201)]
    assert seek_offset(spool, 130) > 0


def seek_offset(spool: Spool, lsn: int) -> int:
    """Where in its segment a read after `lsn` begins to look."""
    position = spool._state.after(lsn)
    assert position is not None
    return spool._reader.index(position.segment).offset_for(lsn + 1)


def test_a_flipped_bit_anywhere_in_an_index_is_noticed() -> None:
    index = SparseIndex(1)
    for place in range(3):
        index.note(1 + 100 * place, LOG_INDEX_BYTES * place)
    data = index.encode(last_lsn=300, segment_bytes=1 << 22)
    assert decode_index(data, first_lsn=1, segment_bytes=1 << 22) is not None
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_index(bytes(flipped), first_lsn=1, segment_bytes=1 << 22) is None


def test_the_index_of_a_sealed_segment_is_kept_or_made_again() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    for lsn in range(1, 201):
        wait(spool.append(values(b"%d" % lsn), term=1))
    wait(spool.seal())
    wait(spool.close())
    files = contents(disk)
    name = "00000000000000000001.index"
    for damaged in (files[name], files[name][:-1], files[name][:50], b"", None):
        changed = {**files, name: damaged} if damaged is not None else dict(files)
        if damaged is None:
            del changed[name]
        again = opened(planted(changed))
        index = again._reader.index(again.segments()[0])
        assert isinstance(index, SparseIndex)
        assert len(index._lsns) == 4
        assert spans(wait(again.read_since(198))) == [(199, 199), (200, 200)]
