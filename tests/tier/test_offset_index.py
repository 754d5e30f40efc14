"""The parts of the cache against what one would write in a line: large enough to split and grow."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.tier.segment_table import CHUNK_ROWS, IdTable, MaxTree, StartIndex

ROWS = 6 * CHUNK_ROWS


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.mark.parametrize("seed", range(5))
def test_a_start_index_answers_as_a_sorted_list_does(seed: int) -> None:
    chance = random.Random(seed)
    values = [chance.randrange(1000) for _ in range(ROWS)]
    index, model = StartIndex(values.__getitem__), list[tuple[int, int]]()
    rows = list(range(ROWS))
    rising = seed % 2 == 0
    for step in range(3 * ROWS):
        if rows and (len(model) < 5 or chance.random() < 0.55):
            row = rows.pop(0)
            start = step if rising and chance.random() < 0.9 else chance.randrange(2 * ROWS)
            index.add(start, row)
            model.insert(bisect_right([one for one, _ in model], start), (start, row))
        elif model:
            start, row = model.pop(0 if rising else chance.randrange(len(model)))
            assert index.remove(start, row)
            assert not index.remove(start, row)
            rows.append(row)
        if step % 50 == 0:
            _check_start_index(index, model, values, chance)
    assert len(model) > CHUNK_ROWS


def _check_start_index(
    index: StartIndex, model: list[tuple[int, int]], values: list[int], chance: random.Random
) -> None:
    assert (list(zip(*index.columns(), strict=True)), list(index)) == (
        model,
        [row for _, row in model],
    )
    assert index.last() == (model[-1] if model else None)
    asked, until, value = (chance.randrange(top) for top in (2 * ROWS, 3 * ROWS, 1001))
    at_or_before = [one for one in model if one[0] <= asked]
    assert index.floor(asked) == (at_or_before[-1] if at_or_before else None)
    for first, end in ((None, None), (asked, None), (None, asked), (asked, until)):
        found = [
            row
            for start, row in model
            if (first is None or start >= first)
            and (end is None or start < end)
            and values[row] >= value
        ]
        assert list(index.rows_from(value, first=first, end=end)) == found


def test_rows_with_the_same_start_may_fill_several_chunks() -> None:
    index = StartIndex(int)
    for row in range(3 * CHUNK_ROWS):
        index.add(7, row)
    assert list(index.rows_from(0, first=7, end=8)) == list(range(3 * CHUNK_ROWS))
    assert all(index.remove(7, row) for row in range(3 * CHUNK_ROWS))
    assert (list(index), index.last(), index.floor(7)) == ([], None, None)
    assert list(index.rows_from(0, first=3)) == []


def test_rows_that_come_in_order_leave_full_chunks() -> None:
    index = StartIndex(int)
    for row in range(10 * CHUNK_ROWS):
        index.add(row, row)
    assert [len(rows) for rows in index._rows] == [CHUNK_ROWS] * 10


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.data())
def test_a_max_tree_finds_the_next_number_that_is_large_enough(
    values: list[int], data: st.DataObject
) -> None:
    tree = MaxTree(values)
    if values:
        changed = data.draw(st.integers(0, len(values) - 1))
        values[changed] = data.draw(st.integers(-5, 5))
        tree.set(changed, values[changed])
    begin = data.draw(st.integers(0, len(values) + 1))
    least = data.draw(st.sampled_from([*values, 0, -(2**63), 2**63 - 1]))
    following = (at for at in range(begin, len(values)) if values[at] >= least)
    assert tree.first_at_least(begin, least) == next(following, None)


@pytest.mark.parametrize("seed", range(3))
def test_an_id_table_answers_as_a_dict_does(seed: int) -> None:
    chance = random.Random(seed)
    table, model, free = IdTable(), dict[bytes, int](), list[int]()
    for step in range(4000):
        if not model or chance.random() < (0.7 if step < 2000 else 0.3):
            row = free.pop() if free else len(model)
            model[id_of(step)] = row
            table.put(id_of(step), row)
        else:
            gone = chance.choice(list(model)) if step % 10 == 0 else next(iter(model))
            free.append(model.pop(gone))
            table.remove(gone)
            table.remove(gone)
            assert table.find(gone) is None
    assert len(table) == len(model)
    assert {one: table.find(one) for one in model} == model
    assert {row: table.id_of(row) for row in model.values()} == {
        row: one for one, row in model.items()
    }


def test_an_id_table_does_not_grow_with_what_is_gone() -> None:
    table = IdTable()
    for number in range(10_000):
        table.put(id_of(number), 0)
        table.remove(id_of(number))
    assert len(table._slots) <= 16
