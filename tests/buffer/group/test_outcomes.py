"""Groups when a process dies at any of its requests, or an answer is lost: repeating settles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.record import GroupRecord
from headwater.buffer.group.register import GroupRegister
from headwater.core.errors import HeadwaterError, OutcomeUnknown
from headwater.store import MemoryBackend, PreconditionFailed
from headwater.store.backend import Backend
from tests.buffer.group.given import BEGINS, claimed, group_on
from tests.store.scripted import LOST, Apply, Scripted, Step, fails, lands_then, virtual

REFUSED = PreconditionFailed("412 PreconditionFailed")
Operation = Callable[[GroupRegister], Awaitable[object]]


class Died(Exception):
    """The process ended here."""


async def begins(group: GroupRegister) -> object:
    return await group.begin("query", BEGINS)


async def starts(group: GroupRegister) -> object:
    epoch = await group.start_query("q", is_new=True)
    for partition in BEGINS:
        await group.take(partition, epoch)
        await group.acknowledge(partition, epoch, 50)
    return epoch


async def resets(group: GroupRegister) -> object:
    return await group.reset({0: 3, 1: 4})


async def resets_one(group: GroupRegister) -> object:
    return await group.reset({0: 3})


async def deletes(group: GroupRegister) -> object:
    try:
        return await group.delete()
    except UnknownGroup:
        return await group.delete() if await _exists(group) else None


async def _exists(group: GroupRegister) -> bool:
    try:
        await group.read()
    except UnknownGroup:
        return False
    return True


async def positions_on(backend: Backend) -> dict[int, int] | None:
    try:
        return (await group_on(backend).positions())[1]
    except UnknownGroup:
        return None


async def given(backend: MemoryBackend, operation: Operation) -> None:
    """What the operation finds: nothing, or a query in the middle of both partitions."""
    if operation is begins:
        return
    group = group_on(backend)
    await group.begin("query", BEGINS)
    epoch = await group.start_query("q", is_new=True)
    for partition, lsn in BEGINS.items():
        await group.take(partition, epoch)
        await group.acknowledge(partition, epoch, lsn + 2)


MIDDLE = {0: 13, 1: 23}
OPERATIONS: dict[str, tuple[Operation, dict[int, int] | None]] = {
    "begin": (begins, BEGINS),
    "start": (starts, {0: 50, 1: 50}),
    "reset": (resets, {0: 3, 1: 4}),
    "reset of one partition": (resets_one, {0: 3, 1: 23}),
    "delete": (deletes, None),
}


async def writes_of(operation: Operation) -> list[str]:
    backend = Scripted()
    await given(backend.inner, operation)  # type: ignore[arg-type]
    await operation(group_on(backend))
    return [call for call, _ in backend.calls if call.startswith("put")]


def at(number: int, writes: list[str], step: Step) -> dict[str, list[Step]]:
    """The step at one of these writes."""

    async def goes_through(apply: Apply) -> Any:
        return await apply()

    steps: dict[str, list[Step]] = {}
    for place, write in enumerate(writes[: number + 1]):
        steps.setdefault(write, []).append(step if place == number else goes_through)
    return steps


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("lands", [False, True])
@virtual
async def test_a_process_dies_at_any_of_its_writes(name: str, lands: bool) -> None:
    operation, after = OPERATIONS[name]
    writes = await writes_of(operation)
    for number in range(len(writes)):
        backend = Scripted()
        await given(backend.inner, operation)  # type: ignore[arg-type]
        before = await positions_on(backend.inner)
        step = lands_then(Died()) if lands else fails(Died())
        for write, steps in at(number, writes, step).items():
            backend.next(write, *steps)
        with pytest.raises(Died):
            await operation(group_on(backend))
        left = await positions_on(backend.inner)
        if name == "start":
            assert left is not None
            assert all(left[p] in (MIDDLE[p], 50) for p in BEGINS), "nothing goes back"
        else:
            assert left in (before, after), f"write {number}: half of it is visible"
        await operation(group_on(backend))
        assert await positions_on(backend.inner) == after


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("error", [LOST, REFUSED], ids=["lost", "refused"])
@virtual
async def test_the_answer_to_any_of_its_writes_is_lost(name: str, error: Exception) -> None:
    operation, after = OPERATIONS[name]
    writes = await writes_of(operation)
    for number in range(len(writes)):
        backend = Scripted()
        await given(backend.inner, operation)  # type: ignore[arg-type]
        for write, steps in at(number, writes, lands_then(error)).items():
            backend.next(write, *steps)
        await operation(group_on(backend))
        assert await positions_on(backend.inner) == after
        record = await group_on(backend.inner)._stored()
        expected = {"begin": 0, "start": 2, "reset": 2, "reset of one partition": 3, "delete": 2}
        assert record.epoch == expected[name], "the write was made twice"


@pytest.mark.parametrize("name", OPERATIONS)
@virtual
async def test_an_answer_is_lost_and_nothing_can_be_read_afterwards(name: str) -> None:
    operation, after = OPERATIONS[name]
    writes = await writes_of(operation)
    for number in range(len(writes)):
        backend = Scripted()
        await given(backend.inner, operation)  # type: ignore[arg-type]

        async def lands_and_goes_dark(apply: Apply, backend: Scripted = backend) -> None:
            await apply()
            backend.next("get", *[fails(Died())] * 1)
            raise LOST

        for write, steps in at(number, writes, lands_and_goes_dark).items():
            backend.next(write, *steps)
        with pytest.raises((Died, OutcomeUnknown)):
            await operation(group_on(backend))
        await operation(group_on(backend))
        assert await positions_on(backend.inner) == after


@virtual
async def test_a_claim_whose_answer_was_lost_is_made_once() -> None:
    backend = Scripted()
    group = group_on(backend)
    await group.begin("consumers", BEGINS)
    backend.next("put_if_unchanged", lands_then(LOST))
    record = await claimed(group, "a", 0)
    assert record.epoch == 1
    assert await group_on(backend.inner).read() == record


@virtual
async def test_a_claim_that_was_found_later_has_what_its_write_had() -> None:
    backend = Scripted()
    group = group_on(backend)
    await group.begin("consumers", BEGINS)
    given = (await claimed(group, "a", 0)).claim_of(0)
    await claimed(group, "b", 1)
    assert (await group_on(backend.inner).read()).claim_of(0) == given


@virtual
async def test_after_a_reset_no_claim_is_left() -> None:
    group = group_on()
    await group.begin("consumers", BEGINS)
    epoch = (await claimed(group, "a", 0)).claim_of(0)
    assert epoch is not None
    record: GroupRecord = await group.reset({0: 3})
    assert record.claim_of(0) is None
    with pytest.raises(HeadwaterError, match="was reset"):
        await group.check({0: epoch})
