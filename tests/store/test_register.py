"""A register tells each caller whether its own change landed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from headwater.core import limits
from headwater.core.errors import (
    Contended,
    Denied,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, PreconditionFailed, Register, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.store.registers import KEY, Writer, given
from tests.store.scripted import LOST, Step, after, fails, lands_then, lands_then_after, virtual

DOWN = Unavailable("500 InternalError")
REFUSED = PreconditionFailed("412 PreconditionFailed")
ONCE = RetryPolicy(attempts=1)


def then(call: Callable[..., Awaitable[object]], *args: str) -> Callable[[], Awaitable[object]]:
    return lambda: call(*args)


@virtual
async def test_a_register_that_was_never_written_is_not_found() -> None:
    _, mine, _ = given()
    with pytest.raises(NotFound):
        await mine.handle.read()
    assert await mine.handle.find() is None
    await mine.add("a")
    assert await mine.handle.find() == ["a"]


@virtual
async def test_two_handles_see_and_build_on_each_other() -> None:
    _, mine, theirs = given()
    assert [await mine.add("a"), await theirs.add("b"), await mine.add("c")] == [1, 2, 3]
    assert await theirs.names() == ["a", "b", "c"]
    assert (await mine.handle.read()).number == 3
    assert mine.handle.key == KEY


@virtual
async def test_a_lost_race_is_run_again_on_what_won_it() -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    backend.next("put_if_unchanged", after(then(theirs.add, "b")))
    assert await mine.add("c") == 3
    assert await theirs.names() == ["a", "b", "c"]


@virtual
async def test_a_lost_race_to_create_is_run_again() -> None:
    backend, mine, theirs = given()
    backend.next("put_if_absent", after(then(theirs.add, "b")))
    assert await mine.add("c") == 2
    assert await theirs.names() == ["b", "c"]


LOSSES = [lands_then(LOST), lands_then(REFUSED), lands_then(DOWN)]


@pytest.mark.parametrize("loss", LOSSES)
@virtual
async def test_a_change_whose_response_was_lost_is_made_once(loss: Step) -> None:
    backend, mine, theirs = given()
    backend.next("put_if_absent", loss)
    assert await mine.add("a") == 1
    backend.next("put_if_unchanged", loss)
    assert await mine.add("b") == 2
    assert await theirs.names() == ["a", "b"]


@pytest.mark.parametrize("error", [LOST, REFUSED])
@virtual
async def test_the_history_shows_a_change_that_landed_and_was_replaced(error: Exception) -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    others = then(theirs.add, "x", "y", "z")
    backend.next("put_if_unchanged", lands_then_after(others, error))
    assert await mine.add("b") == 2
    assert await theirs.names() == ["a", "b", "x", "y", "z"]


@virtual
async def test_the_history_shows_a_change_that_landed_and_was_undone() -> None:
    backend, mine, theirs = given()
    await mine.add("a")

    async def emptied() -> None:
        await theirs.handle.update(lambda _: [])

    backend.next("put_if_unchanged", lands_then_after(emptied, LOST))
    assert await mine.add("b") == 2, "looking for the effect would have added it again"
    assert await theirs.names() == []


@virtual
async def test_the_history_shows_a_creation_that_was_replaced() -> None:
    backend, mine, theirs = given()
    backend.next("put_if_absent", lands_then_after(then(theirs.add, "x", "y"), LOST))
    assert await mine.add("a") == 1
    assert await theirs.names() == ["a", "x", "y"]


@virtual
async def test_past_the_history_the_outcome_is_unknown() -> None:
    backend, mine, theirs = given(history=4)
    await mine.add("a")
    backend.next("put_if_unchanged", lands_then_after(then(theirs.add, *"vwxyz"), LOST))
    with pytest.raises(OutcomeUnknown, match="history of 4"):
        await mine.add("b")
    assert (await theirs.names()).count("b") == 1


@virtual
async def test_at_the_edge_of_the_history_it_is_still_known() -> None:
    backend, mine, theirs = given(history=4)
    await mine.add("a")
    backend.next("put_if_unchanged", lands_then_after(then(theirs.add, *"wxyz"), LOST))
    assert await mine.add("b") == 2


@virtual
async def test_what_never_landed_and_was_overtaken_is_made_after_all() -> None:
    backend, mine, theirs = given(policy=ONCE)
    await mine.add("a")

    async def overtaken(_: object) -> None:
        await theirs.add("x")
        raise LOST

    backend.next("put_if_unchanged", overtaken)
    assert await mine.add("b") == 3
    assert await theirs.names() == ["a", "x", "b"]


@virtual
async def test_what_may_still_land_has_an_unknown_outcome() -> None:
    backend, mine, _ = given(policy=ONCE)
    backend.next("put_if_absent", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await mine.add("a")
    await mine.add("a")
    backend.next("put_if_unchanged", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await mine.add("b")


@pytest.mark.parametrize("error", [DOWN, Denied("403")])
@virtual
async def test_not_being_able_to_look_keeps_the_outcome_open(error: Exception) -> None:
    backend, mine, _ = given(policy=ONCE)
    await mine.add("a")
    backend.next("put_if_unchanged", lands_then(LOST))
    backend.next("get", after(_nothing), fails(error))
    with pytest.raises(OutcomeUnknown):
        await mine.add("b")


async def _nothing() -> None:
    pass


@virtual
async def test_what_could_not_be_sent_has_not_landed() -> None:
    backend, mine, _ = given()
    backend.next("get", *[fails(DOWN)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await mine.add("a")
    assert backend.count("put_if_absent") == 0


@virtual
async def test_always_losing_the_race_ends_as_contended() -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    backend.next("put_if_unchanged", *[after(then(theirs.add, "x"))] * limits.REGISTER_ATTEMPTS)
    with pytest.raises(Contended):
        await mine.add("b")
    assert "b" not in await theirs.names()


@virtual
async def test_a_change_that_returns_its_argument_writes_nothing() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    writes = backend.count("put_if_unchanged")
    kept = await mine.handle.update(lambda now: now or [])
    assert (kept.value, kept.number) == (["a"], 1)
    assert backend.count("put_if_unchanged") == writes


@virtual
async def test_a_change_that_raises_writes_nothing() -> None:
    backend, mine, _ = given()
    await mine.add("a")

    def change(_: list[str] | None) -> list[str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await mine.handle.update(change)
    assert backend.count("put_if_unchanged") == 0


@virtual
async def test_concurrent_changes_each_land_exactly_once() -> None:
    backend = MemoryBackend(versions_by_content=True)
    writers = [Writer(Store(backend), 64) for _ in range(8)]
    added = [f"{writer}.{call}" for writer in range(8) for call in range(5)]

    async def work(number: int) -> list[int]:
        return [await writers[number].add(f"{number}.{call}") for call in range(5)]

    revisions = await asyncio.gather(*map(work, range(8)))
    names = await writers[0].names()
    assert sorted(names) == sorted(added)
    assert sorted(r for made in revisions for r in made) == list(range(1, 41))
    for number, made in enumerate(revisions):
        assert [names[r - 1] for r in made] == [f"{number}.{call}" for call in range(5)]


@virtual
async def test_two_writers_of_the_same_value_are_distinguished() -> None:
    # On a store whose versions follow from the bytes, only the nonce separates these two.
    backend, mine, theirs = given()
    await mine.add("a")
    backend.next("put_if_unchanged", after(then(theirs.add, "same")))
    assert await mine.add("same") == 3
    assert await theirs.names() == ["a", "same", "same"]


@virtual
async def test_a_register_has_a_largest_size_and_a_bounded_history() -> None:
    backend, mine, _ = given(history=4)
    await mine.add(*"abcdefgh")
    envelope = msgspec.json.decode((await backend.inner.get(KEY)).data)
    assert len(envelope["history"]) == 4
    with pytest.raises(LimitExceeded, match="REGISTER_MAX_BYTES"):
        await mine.add("x" * limits.REGISTER_MAX_BYTES)
    assert (await mine.handle.read()).number == 8


@virtual
async def test_a_value_changed_in_place_is_stored() -> None:
    store = Store(MemoryBackend())
    register = Register(store, KEY, dict[str, int])
    await register.update(lambda _: {"a": 1})

    def in_place(value: dict[str, int] | None) -> dict[str, int]:
        assert value is not None
        value["a"] = 2
        return value

    assert (await register.update(in_place)).number == 2
    assert (await register.read()).value == {"a": 2}


@virtual
async def test_an_equal_value_is_no_change_however_it_was_made() -> None:
    store = Store(MemoryBackend())
    register = Register(store, KEY, int)
    for value in (5, 5000):
        first = await register.update(lambda _, value=value: value)  # type: ignore[misc]
        again = await register.update(lambda _, value=value: value + 0)  # type: ignore[misc]
        assert again == first


@pytest.mark.parametrize(("kind", "value"), [(float, math.nan), (int, "x"), (dict, object())])
@virtual
async def test_a_value_that_could_not_be_read_again_is_refused(kind: Any, value: Any) -> None:
    register: Register[Any] = Register(Store(MemoryBackend()), KEY, kind)
    with pytest.raises(Refused, match="cannot be stored"):
        await register.update(lambda _: value)
    with pytest.raises(NotFound):
        await register.read()


@pytest.mark.parametrize("seed", range(3))
def test_plain_contention_leaves_no_outcome_unknown(seed: int) -> None:
    async def main(simulation: Simulation) -> int:
        network = FaultyStore(
            MemoryBackend(versions_by_content=True),
            Faults(),
            simulation.random_source("faults"),
            latency_s=0.001,
        )

        async def writer() -> None:
            register = Register(Store(network), KEY, int)
            for _ in range(100):
                await register.update(lambda value: (value or 0) + 1)

        await asyncio.gather(*(writer() for _ in range(4)))
        return (await Register(Store(network), KEY, int).read()).value

    assert simulate(main, seed=seed).value == 400
