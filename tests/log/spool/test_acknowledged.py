"""What is acknowledged is read back as it was given, whatever its neighbours are and become of."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.errors import Conflict, Fenced, Unavailable
from headwater.log import Group, Spool, SpoolConfig, prepare_append, prepare_lost
from headwater.log.record.group import LOG_COLUMNS, NO_RECORDS
from headwater.log.spool.codec import fill_columns, merge_schemas
from headwater.log.spool.commit import PendingAppend
from headwater.log.spool.spool import _pending
from headwater.testing.disk import FaultyDisk
from tests.log.given import hashes, opened, stored_groups, wait

FLUSHES = 5
OWN: list[dict[str, pa.DataType]] = [
    {"_value": pa.binary()},
    {"a": pa.int64()},
    {"a": pa.string()},
    {"a": pa.int64(), "b": pa.list_(pa.string())},
    {"b": pa.list_(pa.string()), "a": pa.int64()},
]
OPTIONAL = [name for name in LOG_COLUMNS if name != "_value"]
VALUES: dict[pa.DataType, list[object]] = {
    pa.binary(): [b"", b"one", b"two"],
    pa.string(): ["", "one", "two"],
    pa.int64(): [0, 7, -1],
    pa.int8(): [0, 1, 2],
    pa.list_(pa.string()): [[], ["one"], ["one", "two"]],
    LOG_COLUMNS["_timestamp"]: [1, 2, 3],
    LOG_COLUMNS["_headers"]: [[], [{"key": "k", "value": b"v"}]],
    LOG_COLUMNS["_refresh_records"]: [[], [b"r"]],
}


def drawn_records(chance: random.Random) -> pa.RecordBatch:
    """A few records of a schema that somebody could have."""
    (own,) = chance.choices(OWN, weights=(6, 2, 1, 1, 1))
    optional = chance.sample(OPTIONAL, chance.randint(0, 3))
    columns = own | {name: LOG_COLUMNS[name] for name in optional}
    rows = chance.randint(1, 4)
    fields, arrays = [], []
    for name, kind in columns.items():
        nullable = chance.random() < 0.7
        nulls: list[object] = [None] if nullable else []
        fields.append(pa.field(name, kind, nullable=nullable))
        arrays.append(pa.array([chance.choice(VALUES[kind] + nulls) for _ in range(rows)], kind))
    return pa.record_batch(arrays, schema=pa.schema(fields))


def drawn_append(
    chance: random.Random, spool: Spool
) -> tuple[PendingAppend, pa.RecordBatch | None]:
    """An append that may be refused, made ready for a segment that may be another by now."""
    term = chance.choice((2,) * 9 + (1, 3))
    first_lsn = chance.choice((None, None, None, spool.current_lsn() + 1, 99_999))
    if chance.random() < 0.1:
        return _pending(prepare_lost(chance.randint(1, 3), "gone"), term, first_lsn, None), None
    records = drawn_records(chance)
    schema = chance.choice((None, spool._writer.schema, drawn_records(chance).schema))
    draft = prepare_append(records, group_bytes=chance.choice((1, 1000)), schema=schema)
    return _pending(draft, term, first_lsn, None), records


def written(spool: Spool) -> dict[int, int]:
    """The hashes of all that stands in the segments."""
    return hashes(stored_groups(spool))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_acknowledged_is_read_back_as_it_was_given(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)

    def failing(*args: Any, **options: Any) -> pa.RecordBatch:
        if chance.random() < 0.5:
            raise MemoryError
        return fill_columns(*args, **options)

    monkeypatch.setattr("headwater.log.spool.commit.fill_columns", failing)
    disk = FaultyDisk(seed=seed)
    config = SpoolConfig(segment_bytes=chance.choice((1, 3000, 1 << 20)), group_bytes=1000)
    spool = opened(disk, config=config)
    expected: dict[int, int] = {}
    for _ in range(FLUSHES):
        appends = [drawn_append(chance, spool) for _ in range(chance.randint(1, 12))]
        spool._writer.flush([ticket for ticket, _ in appends])
        for ticket, records in appends:
            try:
                landed = ticket.result()
            except (Conflict, Fenced, Unavailable):
                continue
            lost = None if records is not None else "gone"
            group = Group(1, *landed, NO_RECORDS if records is None else records, lost=lost)
            expected |= hashes([group])
        assert written(spool) == hashes(wait(spool.read_since(0))) == expected
        for segment in spool.segments():
            schemas = [
                group.records.schema
                for group in wait(spool.read_since(segment.first_lsn - 1))
                if group.last_lsn <= segment.last_lsn and group.lost is None
            ]
            for before, after in itertools.pairwise(schemas):
                assert after == before or merge_schemas(after, before) == after
    wait(spool.close())
    assert written(opened(disk)) == expected
