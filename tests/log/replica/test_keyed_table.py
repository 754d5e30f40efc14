"""One collection of a keyed state: what is found in it, and what it is scanned as."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.buffer.records import Operation
from headwater.core.errors import NotSupported
from headwater.log import ChangeRecord, Group, KeyedState, group_of
from headwater.log.replica import keyed_table
from tests.log.leaders import memory_store
from tests.log.replica.given import keyed_states, rows
from tests.store.scripted import virtual


def state() -> KeyedState:
    return KeyedState(keyed_states(memory_store()), {}, 0)


@virtual
async def test_rows_of_a_refresh_are_found_by_no_number() -> None:
    one = state()
    changes = [ChangeRecord(1, operation=Operation.REFRESH, refresh_records=(b"r1", b"r2"))]
    await one.apply([group_of(changes)], 1)
    assert one.scan().num_rows == 2
    assert [one.get(number) for number in range(-3, 3)] == [None] * 6


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.string(), pa.binary()),
        (pa.binary(), pa.large_string()),
        (pa.list_(pa.string()), pa.list_(pa.binary())),
        (pa.struct([("x", pa.string())]), pa.struct([("x", pa.binary(1))])),
    ],
    ids=str,
)
def test_text_is_not_scanned_as_bytes_because_others_are(
    kinds: tuple[pa.DataType, pa.DataType],
) -> None:
    @virtual
    async def run() -> None:
        one = state()
        for lsn, kind in enumerate(kinds, start=1):
            batch = pa.record_batch({"_rid": pa.array([lsn]), "v": pa.nulls(1, kind)})
            await one.apply([Group(1, lsn, lsn, batch)], lsn)
        with pytest.raises(NotSupported, match=r"'v' is .* in some records and .* in others"):
            one.scan()
        assert [part.schema.field("v").type for part in one.scan_parts()] == list(kinds)

    run()


@virtual
async def test_numbers_and_texts_of_several_widths_are_scanned_as_one_column() -> None:
    one = state()
    kinds = [(pa.int32(), pa.string()), (pa.int64(), pa.large_string()), (pa.int8(), pa.null())]
    for lsn, (number, text) in enumerate(kinds, start=1):
        columns = {"_rid": pa.array([lsn]), "n": pa.array([lsn], number), "t": pa.nulls(1, text)}
        await one.apply([Group(1, lsn, lsn, pa.record_batch(columns))], lsn)
    assert one.scan().column("n").to_pylist() == [1, 2, 3]


@virtual
async def test_schemas_that_alternate_do_not_leave_a_batch_for_each_record() -> None:
    one = state()
    records = 1500
    for lsn in range(1, records + 1):
        batch = pa.record_batch({"_rid": pa.array([lsn]), f"c{lsn % 2}": pa.array([lsn])})
        await one.apply([Group(1, lsn, lsn, batch)], lsn)
    table = one._tables[""]
    assert len(table._chunks) <= 2 * keyed_table.SMALL_CHUNKS
    assert one.scan().column("_lsn").to_pylist() == list(range(1, records + 1))
    found = one.get(7)
    assert found is not None
    assert (found["c1"], found["_lsn"]) == (7, 7)
    await one.apply([rows(records + 1, (b"a", int(Operation.DELETE), None))], records + 1)
    assert one.scan().num_rows == records
