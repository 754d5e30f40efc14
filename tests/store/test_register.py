"""A register tells each caller whether its own change landed, and notices when it went back."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from headwater.core import limits
from headwater.core.backoff import RetryPolicy
from headwater.core.errors import (
    Contended,
    Corrupt,
    Denied,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.store import MemoryBackend, PreconditionFailed, Register, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.store.scripted import (
    LOST,
    Scripted,
    Step,
    after,
    fails,
    lands_then,
    lands_then_after,
    virtual,
)

KEY = "register"
DOWN = Unavailable("500 InternalError")
REFUSED = PreconditionFailed("412 PreconditionFailed")
ONCE = RetryPolicy(attempts=1)


def given(
    *, history: int = 4, policy: RetryPolicy | None = None
) -> tuple[Scripted, Writer, Writer]:
    """A register, with one handle over a scripted backend and one over the plain store below."""
    backend = Scripted(MemoryBackend(versions_by_content=True))
    mine = Writer(Store(backend, policy=policy), history)
    theirs = Writer(Store(backend.inner), history)
    return backend, mine, theirs


class Writer:
    """A handle on the list of names in the register."""

    def __init__(self, store: Store, history: int) -> None:
        self.handle: Register[list[str]] = Register(store, KEY, list[str], history=history)

    async def add(self, *names: str) -> int:
        revision = 0
        for name in names:
            revision = (await self.handle.update(lambda now, n=name: [*(now or []), n])).number  # type: ignore[misc]
        return revision

    async def names(self) -> list[str]:
        return (await self.handle.read()).value


def then(call: Callable[..., Awaitable[object]], *args: str) -> Callable[[], Awaitable[object]]:
    return lambda: call(*args)


@virtual
async def test_a_register_that_was_never_written_is_not_found() -> None:
    _, mine, _ = given()
    with pytest.raises(NotFound):
        await mine.handle.read()


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
async def test_landed_and_then_replaced_by_others_is_told_by_the_history(error: Exception) -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    others = then(theirs.add, "x", "y", "z")
    backend.next("put_if_unchanged", lands_then_after(others, error))
    assert await mine.add("b") == 2
    assert await theirs.names() == ["a", "b", "x", "y", "z"]


@virtual
async def test_landed_and_then_undone_by_others_is_told_by_the_history() -> None:
    backend, mine, theirs = given()
    await mine.add("a")

    async def emptied() -> None:
        await theirs.handle.update(lambda _: [])

    backend.next("put_if_unchanged", lands_then_after(emptied, LOST))
    assert await mine.add("b") == 2, "looking for the effect would have added it again"
    assert await theirs.names() == []


@virtual
async def test_created_and_then_replaced_by_others_is_told_by_the_history() -> None:
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
async def test_two_writers_of_the_same_value_are_told_apart() -> None:
    # On a store whose versions follow from the bytes, only the nonce separates these two.
    backend, mine, theirs = given()
    await mine.add("a")
    backend.next("put_if_unchanged", after(then(theirs.add, "same")))
    assert await mine.add("same") == 3
    assert await theirs.names() == ["a", "same", "same"]


# Going back


@virtual
async def test_a_register_that_vanishes_is_reported_and_stays_refused() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    await backend.inner.delete(KEY)
    for _ in range(2):
        with pytest.raises(RolledBack, match="gone"):
            await mine.handle.read()
        with pytest.raises(RolledBack, match="gone"):
            await mine.add("b")
    with pytest.raises(NotFound):
        await backend.inner.get(KEY)


@virtual
async def test_a_register_that_goes_back_is_reported_and_stays_refused() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = (await backend.inner.get(KEY)).data
    await mine.add("b")
    await backend.inner.put(KEY, old)
    for _ in range(2):
        with pytest.raises(RolledBack, match="went back from revision 2 to 1"):
            await mine.handle.read()
        with pytest.raises(RolledBack):
            await mine.add("c")


@virtual
async def test_a_register_that_goes_back_under_a_writer_is_reported() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = (await backend.inner.get(KEY)).data
    await mine.add("b")

    async def restored() -> None:
        await backend.inner.put(KEY, old)

    backend.next("put_if_unchanged", after(restored))
    with pytest.raises(RolledBack):
        await mine.add("c")


@virtual
async def test_another_register_of_the_same_name_is_reported() -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    await backend.inner.delete(KEY)
    await theirs.add("x", "y", "z")
    with pytest.raises(RolledBack, match="another register"):
        await mine.handle.read()


@virtual
async def test_an_answer_older_than_what_another_task_saw_meanwhile_is_no_rollback() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = await backend.inner.get(KEY)

    async def late(_: object) -> object:
        await mine.add("b")
        return old

    backend.next("get", late)
    assert (await mine.handle.read()).number == 1


# What is not a register


async def _stored(data: bytes) -> Register[list[str]]:
    store = Store(MemoryBackend())
    await store.put(KEY, data)
    return Register(store, KEY, list[str])


async def _written() -> bytes:
    store = Store(MemoryBackend())
    await Writer(store, 4).add("a")
    return bytes((await store.get(KEY)).data)


@virtual
async def test_every_flipped_bit_is_noticed() -> None:
    data = await _written()
    for place in range(len(data) - 1):  # the closing newline carries nothing
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises((Corrupt, NotSupported)):
            await (await _stored(bytes(flipped))).read()


@virtual
async def test_a_value_edited_by_hand_is_refused() -> None:
    data = (await _written()).replace(b'["a"]', b'["b"]')
    with pytest.raises(Corrupt, match="edited by hand"):
        await (await _stored(data)).read()


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"register":1', b"\xff\x00"])
@virtual
async def test_what_is_no_register_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="not a register"):
        await (await _stored(data)).read()
    with pytest.raises(Corrupt, match="not a register"):
        await (await _stored(data)).update(lambda _: ["a"])


@virtual
async def test_a_later_format_asks_for_an_upgrade() -> None:
    data = (await _written()).replace(b'"register":1', b'"register":2')
    with pytest.raises(NotSupported, match="Upgrade"):
        await (await _stored(data)).read()


@virtual
async def test_a_value_of_another_type_is_refused() -> None:
    store = Store(MemoryBackend())
    await Register(store, KEY, int).update(lambda _: 7)
    with pytest.raises(Corrupt, match="does not fit"):
        await Register(store, KEY, list[str]).read()


@virtual
async def test_the_bytes_are_as_documented() -> None:
    envelope = msgspec.json.decode(await _written())
    assert list(envelope) == ["register", "id", "revision", "token", "history", "crc32", "value"]
    assert (envelope["register"], envelope["revision"], envelope["value"]) == (1, 1, ["a"])
    assert envelope["id"] == envelope["token"]
    checked = dict(list(envelope.items())[:5])
    data = msgspec.json.encode(checked)[:-1] + b'["a"]'
    assert envelope["crc32"] == f"{zlib.crc32(data):08x}"


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
            simulation.stream("faults"),
            latency_s=0.001,
        )

        async def writer() -> None:
            register = Register(Store(network), KEY, int)
            for _ in range(100):
                await register.update(lambda value: (value or 0) + 1)

        await asyncio.gather(*(writer() for _ in range(4)))
        return (await Register(Store(network), KEY, int).read()).value

    assert simulate(main, seed=seed).value == 400


@virtual
async def test_only_what_is_damaged_is_written_over() -> None:
    store = Store(MemoryBackend())
    register = Register(store, "r", int)
    with pytest.raises(NotFound):
        await register.replace_damaged(1)
    await register.update(lambda _: 1)
    with pytest.raises(Refused, match="can be read"):
        await register.replace_damaged(2)
    await store.put("r", b"{")
    await Register(store, "r", int).replace_damaged(3)
    assert (await Register(store, "r", int).read()).value == 3
