"""Appending: LSNs, terms, and what is refused."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Conflict,
    DiskFailed,
    Fenced,
    NoSpace,
    Refused,
    Unavailable,
)
from headwater.log import Spool, SpoolConfig, prepare_append, prepare_lost
from headwater.log.spool.commit import Appended
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, numbered, opened, spans, values, wait
from tests.store.scripted import virtual


def test_lsns_are_given_in_order_from_where_the_spool_begins() -> None:
    spool = opened(FaultyDisk(), first_lsn=101)
    assert (spool.oldest_lsn(), spool.current_lsn()) == (101, 100)
    assert wait(spool.append(numbered(101, 3), term=1)) == (101, 103)
    assert wait(spool.append(numbered(104, 1), term=1, first_lsn=104)) == (104, 104)
    assert (spool.oldest_lsn(), spool.current_lsn()) == (101, 104)
    assert list(everything(spool)) == [101, 102, 103, 104]


@pytest.mark.parametrize("first_lsn", [1, 3, 5])
def test_an_lsn_that_is_not_the_next_is_refused_and_told_the_next(first_lsn: int) -> None:
    spool = opened(FaultyDisk())
    wait(spool.append(numbered(1, 3), term=1))
    with pytest.raises(Conflict, match="next LSN is 4") as refused:
        wait(spool.append(numbered(4, 1), term=1, first_lsn=first_lsn))
    assert refused.value.current == 4
    assert spool.current_lsn() == 3


def test_a_term_that_is_over_is_fenced_also_after_the_log_was_opened_again_and_pruned() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=5))
    with pytest.raises(Fenced):
        wait(spool.append(numbered(2, 1), term=4))
    wait(spool.seal())
    wait(spool.prune_through(1))
    wait(spool.close())
    again = opened(disk)
    with pytest.raises(Fenced):
        wait(again.append(numbered(2, 1), term=4))
    wait(again.append(numbered(2, 1), term=5))


def test_an_empty_segment_does_not_make_the_log_forget_its_term() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=5))
    wait(spool.seal())
    disk.crash()
    assert opened(disk.after_crash(runtime.random())).term == 5


def test_a_refused_append_leaves_the_term_as_it_was() -> None:
    spool = opened(FaultyDisk())
    wait(spool.append(numbered(1, 1), term=1))
    with pytest.raises(Conflict):
        wait(spool.append(numbered(7, 1), term=2, first_lsn=7))
    wait(spool.append(numbered(2, 1), term=1))


def test_records_that_are_too_many_for_one_frame_go_into_several() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(group_bytes=1000))
    wait(spool.append(numbered(1, 100, size=50), term=1))
    assert spool.metrics.frames_written > 1
    assert spool.metrics.flushes == 1
    groups = wait(spool.read_since(0))
    assert max(group.nbytes for group in groups) <= 1000
    assert list(everything(spool)) == list(range(1, 101))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (values(), "no records"),
        (pa.record_batch({"_strange": pa.array([1])}), "reserved"),
        (pa.record_batch({"_rid": pa.array(["x"])}), "_rid is string"),
        (pa.record_batch({"a": pa.array([[1]], pa.list_view(pa.int8()))}), "cast it"),
        (
            pa.record_batch({"a": pa.array([[(1, 2, 3)]], pa.list_(pa.month_day_nano_interval()))}),
            "cast it",
        ),
        (pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"]), "more than once"),
    ],
)
def test_what_the_log_does_not_carry_is_refused(records: pa.RecordBatch, why: str) -> None:
    spool = opened(FaultyDisk())
    with pytest.raises(Refused, match=why):
        wait(spool.append(records, term=1))
    assert spool.current_lsn() == 0


def test_a_draft_is_good_for_one_append() -> None:
    spool = opened(FaultyDisk())
    draft = prepare_append(numbered(1, 2))
    assert wait(spool.append(draft, term=1)) == (1, 2)
    with pytest.raises(Refused, match="prepare another"):
        wait(spool.append(draft, term=1))


def test_a_draft_that_changed_nothing_can_be_appended_again() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(queue_bytes=100))
    draft = prepare_append(numbered(1, 2))
    wait(spool.append(numbered(1, 1), term=5))
    for error, wrong in (
        (Conflict, {"term": 5, "first_lsn": 7}),
        (Fenced, {"term": 4}),
        (Refused, {"term": 0}),
    ):
        with pytest.raises(error):
            wait(spool.append(draft, **wrong))
    disk.fail_next("append", errno.ENOSPC)
    with pytest.raises(NoSpace):
        wait(spool.append(draft, term=5))
    assert wait(spool.append(draft, term=5)) == (2, 3)
    assert list(everything(spool)) == [1, 2, 3]
    with pytest.raises(Refused, match="prepare another"):
        wait(spool.append(draft, term=5))


@virtual
async def test_a_draft_that_found_the_line_full_can_be_appended_again() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(queue_bytes=100))
    drafts = [prepare_append(numbered(1, 2)) for _ in range(5)]
    answers = await asyncio.gather(
        *(spool.append(draft, term=1) for draft in drafts), return_exceptions=True
    )
    refused = [
        draft
        for draft, answer in zip(drafts, answers, strict=True)
        if isinstance(answer, Unavailable)
    ]
    assert refused
    for draft in refused:
        await spool.append(draft, term=1)
    assert spool.current_lsn() == 10


def test_a_draft_whose_outcome_is_not_known_is_not_appended_again() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    draft = prepare_append(numbered(1, 2))
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(DiskFailed):
        wait(spool.append(draft, term=1))
    with pytest.raises(Refused, match="prepare another"):
        wait(opened(FaultyDisk()).append(draft, term=1))


class Pipeline:
    """Appends under the LSNs that follow the call before, without waiting for it."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.next_lsn = 1

    async def append(self, count: int) -> tuple[int, Appended]:
        """Which LSN it was meant for, and where it landed."""
        first = self.next_lsn
        self.next_lsn += count
        records = numbered(first, count, size=100)
        return first, await self.spool.append(records, term=1, first_lsn=first)


