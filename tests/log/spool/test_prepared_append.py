"""What a log takes: which columns and values, and which numbers come with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.errors import LimitExceeded, Refused
from headwater.log import prepare_lost, record_hashes
from headwater.testing.disk import FaultyDisk
from tests.log.given import closing, numbered, opened, wait

_PLAIN = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(50, 2),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("s"),
    pa.timestamp("ns", "UTC"), pa.duration("ns"), pa.month_day_nano_interval(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.binary(4), pa.dictionary(pa.int32(), pa.string()), pa.uuid(), pa.json_(), pa.bool8(),
]  # fmt: skip
_REFUSED = [
    pa.month_day_nano_interval(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
]


@pytest.mark.parametrize("kind", _PLAIN, ids=str)
def test_a_column_of_any_type_is_refused_or_can_be_read_and_compared(kind: pa.DataType) -> None:
    nested = [
        pa.list_(kind),
        pa.large_list(kind),
        pa.list_(kind, 1),
        pa.list_view(kind),
        pa.struct([pa.field("x", kind)]),
        pa.map_(pa.string(), kind),
        pa.list_(pa.struct([pa.field("x", pa.list_(kind))])),
    ]
    for one in [kind, *nested]:
        disk = FaultyDisk()
        spool = opened(disk)
        records = pa.record_batch({"column": pa.nulls(3, one)})
        is_refused = kind in _REFUSED or pa.types.is_list_view(one)
        if is_refused or (kind == pa.null() and one != kind):
            with pytest.raises(Refused, match=r"column 'column[.a-z]*' is"):
                wait(spool.append(records, term=1))
            assert spool.current_lsn() == 0
            continue
        wait(spool.append(records, term=1))
        wait(spool.close())
        (group,) = wait(opened(disk).read_since(0))
        assert group.records.equals(records)
        assert len(record_hashes(group)) == 3


def test_values_that_nobody_could_read_are_refused() -> None:
    spool = opened(FaultyDisk())
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(Refused, match="column 'text'"):
        wait(spool.append(pa.record_batch({"text": text}), term=1))
    with pytest.raises(Refused, match="to_batches"):
        wait(spool.append(pa.table({"a": [1]}), term=1))
    assert wait(spool.append(numbered(1, 1), term=1)) == (1, 1)


def test_readers_of_the_end_see_what_was_written_though_its_memory_is_used_again() -> None:
    spool = opened(FaultyDisk())
    buffer = np.arange(100)
    wait(spool.append(pa.record_batch({"n": pa.array(buffer)}), term=1))
    buffer[:] = -1
    (group,) = wait(spool.read_since(0))
    assert group.records.column("n").to_pylist() == list(range(100))


def test_a_slice_does_not_keep_what_it_was_cut_from_in_memory() -> None:
    spool = opened(FaultyDisk())
    before = pa.total_allocated_bytes()
    large = pa.record_batch({"_value": pa.array([bytes(1 << 20)] * 8, pa.binary())})
    wait(spool.append(large.slice(0, 1), term=1))
    del large
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"term": 0},
        {"term": 2**31},
        {"term": 1.5},
        {"term": None},
        {"term": 1, "timestamp_ms": -1},
        {"term": 1, "timestamp_ms": 2**64},
        {"term": 1, "timestamp_ms": 1.5},
        {"term": 1, "first_lsn": 1.0},
        {"term": 1, "first_lsn": 2**64},
    ],
)
def test_an_argument_that_fits_no_frame_is_refused_and_harms_nobody_else(
    wrong: dict[str, Any],
) -> None:
    spool = opened(FaultyDisk())
    with pytest.raises(Refused):
        wait(spool.append(numbered(1, 1), **wrong))
    assert wait(spool.append(numbered(1, 1), term=1)) == (1, 1)


def test_a_clock_before_1970_ends_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(FaultyDisk())
    monkeypatch.setattr(runtime, "wall_ms", lambda: -1000)
    assert wait(spool.append(numbered(1, 1), term=1)) == (1, 1)


def test_lsns_end_where_others_could_not_hold_them() -> None:
    disk = FaultyDisk()
    with pytest.raises(Refused, match="first_lsn"):
        opened(disk, first_lsn=2**63)
    spool = opened(disk, first_lsn=2**63 - 2)
    with pytest.raises(LimitExceeded, match="beyond the last"):
        wait(spool.append(numbered(1, 3), term=1))
    assert wait(spool.append(numbered(1, 2), term=1)) == (2**63 - 2, 2**63 - 1)
    with pytest.raises(LimitExceeded, match="beyond the last"):
        wait(spool.append(numbered(1, 1), term=1))
    wait(spool.close())
    assert opened(disk).current_lsn() == 2**63 - 1


def test_a_cause_that_is_no_text_is_written_as_one() -> None:
    disk = FaultyDisk()
    with closing(opened(disk)) as spool:
        wait(spool.append(prepare_lost(2, "batch \udc80"), term=1))
        (tail,) = wait(spool.read_since(0))
    (group,) = wait(opened(disk).read_since(0))
    assert tail.lost == group.lost == "batch \\udc80"


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.null(), 2), pa.list_(pa.list_(pa.struct({"a": pa.null()})), 1)], ids=str
)
def test_what_no_segment_of_the_tier_can_hold_no_log_takes(kind: pa.DataType) -> None:
    records = pa.record_batch({"a": pa.nulls(1, kind)})
    with pytest.raises(Refused, match="give it another type, or drop it"):
        wait(opened(FaultyDisk()).append(records, term=1))
