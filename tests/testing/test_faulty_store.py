"""Each fault does what it says, and only that."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import fields

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headwater.store import IF_ABSENT, MemoryBackend, PreconditionFailed
from headwater.store.backend import Unreachable
from headwater.testing import Faults, FaultyStore, simulate
from headwater.testing.store import BLIND_S, STALL_S


def given(**rates: float) -> tuple[MemoryBackend, FaultyStore]:
    inner = MemoryBackend()
    return inner, FaultyStore(inner, Faults(**rates), random.Random(1))


def run(test: Callable[[], Awaitable[None]]) -> float:
    """In virtual time; returns how much of it went by."""
    return simulate(lambda _: test(), stall_max_s=0).virtual_s


@pytest.mark.parametrize(
    ("fault", "error", "carried_out"),
    [
        ("fail_before", OutcomeUnknown, False),
        ("unreachable", Unreachable, False),
        ("throttle", Throttled, False),
        ("conflict_409", PreconditionFailed, False),
        ("lose_response", OutcomeUnknown, True),
        ("own_412", PreconditionFailed, True),
    ],
)
def test_a_create(fault: str, error: type[HeadwaterError], carried_out: bool) -> None:
    async def test() -> None:
        inner, faulty = given(**{fault: 1.0})
        with pytest.raises(error):
            await faulty.put("a", b"x", IF_ABSENT)
        found = [meta.key async for page in inner.list("", "") for meta in page]
        assert bool(found) is carried_out

    run(test)


def test_404_on_write_if_unchanged_changes_nothing() -> None:
    async def test() -> None:
        inner, faulty = given(missing_404=1.0)
        version = await inner.put("a", b"before")
        with pytest.raises(NotFound):
            await faulty.put("a", b"after", version)
        assert (await inner.get("a")).data == b"before"
        await faulty.put("b", b"created", IF_ABSENT)

    run(test)


def test_a_late_request_may_race_with_later_ones() -> None:
    async def test() -> None:
        inner, faulty = given(apply_late=1.0)
        await inner.put("a", b"x")
        with pytest.raises(OutcomeUnknown):
            await faulty.delete("a")
        assert (await inner.get("a")).data == b"x"
        await runtime.sleep(STALL_S)
        with pytest.raises(NotFound):
            await inner.get("a")

    run(test)


def test_a_short_body_has_the_size_of_the_whole() -> None:
    async def test() -> None:
        inner, faulty = given(short_body=1.0)
        await inner.put("a", b"12345")
        found = await faulty.get("a")
        assert len(found.data) < found.meta.size_bytes == 5

    run(test)


@pytest.mark.parametrize("fault", ["fail_before", "lose_response"])
def test_a_read_that_fails_says_that_it_may_be_repeated(fault: str) -> None:
    async def test() -> None:
        inner, faulty = given(**{fault: 1.0})
        await inner.put("a", b"x")
        for request in (faulty.get, faulty.head):
            with pytest.raises(Unavailable):
                await request("a")

    run(test)


@pytest.mark.parametrize("fault", ["stall", "stall_after"])
def test_a_paused_client_is_paused_for_long(fault: str) -> None:
    async def test() -> None:
        _, faulty = given(**{fault: 1.0})
        await faulty.put("a", b"x")

    assert run(test) > 3600


def test_a_slow_listing_shows_what_was() -> None:
    async def test() -> None:
        inner, faulty = given(slow_list=1.0)
        for number in range(7):
            await inner.put(f"k{number}", b"x")
        seen = []
        async for page in faulty.list("", ""):
            seen += [meta.key for meta in page]
            await inner.delete("k6")
        assert seen == [f"k{number}" for number in range(7)]

    run(test)


def test_calm_lets_everything_through() -> None:
    async def test() -> None:
        _, faulty = given(**{field.name: 1.0 for field in fields(Faults)})
        faulty.calm = True
        await faulty.put("a", b"x", IF_ABSENT)
        assert (await faulty.get("a")).data == b"x"

    run(test)


def test_the_swarm_reaches_every_fault_and_none() -> None:
    drawn = [Faults.swarm(random.Random(seed)) for seed in range(300)]
    assert Faults() in drawn
    for field in fields(Faults):
        rates = [getattr(faults, field.name) for faults in drawn]
        if field.name == "cut_off":
            assert set(rates) == {0.0}, "outages are asked for, and not drawn"
        else:
            assert min(rates) == 0.0 < max(rates)


def test_a_client_that_is_cut_off_reads_nothing_until_the_outage_is_over() -> None:
    async def test() -> None:
        _, faulty = given(lose_response=1.0, cut_off=1.0)
        with pytest.raises(OutcomeUnknown):
            await faulty.put("a", b"x", IF_ABSENT)
        with pytest.raises(Unavailable):
            await faulty.get("a")
        await runtime.sleep(max(BLIND_S))
        faulty.calm = True
        assert (await faulty.get("a")).data == b"x"

    run(test)
