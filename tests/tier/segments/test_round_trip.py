"""A record comes back from a segment as it was, of every type that a log carries."""

from __future__ import annotations

import asyncio
import decimal
import functools
import itertools
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.buffer.records import HEADERS_TYPE, Operation
from headwater.core.errors import Corrupt, Refused
from headwater.log import Group, changes_of, group_of, range_hash, record_hashes
from headwater.log.record.arrow_types import check_column_type
from headwater.log.record.change import ChangeRecord
from headwater.log.record.group import LOG_COLUMNS
from headwater.log.spool.codec import prepare_append
from headwater.store import MemoryBackend, Store
from headwater.tier.segments import SegmentConfig, reading
from headwater.tier.segments.columns import LSN, SegmentColumns
from headwater.tier.segments.reading import RowGroupSplitter
from tests.log.edges import EDGES
from tests.tier.segments.given import by_lsn, decoded, encoded, lost, orders, storage, told

US_MIN, US_MAX = -62_000_000_000_000_000, 253_000_000_000_000_000
PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.integers(-700_000, 2_900_000),
    pa.timestamp("us"): st.integers(US_MIN, US_MAX),
    pa.timestamp("us", "UTC"): st.integers(US_MIN, US_MAX),
}
BEYOND_STREAMS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.large_string(): st.text(max_size=8),
    pa.string_view(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=8),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(0): st.just(b""),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.time32("s"): st.integers(0, 86_399),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.time64("ns"): st.integers(0, 86_399_999_999).map(lambda us: us * 1000),
    pa.date64(): st.integers(-700_000, 2_900_000).map(lambda days: days * 86_400_000),
    pa.duration("s"): st.integers(-(10**9), 10**9),
    pa.duration("ns"): st.integers(-(10**15), 10**15).map(lambda us: us * 1000),
    pa.timestamp("s"): st.integers(US_MIN // 10**6, US_MAX // 10**6),
    pa.timestamp("s", "Europe/Berlin"): st.integers(US_MIN // 10**6, US_MAX // 10**6),
    pa.timestamp("ms", "+02:00"): st.integers(US_MIN // 1000, US_MAX // 1000),
    pa.timestamp("us", "Europe/Berlin"): st.integers(US_MIN, US_MAX),
    pa.timestamp("ns"): st.integers(-(10**15), 10**15).map(lambda us: us * 1000),
    pa.null(): st.none(),
}
"""What a log carries and no stream does; values that Python has no word for are in `EDGES`."""
PLAIN |= BEYOND_STREAMS
NAMES = st.text("abcdé. ", min_size=1, max_size=4)
DECIMALS = st.one_of(
    [
        st.builds(
            lambda precision, scale, make=make: make(precision, min(precision, scale)),
            st.integers(1, digits),
            st.integers(0, digits),
        )
        for make, digits in (
            (pa.decimal32, 9),
            (pa.decimal64, 18),
            (pa.decimal128, 38),
            (pa.decimal256, 76),
        )
    ]
)


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable or kind == pa.null())


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(_field, NAMES, inner, st.booleans())
    return st.one_of(
        st.builds(
            lambda kind, nullable: pa.list_(_field("element", kind, nullable)),
            inner,
            st.booleans(),
        ),
        st.builds(pa.large_list, inner),
        st.builds(lambda kind, size: pa.list_(kind, size), inner, st.integers(0, 3)),
        st.builds(
            lambda key, item, is_sorted: pa.map_(key, item, keys_sorted=is_sorted),
            inner.filter(lambda kind: kind != pa.null()),
            inner,
            st.booleans(),
        ),
        st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name.lower()).map(
            pa.struct
        ),
    )


def _is_kept(kind: pa.DataType) -> bool:
    try:
        check_column_type("a", kind)
    except Refused:
        return False
    return True


TYPES = st.recursive(st.sampled_from(list(PLAIN)) | DECIMALS, _nested, max_leaves=5).filter(
    _is_kept
)


