"""Change records: the published JSON form, and groups of them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.records import Operation
from headwater.core.errors import Corrupt, Refused
from headwater.log import ChangeRecord, Group, changes_of, group_of

PUBLISHED = (
    b'{"collection":"users","entity_bytes_hex":"010203","kind":"row","lsn":7,'
    b'"metadata":{"role":"admin"},"operation":"update","rid":42,"term":3,"timestamp":1234}'
)


def full(lsn: int) -> ChangeRecord:
    return ChangeRecord(
        lsn=lsn,
        term=4,
        timestamp_ms=1_700_000_000_123,
        operation=Operation.REFRESH,
        collection="größe",
        rid=9,
        key=b"\x00key",
        kind="row",
        entity_bytes=b"\xff\x00",
        metadata=b"\x80 not JSON",
        headers=(("a", b"1"), ("a", None)),
        refresh_records=(b"", b"two"),
    )


def test_the_published_example_is_read_and_written_to_the_same_bytes() -> None:
    record = ChangeRecord.from_json(PUBLISHED)
    assert record == ChangeRecord(
        lsn=7,
        term=3,
        timestamp_ms=1234,
        operation=Operation.UPDATE,
        collection="users",
        rid=42,
        kind="row",
        entity_bytes=b"\x01\x02\x03",
        metadata=b'{"role":"admin"}',
    )
    assert record.to_json() == PUBLISHED


def test_what_is_absent_has_the_published_defaults() -> None:
    assert ChangeRecord.from_json(b'{"operation":"delete"}') == ChangeRecord(
        lsn=0, term=1, timestamp_ms=0, operation=Operation.DELETE, collection="", rid=0
    )


def test_the_older_names_of_rid_and_kind_are_read() -> None:
    record = ChangeRecord.from_json(b'{"operation":"insert","entity_id":5,"entity_kind":"node"}')
    assert (record.rid, record.kind) == (5, "node")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"operation":"upsert"}',
        b'{"operation":"insert","lsn":"7"}',
        b'{"operation":"insert","lsn":-1}',
        b'{"operation":"insert","entity_bytes_hex":"0g"}',
        b'{"operation":"insert","collection":5}',
        b"\xff",
    ],
)
def test_what_is_no_change_record_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupt):
        ChangeRecord.from_json(text)


@pytest.mark.parametrize(
    "metadata",
    [None, b"", b"{}", b"null", b'{"a": 1}', b'{"b":1,"a":2}', b"\x00\xff", b'"\xc3\xa4"'],
)
def test_metadata_of_any_bytes_survives_the_form(metadata: bytes | None) -> None:
    record = ChangeRecord(lsn=1, metadata=metadata)
    assert ChangeRecord.from_json(record.to_json()) == record


def test_every_field_survives_the_form_and_a_group() -> None:
    records = [full(5), ChangeRecord(lsn=6, term=4, timestamp_ms=1), full(7)]
    assert [ChangeRecord.from_json(one.to_json()) for one in records] == records
    assert list(changes_of(group_of(records))) == records


def test_a_column_nobody_uses_is_not_there() -> None:
    group = group_of([ChangeRecord(lsn=1, entity_bytes=b"x")])
    assert group.records.schema.names == ["_value", "_timestamp"]


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [ChangeRecord(lsn=1), ChangeRecord(lsn=3)],
        [ChangeRecord(lsn=1), ChangeRecord(lsn=2, term=2)],
    ],
)
def test_a_group_has_one_term_and_no_gaps(changes: list[ChangeRecord]) -> None:
    with pytest.raises(Refused):
        group_of(changes)


@pytest.mark.parametrize(
    "wrong", [{"rid": 2**63}, {"timestamp_ms": 2**60}, {"collection": "\ud800"}, {"kind": "\ud800"}]
)
def test_a_change_that_no_column_holds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="no column"):
        group_of([ChangeRecord(lsn=1, **wrong)])


@pytest.mark.parametrize(
    "change",
    [
        ChangeRecord(lsn=1, timestamp_ms=9 * 10**15),
        ChangeRecord(lsn=1, kind=""),
        ChangeRecord(lsn=1, timestamp_ms=253_402_300_800_000),
    ],
)
def test_far_times_and_an_empty_kind_come_back_as_they_were(change: ChangeRecord) -> None:
    assert list(changes_of(group_of([change]))) == [change]


def test_what_json_has_no_number_for_is_text() -> None:
    rows = pa.record_batch({"x": [math.nan], "y": [math.inf], "z": [1.5]})
    (change,) = changes_of(Group(1, 1, 1, rows))
    assert change.entity_bytes == b'{"x":"nan","y":"inf","z":1.5}'
