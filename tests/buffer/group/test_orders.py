"""Starts, resets, deletions and acknowledgements of one group in every order of their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.record import GroupEpoch, GroupRecord
from headwater.buffer.group.register import GroupRegister
from headwater.core.errors import Fenced
from headwater.store import MemoryBackend
from tests.buffer.group.gated import Call, schedules
from tests.buffer.group.given import group_on

BEGIN, RESET, OLD_ACK, NEW_ACK = 100, 5, 130, 120
"""The old run acknowledges further than the new one: each is recognised by its LSN."""


class Run(NamedTuple):
    """A run of the query: its epoch, and the position that it took."""

    epoch: GroupEpoch
    taken: int


async def reading(backend: MemoryBackend) -> tuple[GroupRegister, GroupEpoch]:
    group = group_on(backend, partitions=1)
    await group.begin("query", {0: BEGIN})
    epoch = await group.start_query("q", is_new=True)
    await group.take(0, epoch)
    return group, epoch


def acknowledging(epoch: GroupEpoch) -> Call:
    async def call(backend: MemoryBackend) -> object:
        return (await group_on(backend, partitions=1).acknowledge(0, epoch, OLD_ACK)).lsn

    return call


async def restarting(backend: MemoryBackend) -> Run:
    """Start the same query again, take the partition and acknowledge."""
    group = group_on(backend, partitions=1)
    epoch = await group.start_query("q", is_new=True)
    taken = await group.take(0, epoch)
    await group.acknowledge(0, epoch, NEW_ACK)
    return Run(epoch, taken.lsn)


async def resetting(backend: MemoryBackend) -> object:
    return await group_on(backend, partitions=1).reset({0: RESET})


def deleting_and(begins: int) -> Call:
    async def call(backend: MemoryBackend) -> object:
        group = group_on(backend, partitions=1)
        await group.delete()
        return await group.begin("query", {0: begins})

    return call


def of(**calls: Callable[[GroupEpoch], Call]) -> Callable[[MemoryBackend], Any]:
    async def setup(backend: MemoryBackend) -> Mapping[str, Call]:
        _, epoch = await reading(backend)
        return {name: call(epoch) for name, call in calls.items()}

    return setup


async def final(backend: MemoryBackend) -> tuple[GroupRecord, int]:
    record, positions = await group_on(backend, partitions=1).positions()
    return record, positions[0]


def test_every_order_that_matters_is_run() -> None:
    async def adding(backend: MemoryBackend) -> object:
        count = int(bytes((await backend.get("count")).data))
        await backend.put("count", b"%d" % (count + 1))
        return count

    async def setup(backend: MemoryBackend) -> Mapping[str, Call]:
        await backend.put("count", b"0")
        return {"a": adding, "b": adding}

    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        ends.append((outcomes["a"], outcomes["b"], bytes((await backend.get("count")).data)))

    ends: list[tuple[object, object, bytes]] = []
    # One after the other, either way; and both read first, then one of them writes last.
    assert schedules(setup, verify) == 4
    assert sorted(ends, key=str) == [(0, 0, b"1"), (0, 0, b"1"), (0, 1, b"2"), (1, 0, b"2")]


def test_a_restart_and_an_acknowledgement_of_the_run_before() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        new, (_, position) = outcomes["new"], await final(backend)
        assert isinstance(new, Run)
        assert new.epoch.number == 2
        if outcomes["old"] == OLD_ACK:
            assert new.taken == position == OLD_ACK, order
        else:
            assert isinstance(outcomes["old"], Fenced), outcomes
            assert (new.taken, position) == (BEGIN, NEW_ACK), order

    assert schedules(of(new=lambda _: restarting, old=acknowledging), verify) >= 9


def test_a_reset_is_not_undone_by_an_acknowledgement_of_a_run_before() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        record, position = await final(backend)
        assert (record.resets, position) == (1, RESET), order
        assert outcomes["old"] == OLD_ACK, "its position did not count, and nothing fenced it yet"

    assert schedules(of(old=acknowledging, reset=lambda _: resetting), verify) >= 2


def test_a_restart_a_reset_and_an_acknowledgement() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        record, position = await final(backend)
        new, reset = outcomes["new"], outcomes["reset"]
        assert isinstance(new, Run), new
        assert isinstance(reset, GroupRecord), reset
        assert {new.epoch.number, reset.epoch} == {2, 3}, order
        assert record.resets == 1
        if new.epoch.number > reset.epoch:
            assert (new.taken, position) == (RESET, NEW_ACK), order
        else:
            # Whatever the restarted query took and acknowledged, the reset came after it.
            assert new.taken in (BEGIN, OLD_ACK), order
            assert position == RESET, order

    calls = of(new=lambda _: restarting, old=acknowledging, reset=lambda _: resetting)
    assert schedules(calls, verify) >= 87


def test_a_deletion_with_a_new_beginning_and_an_acknowledgement() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        record, position = await final(backend)
        assert (record.resets, position) == (1, 7), order
        assert outcomes["old"] == OLD_ACK

    calls = of(again=lambda _: deleting_and(7), old=acknowledging)
    assert schedules(calls, verify) == 1, "their requests do not see each other"


def test_a_deletion_with_a_new_beginning_and_a_restart() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        record, position = await final(backend)
        assert record.resets == 1
        new = outcomes["new"]
        if isinstance(new, UnknownGroup):
            assert (record.epoch, position) == (2, 7), order
            return
        assert isinstance(new, Run), new
        assert record.epoch == 3
        if new.epoch.resets:
            assert (new.taken, position) == (7, NEW_ACK), order
        else:
            assert (new.taken, position) == (BEGIN, 7), order

    assert schedules(of(again=lambda _: deleting_and(7), new=lambda _: restarting), verify) >= 9


def test_two_restarts_give_two_epochs_and_the_higher_one_reads_on() -> None:
    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        assert all(isinstance(one, Run | Fenced) for one in outcomes.values()), outcomes
        numbers = [one.epoch.number for one in outcomes.values() if isinstance(one, Run)]
        assert len(set(numbers)) == len(numbers)
        assert 3 in numbers, "the higher epoch is fenced by nothing"
        record, position = await final(backend)
        assert (record.epoch, position) == (3, NEW_ACK), order

    calls = of(one=lambda _: restarting, two=lambda _: restarting)
    assert schedules(calls, verify) >= 132


# A reset of partition 0, which leaves partition 1 where it is.


async def reading_both(backend: MemoryBackend) -> GroupEpoch:
    group = group_on(backend)
    await group.begin("query", {0: BEGIN, 1: BEGIN})
    epoch = await group.start_query("q", is_new=True)
    await group.take(1, epoch)
    return epoch


async def resetting_one(backend: MemoryBackend) -> object:
    return await group_on(backend).reset({0: RESET})


async def restarting_in_the_other(backend: MemoryBackend) -> Run:
    """Start the same checkpoint again, if it still has the group, and acknowledge partition 1."""
    group = group_on(backend)
    epoch = await group.start_query("q", is_new=False)
    taken = await group.take(1, epoch)
    await group.acknowledge(1, epoch, NEW_ACK)
    return Run(epoch, taken.lsn)


def test_a_reset_of_one_partition_keeps_what_is_acknowledged_in_the_other() -> None:
    async def setup(backend: MemoryBackend) -> Mapping[str, Call]:
        epoch = await reading_both(backend)

        async def acknowledges(client: MemoryBackend) -> object:
            return (await group_on(client).acknowledge(1, epoch, OLD_ACK)).lsn

        return {"old": acknowledges, "reset": resetting_one}

    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        assert isinstance(outcomes["reset"], GroupRecord), outcomes
        _, positions = await group_on(backend).positions()
        if outcomes["old"] == OLD_ACK:
            assert positions == {0: RESET, 1: OLD_ACK}, order
        else:
            assert isinstance(outcomes["old"], Fenced), outcomes
            assert positions == {0: RESET, 1: BEGIN}, order

    assert schedules(setup, verify) >= 6


def test_a_reset_of_one_partition_and_a_restart_that_reads_the_other() -> None:
    async def setup(backend: MemoryBackend) -> Mapping[str, Call]:
        await reading_both(backend)
        return {"new": restarting_in_the_other, "reset": resetting_one}

    async def verify(
        backend: MemoryBackend, outcomes: Mapping[str, object], order: list[str]
    ) -> None:
        assert isinstance(outcomes["reset"], GroupRecord), outcomes
        record, positions = await group_on(backend).positions()
        assert (record.resets, positions[0]) == (1, RESET), order
        new = outcomes["new"]
        if isinstance(new, Run):
            # It acknowledged before the reset took the partition: later it would be fenced.
            assert new.epoch.number < outcomes["reset"].epoch, order
            assert (new.taken, positions[1]) == (BEGIN, NEW_ACK), order
        else:
            assert isinstance(new, Fenced), new
            assert positions[1] == BEGIN, order

    assert schedules(setup, verify) >= 100