def values_of(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type, at any depth, with nulls wherever it allows them."""
    if pa.types.is_decimal(kind):
        top = 10**kind.precision - 1
        context = decimal.Context(prec=90)
        found: Any = st.integers(-top, top).map(
            lambda digits: context.scaleb(decimal.Decimal(digits), -kind.scale)
        )
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = st.lists(values_of(kind.value_type, nullable=kind.value_field.nullable), max_size=3)
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        found = st.lists(values_of(kind.value_type), min_size=size, max_size=size)
    elif pa.types.is_map(kind):
        pair = st.tuples(values_of(kind.key_type, nullable=False), values_of(kind.item_type))
        found = st.lists(pair, max_size=3)
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries(
            {field.name: values_of(field.type, nullable=field.nullable) for field in kind}
        )
    else:
        found = PLAIN[kind]
    values: st.SearchStrategy[Any] = st.none() | found if nullable else found
    return values


RESERVED = [name for name in LOG_COLUMNS if name != "_value"]
FIELDS = st.lists(
    st.builds(_field, NAMES, TYPES, st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda field: field.name.lower(),
)


@st.composite
def logs(draw: st.DrawFn) -> list[Group]:
    """Groups that follow one another: typed columns, some reserved ones, terms that rise, gaps."""
    typed = draw(FIELDS)
    groups: list[Group] = []
    lsn, term = draw(st.integers(1, 2**40)), 1
    for _ in range(draw(st.integers(1, 4))):
        term += draw(st.integers(0, 2))
        count = draw(st.integers(1, 5))
        if draw(st.integers(0, 4)) == 0:
            groups.append(lost(lsn, lsn + count - 1, term=term, cause=draw(st.text(max_size=5))))
        else:
            names = draw(st.lists(st.sampled_from(RESERVED), unique=True, max_size=4))
            fields = [*(pa.field(name, LOG_COLUMNS[name]) for name in names), *typed]
            arrays = [
                pa.array(
                    draw(
                        st.lists(
                            values_of(field.type, nullable=field.nullable),
                            min_size=count,
                            max_size=count,
                        )
                    ),
                    field.type,
                )
                for field in fields
            ]
            records = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            groups.append(Group(term, lsn, lsn + count - 1, records))
        lsn += count
    return groups


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(groups=logs(), rows=st.integers(1, 6))
def test_every_record_comes_back_as_it_was(groups: list[Group], rows: int) -> None:
    segment = encoded(groups, config=SegmentConfig(row_group_rows=rows))
    found = decoded(segment.data)
    assert by_lsn(found) == by_lsn(groups)
    assert range_hash(found) == range_hash(groups)
    assert segment.receipt.rows == sum(group.records.num_rows for group in groups)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(groups=logs(), cut=st.data())
def test_every_range_of_lsns_comes_back(groups: list[Group], cut: st.DataObject) -> None:
    data = encoded(groups, config=SegmentConfig(row_group_rows=2)).data
    bounds = st.integers(groups[0].first_lsn - 1, groups[-1].last_lsn + 2)
    first, end = sorted((cut.draw(bounds), cut.draw(bounds)))
    parts = [part for group in groups if (part := group.between(first, end - 1)) is not None]
    assert by_lsn(decoded(data, first, end)) == by_lsn(parts)


def test_every_field_of_a_change_record_comes_back() -> None:
    changes = [
        ChangeRecord(
            lsn,
            term=3,
            timestamp_ms=1_700_000_000_000 + lsn,
            operation=operation,
            collection="users",
            rid=2**62 + lsn,
            key=b"\x00\xff",
            kind="row",
            entity_bytes=entity,
            metadata=b'{"role":"admin"}',
            headers=(("a", b"1"), ("a", None), ("", b"")),
            refresh_records=refreshed,
        )
        for lsn, (operation, entity, refreshed) in enumerate(
            itertools.product(Operation, (None, b"", b"\x01\x02"), (None, (), (b"", b"x"))), start=1
        )
    ]
    group = group_of(changes)
    [found] = decoded(encoded([group], config=None).data)
    assert list(changes_of(found)) == changes
    assert record_hashes(found) == record_hashes(group)


@pytest.mark.parametrize("name", EDGES)
def test_the_edges_of_types_come_back(name: str) -> None:
    column = EDGES[name]
    group = Group(1, 1, len(column), pa.record_batch({"a": column}))
    [found] = decoded(encoded([group], config=None).data)
    assert found.records.schema.equals(group.records.schema, check_metadata=True)
    assert found.records.column(0).type.equals(column.type, check_metadata=True)
    assert found.records.equals(group.records)


@pytest.mark.parametrize("rows", [3, 4096], ids=["plain", "dictionary"])
def test_what_a_float_holds_that_is_no_number_comes_back_bit_by_bit(rows: int) -> None:
    odd = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF0000000000007, 0x8000000000000000]
    bits = list(itertools.islice(itertools.cycle(odd), rows))
    column = pa.Array.from_buffers(
        pa.float64(), rows, [None, pa.py_buffer(struct.pack(f"<{rows}Q", *bits))]
    )
    [found] = decoded(
        encoded([Group(1, 1, rows, pa.record_batch({"a": column}))], config=None).data
    )
    assert found.records.column(0).view(pa.uint64()).to_pylist() == bits


def test_metadata_of_fields_and_of_the_schema_come_back() -> None:
    field = pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "77", "said": "by somebody"})
    schema = pa.schema([field], metadata={"pandas": "{}"})
    group = Group(
        1, 1, 2, pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], schema=schema)
    )
    [found] = decoded(encoded([group]).data)
    assert found.records.schema.equals(schema, check_metadata=True)


REFUSED = {
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "list view": pa.list_view(pa.int8()),
    "interval": pa.month_day_nano_interval(),
    "no fields": pa.struct([]),
    "no fields within": pa.list_(pa.struct([])),
    "a field twice": pa.struct([("x", pa.int8()), ("x", pa.int8())]),
    "fields that differ in capitals": pa.struct([("x", pa.int8()), ("X", pa.int8())]),
    "a field without a name": pa.large_list(pa.struct([("", pa.int8())])),
    "too deep": functools.reduce(lambda kind, _: pa.list_(kind), range(20), pa.int8()),
    "run ends": pa.run_end_encoded(pa.int32(), pa.int8()),
    "union": pa.dense_union([pa.field("x", pa.int8())]),
    "extension": pa.uuid(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_no_segment_can_keep_is_refused_by_the_log_as_well(
    name: str,
) -> None:
    schema = pa.schema([pa.field("price", REFUSED[name])])
    records = pa.RecordBatch.from_arrays([pa.nulls(1, REFUSED[name])], schema=schema)
    with pytest.raises(Refused, match="price"):
        encoded([Group(1, 1, 1, records)])
    with pytest.raises(Refused, match="price"):
        prepare_append(records)
    with pytest.raises(Refused):
        SegmentColumns([schema])


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(kind=TYPES)
def test_a_type_that_a_segment_keeps_a_log_takes(kind: pa.DataType) -> None:
    prepare_append(pa.record_batch({"price": pa.nulls(1, kind)}))


def test_digits_beyond_the_precision_are_refused_and_not_cut_off() -> None:
    kind = pa.decimal128(3, 0)
    column = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer((10**9).to_bytes(16, "little"))])
    for one in (column, pa.StructArray.from_arrays([column], names=["x"])):
        with pytest.raises(Refused, match="price"):
            encoded([Group(1, 1, 1, pa.record_batch({"price": one}))])


@pytest.mark.parametrize(
    ("column", "field"),
    [
        (pa.array([1, None]), pa.field("a", pa.int64(), nullable=False)),
        (
            pa.StructArray.from_arrays(
                [pa.array([1, None])], fields=[pa.field("x", pa.int64(), nullable=False)]
            ),
            pa.field("a", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ),
    ],
    ids=["column", "nested"],
)
def test_a_null_where_none_may_be_is_refused(column: pa.Array, field: pa.Field) -> None:
    records = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
    with pytest.raises(Refused, match="null"):
        encoded([Group(1, 1, 2, records)])


def test_the_headers_of_records_are_as_they_were() -> None:
    column = pa.array([[{"key": "a", "value": None}], [], None], HEADERS_TYPE)
    group = Group(1, 1, 3, pa.record_batch({"_headers": column}))
    [found] = decoded(encoded([group]).data)
    assert found.records.equals(group.records)


# Records of no columns are records: they are counted, and come back.


def nothing_in(first_lsn: int, count: int) -> Group:
    rows = pa.record_batch({"gone": pa.nulls(count)}).select([])
    return Group(1, first_lsn, first_lsn + count - 1, rows.replace_schema_metadata({"a": "b"}))


def test_records_without_columns_come_back_also_among_others() -> None:
    given = [nothing_in(1, 6), orders(7, 3), nothing_in(10, 2)]
    found = decoded(encoded(given).data)
    assert by_lsn(found) == by_lsn(given)
    assert range_hash(found) == range_hash(given)
    assert found[0].records.schema.metadata == {b"a": b"b"}
    assert sum(map(len, decoded(encoded(given).data, 3, 6))) == 3


def test_whoever_verifies_a_segment_decodes_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        segments, segment = storage(Store(MemoryBackend())), encoded([orders(1, 9)])
        await segments.copy(segment)
        await segments.verify(told(segment))

        def short(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
            raise Corrupt(f"no way back to {schema}")

        monkeypatch.setattr(reading, "restore_records", short)
        with pytest.raises(Corrupt, match="no way back"):
            await segments.verify(told(segment))

    asyncio.run(main())


def test_row_groups_are_cut_out_of_chunks_of_any_size() -> None:
    segment = encoded([orders(1, 11)])
    groups, data = segment.description.row_groups, bytes(segment.data)
    wanted = [data[one.offset : one.offset + one.size_bytes] for one in groups]
    assert len(wanted) == 3
    for size in (1, 7, 100, len(data)):
        parts = RowGroupSplitter(groups)
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        found = [one for chunk in chunks for one in parts.take(chunk)]
        assert [(number, bytes(part)) for number, part in found] == list(enumerate(wanted))


def test_rows_that_are_not_those_of_their_runs_are_corrupt_and_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = encoded([orders(1, 3)])
    monkeypatch.setattr(reading, "_rows", lambda *_: pa.record_batch({LSN: [1, 2]}))
    with pytest.raises(Corrupt, match="no records of LSNs 1 to 3"):
        decoded(segment.data)
