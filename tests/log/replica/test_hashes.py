"""Comparing costs what there is to compare, and not how it is cut."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa

from headwater.core import runtime
from headwater.log import Group, record_hashes
from headwater.log.record import hashes
from headwater.log.record.group import NO_RECORDS, GroupRing
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.comparing import compare_groups
from tests.log.replica.given import another, rows
from tests.store.scripted import virtual


def small(first_lsn: int, last_lsn: int) -> list[Group]:
    """A group of one record for each LSN."""
    lsns = range(first_lsn, last_lsn + 1)
    return [rows(lsn, (b"k%d" % lsn, 0, b"v%d" % lsn)) for lsn in lsns]


@virtual
async def test_the_hashes_of_many_groups_are_those_of_each() -> None:
    lost = Group(1, 4, 6, NO_RECORDS, 0, "nobody has it")
    other = another(rows(7, (b"a", 0, b"1"), (b"b", 0, b"2")))
    groups = [*small(2, 3), lost, other, *small(11, 12)]
    expected: list[int | None] = [None]
    for group in groups[:4]:
        expected += record_hashes(group).to_pylist()
    expected += [None, None]
    for group in groups[4:]:
        expected += record_hashes(group).to_pylist()
    assert (await hashes_between(groups, 1, 13)).to_pylist() == [*expected, None]
    assert (await hashes_between([], 1, 2)).to_pylist() == [None, None]


@virtual
async def test_groups_of_one_schema_are_hashed_together_and_beside_the_loop() -> None:
    many = small(1, 500)
    with (
        mock.patch.object(hashes, "record_hashes", wraps=record_hashes) as hashing,
        mock.patch.object(runtime, "run_blocking", wraps=runtime.run_blocking) as beside,
    ):
        found = await hashes_between(many, 1, 500)
        assert (hashing.call_count, beside.call_count) == (1, 1)
        await hashes_between(many[:1], 1, 1)
        assert beside.call_count == 1, "what is little is not worth a thread"
    assert found == pa.concat_arrays([record_hashes(group) for group in many])


@virtual
async def test_an_answer_is_compared_as_a_whole_also_where_some_is_passed_over() -> None:
    asked: list[tuple[int, int]] = []

    class Copy:
        async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
            asked.append((first_lsn, last_lsn))
            return await hashes_between(small(first_lsn, last_lsn), first_lsn, last_lsn)

    copy = Copy()
    compared = await compare_groups(copy, [*small(1, 40), *small(50, 60)])  # type: ignore[arg-type]
    assert (compared.same, compared.unknown, compared.differs_lsn) == (51, 0, None)
    assert asked == [(1, 40), (50, 60)]
    wrong = [*small(1, 40), *small(50, 52), another(small(53, 53)[0]), *small(54, 60)]
    assert (await compare_groups(copy, wrong)).differs_lsn == 53  # type: ignore[arg-type]


def test_what_is_kept_to_compare_is_bounded_by_what_it_takes_in_memory() -> None:
    recent = GroupRing(max_bytes=100_000, keeps_last=True)
    for group in small(1, 1000):
        recent.extend([group])
        assert recent.size_bytes <= 100_000
    held = recent.between(1, 1000)
    assert 5 < len(held) < 50, "each takes kilobytes, however few bytes its record has"
    assert [group.first_lsn for group in held] == list(range(1001 - len(held), 1001))
    assert [group.first_lsn for group in recent.between(998, 999)] == [998, 999]
    assert recent.between(1001, 1002) == []
    assert len(recent._groups) < 100, "and what is not known is let go"