@virtual
async def test_tasks_that_append_at_once_are_served_in_the_order_of_their_calls() -> None:
    """A large append is encoded on a thread: small ones behind it wait for their turn."""
    pipeline = Pipeline(opened(FaultyDisk()))
    sizes = [2_000, 1, 3, 4_000, 2, 1_000]
    for meant_lsn, appended in await asyncio.gather(*map(pipeline.append, sizes)):
        assert appended.first_lsn == meant_lsn
    found = [value async for value in _values(pipeline.spool)]
    assert [int(value.split()[1].strip(b".")) for value in found] == list(range(1, sum(sizes) + 1))


@virtual
async def test_an_append_that_is_cancelled_or_refused_gives_its_turn_to_the_next() -> None:
    pipeline = Pipeline(opened(FaultyDisk()))
    spool = pipeline.spool
    begun = asyncio.Event()

    async def wait_in_line() -> None:
        begun.set()
        await spool.append(numbered(1, 1), term=1)

    large = runtime.spawn(pipeline.append(2_000), name="large")
    while pipeline.next_lsn == 1:
        await runtime.sleep(0)
    waits = runtime.spawn(wait_in_line(), name="waits")
    await begun.wait()
    behind = [runtime.spawn(pipeline.append(count), name="behind") for count in (5, 2, 1_500, 1)]
    refused = runtime.spawn(spool.append(values(), term=1), name="refused")
    while pipeline.next_lsn < 3_509:
        await runtime.sleep(0)
    waits.cancel()
    with pytest.raises(Refused):
        await refused
    for meant_lsn, appended in await asyncio.gather(large, *behind):
        assert appended.first_lsn == meant_lsn
    assert await spool.append(numbered(3_509, 1), term=1) == (3_509, 3_509)
    assert spool._calls.is_free()


async def _values(spool: Spool) -> AsyncIterator[bytes]:
    at = 0
    while at < spool.current_lsn():
        for group in await spool.read_since(at):
            for value in group.records["_value"].to_pylist():
                yield value
            at = group.last_lsn


def test_a_lost_range_takes_its_lsns_and_is_read_as_lost() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 2), term=1))
    assert wait(spool.append(prepare_lost(10, "batch 7 is gone"), term=1)) == (3, 12)
    wait(spool.append(numbered(13, 1), term=1))
    wait(spool.close())
    groups = wait(opened(disk).read_since(4))
    assert spans(groups) == [(5, 12), (13, 13)]
    assert groups[0].lost == "batch 7 is gone"


def test_a_closed_spool_takes_nothing() -> None:
    spool = opened(FaultyDisk())
    wait(spool.close())
    wait(spool.close())
    with pytest.raises(Refused, match="is closed"):
        wait(spool.append(numbered(1, 1), term=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sync": "sometimes"},
        {"sync": 0.0},
        {"sync": True},
        {"segment_bytes": 0},
        {"tail_bytes": -1},
    ],
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused):
        SpoolConfig(**wrong)  # type: ignore[arg-type]
