"""What is written is what the records hold, whatever they were cut from and are cut into."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pytest

from headwater.log import Group, SpoolConfig
from headwater.log.record.arrow_types import check_column_type
from headwater.testing.disk import FaultyDisk
from tests.log.given import PATH, closing, contents, opened, wait

ROWS, PART_ROWS = 240, 24
TEXT, BYTES = "x" * 300, b"x" * 300
PLAIN: dict[pa.DataType, Any] = {
    pa.string(): TEXT,
    pa.string_view(): TEXT,
    pa.binary_view(): BYTES,
    pa.binary(300): BYTES,
    pa.bool_(): True,
}
KINDS = [
    kind
    for inner in PLAIN
    for kind in (
        inner,
        pa.list_(inner),
        pa.large_list(inner),
        pa.list_(inner, 2),
        pa.struct([pa.field("a", pa.int8()), pa.field("b", inner, nullable=False)]),
        pa.map_(pa.string(), inner),
        pa.map_(inner, pa.int8()),
        pa.list_(pa.field("x", pa.struct([pa.field("y", pa.list_(inner, 2))]), nullable=False)),
    )
]


def value_of(kind: pa.DataType) -> Any:
    """One that takes some hundred bytes, where the type has such."""
    if kind in PLAIN:
        return PLAIN[kind]
    if pa.types.is_struct(kind):
        return {field.name: value_of(field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(value_of(kind.key_type), value_of(kind.item_type))]
    return [value_of(kind.value_type)] * 2 if pa.types.is_nested(kind) else 1


@functools.cache
def column_of(kind: pa.DataType) -> pa.Array:
    return pa.array([*[value_of(kind)] * (ROWS - ROWS // 8), *[None] * (ROWS // 8)], kind)


def stream_bytes(column: pa.Array) -> int:
    records = pa.record_batch({"v": column})
    with pa.BufferOutputStream() as sink, pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
        return int(sink.tell())


def segment_bytes(disk: FaultyDisk) -> int:
    return sum(len(data) for name, data in contents(disk, PATH).items() if name.endswith(".wal"))


def groups_of(disk: FaultyDisk) -> list[Group]:
    return list(wait(opened(disk).read_since(0, max_records=10_000, max_bytes=1 << 30)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parts_of_a_batch_are_written_without_the_rest_of_it(kind: pa.DataType) -> None:
    check_column_type("v", kind)
    column = column_of(kind)
    whole = pa.record_batch({"v": column})
    disk = FaultyDisk()
    with closing(opened(disk)) as spool:
        for begins in range(0, ROWS, PART_ROWS):
            wait(spool.append(whole.slice(begins, PART_ROWS), term=1))
    parts = [column_of(kind)[begins : begins + PART_ROWS] for begins in range(0, ROWS, PART_ROWS)]
    alone = sum(stream_bytes(pa.array(part.to_pylist(), kind)) for part in parts)
    assert segment_bytes(disk) <= 2 * alone
    found = [group.records.column("v") for group in groups_of(disk)]
    assert pa.chunked_array(found).combine_chunks() == column
    assert found[0].type.equals(kind, check_metadata=True)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_frames_of_a_batch_are_written_without_each_other(kind: pa.DataType) -> None:
    column = column_of(kind)
    size = stream_bytes(column)
    disk = FaultyDisk()
    with closing(opened(disk, config=SpoolConfig(group_bytes=max(2000, size // 8)))) as spool:
        wait(spool.append(pa.record_batch({"v": column}), term=1))
    groups = groups_of(disk)
    assert len(groups) <= 17
    assert segment_bytes(disk) <= 2 * size + 1000 * len(groups)
    found = pa.chunked_array([group.records.column("v") for group in groups])
    assert found.combine_chunks() == column


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.string_view(), pa.list_(pa.binary_view())], ids=str
)
def test_a_read_takes_as_many_records_as_there_are_bytes_for(kind: pa.DataType) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(pa.record_batch({"v": column_of(kind)}), term=1))
    one_bytes = stream_bytes(column_of(kind)) // ROWS
    for _ in ("from memory", "from disk"):
        reads, lsn = 0, 0
        while lsn < ROWS:
            (group,) = wait(spool.read_since(lsn, max_bytes=30 * one_bytes))
            assert group.nbytes <= 30 * one_bytes
            reads, lsn = reads + 1, group.last_lsn
        assert reads <= 2 * ROWS // 30
        wait(spool.close())
        spool = opened(disk)
