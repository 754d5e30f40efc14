"""One member beats, looks, claims, drains and releases, and what that costs in requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from headwater.core import runtime
from headwater.core.errors import Denied, Refused, Unavailable
from headwater.store import MemoryBackend, Store, claims
from headwater.store.claimant import Claimant, ClaimTiming
from headwater.store.claims import ClaimState
from tests.store.claim_registers import TableRegister
from tests.store.scripted import Scripted, after, fails, virtual


class NoteTaker:
    """A `ClaimUser` that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[str]]] = []
        self.drain: Callable[[], Awaitable[None]] = self._at_once

    async def _at_once(self) -> None:
        return None

    def on_claimed(self, claimed: Mapping[str, int]) -> None:
        self.heard.append(("claimed", sorted(claimed)))

    async def on_release(self, names: frozenset[str]) -> None:
        self.heard.append(("drain", sorted(names)))
        await self.drain()
        self.heard.append(("drained", sorted(names)))

    def on_lost(self, names: frozenset[str]) -> None:
        self.heard.append(("lost", sorted(names)))


class One:
    """A member with a store of its own, over a backend that others share."""

    def __init__(self, backend: MemoryBackend | Scripted, names: str = "0123") -> None:
        self.store = Store(backend)
        self.user = NoteTaker()
        self.claimant = Claimant(TableRegister(self.store), self.user, names, host="here")

    @property
    def held(self) -> str:
        return "".join(sorted(self.claimant.claims))

    @property
    def requests(self) -> tuple[int, int]:
        """How many reads and conditional writes were answered."""
        counts = {name: one.requests for name, one in self.store.stats.operations.items()}
        writes = counts.get("put_if_absent", 0) + counts.get("put_if_unchanged", 0)
        return counts.get("get", 0), writes


@virtual
async def test_joining_alone_claims_everything_in_one_write() -> None:
    one = One(MemoryBackend())
    await one.claimant.start()
    assert (one.held, one.requests) == ("0123", (1, 1))
    assert one.user.heard == [("claimed", ["0", "1", "2", "3"])]
    assert one.claimant.is_current
    await one.claimant.leave()


@virtual
async def test_a_second_member_gets_half_after_the_first_has_drained() -> None:
    backend = MemoryBackend()
    one, two = One(backend), One(backend)
    await one.claimant.start()
    await two.claimant.start()
    assert two.held == ""
    await runtime.sleep(8.0)
    assert (one.held, two.held) == ("01", "23")
    assert one.user.heard[1:] == [
        ("drain", ["2", "3"]),
        ("drained", ["2", "3"]),
        ("lost", ["2", "3"]),
    ]
    assert two.claimant.claims["2"] > one.claimant.claims["0"]


@virtual
async def test_a_name_is_not_released_while_it_drains() -> None:
    backend = MemoryBackend()
    one, two = One(backend), One(backend)
    ends = asyncio.Event()
    one.user.drain = lambda: _wait(ends)
    await one.claimant.start()
    await two.claimant.start()
    await runtime.sleep(15.0)
    assert (one.held, two.held) == ("0123", "")
    ends.set()
    await runtime.sleep(3.0)
    assert (one.held, two.held) == ("01", "23")


@virtual
async def test_a_drain_that_does_not_end_is_cut_off_after_two_thirds_of_the_timeout() -> None:
    backend = MemoryBackend()
    one, two = One(backend), One(backend)
    one.user.drain = lambda: _wait(asyncio.Event())
    await one.claimant.start()
    await two.claimant.start()
    await runtime.sleep(39.0)
    assert (one.held, two.held) == ("0123", "")
    await runtime.sleep(12.0)
    assert (one.held, two.held) == ("01", "23")


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


@virtual
async def test_leaving_drains_and_frees_everything_at_once() -> None:
    backend = MemoryBackend()
    one, two = One(backend), One(backend)
    await one.claimant.start()
    await two.claimant.start()
    await runtime.sleep(8.0)
    await one.claimant.leave()
    assert one.user.heard[-1] == ("lost", ["0", "1"])
    await runtime.sleep(6.0)
    assert two.held == "0123"
    await one.claimant.ensure_current()  # joins again
    await runtime.sleep(8.0)
    assert len(one.held) == len(two.held) == 2


@virtual
async def test_claims_of_a_member_that_stopped_are_free_after_its_timeout() -> None:
    backend = MemoryBackend()
    one, two = One(backend), One(backend)
    await one.claimant.start()
    await one.claimant.stop()
    await two.claimant.start()
    await runtime.sleep(59.0)
    assert two.held == ""
    await runtime.sleep(7.0)
    assert two.held == "0123"
    assert not one.claimant.is_current


@virtual
async def test_names_that_are_added_are_claimed() -> None:
    one = One(MemoryBackend(), names="0")
    await one.claimant.start()
    one.claimant.set_names("012")
    await runtime.sleep(1.0)
    assert one.held == "012"


@virtual
async def test_a_member_costs_a_read_every_5_s_and_a_write_every_20_s() -> None:
    one = One(MemoryBackend())
    await one.claimant.start()
    reads, writes = one.requests
    await runtime.sleep(3600.0)
    now = one.requests
    # A look every 5 s, and each heartbeat reads as well.
    assert 700 <= now[0] - reads <= 760
    assert 170 <= now[1] - writes <= 181


@virtual
async def test_within_its_lease_a_member_asks_nothing() -> None:
    one = One(MemoryBackend())
    await one.claimant.start()
    before = one.requests
    for _ in range(1000):
        await one.claimant.ensure_current()
    assert one.requests == before


@virtual
async def test_a_member_whose_lease_is_over_looks_first() -> None:
    backend = Scripted(MemoryBackend())
    one = One(backend)
    await one.claimant.start()
    for _ in range(30):
        backend.next("get", fails(Denied("403")))
    await runtime.sleep(30.0)
    assert one.held == ""
    assert one.user.heard[-1] == ("lost", ["0", "1", "2", "3"])
    assert isinstance(one.claimant.last_error, Denied)
    with pytest.raises(Denied):
        await one.claimant.ensure_current()


@virtual
async def test_a_member_outlives_a_store_that_fails_for_a_while() -> None:
    backend = Scripted(MemoryBackend())
    one = One(backend)
    await one.claimant.start()
    for _ in range(25):
        backend.next("get", fails(Unavailable("500")))
    await runtime.sleep(600.0)
    assert (one.held, one.claimant.last_error) == ("0123", None)
    assert one.claimant.is_current


def test_three_heartbeats_fit_the_timeout() -> None:
    with pytest.raises(Refused, match="three heartbeats"):
        ClaimTiming(timeout_s=50.0, heartbeat_s=20.0)


@virtual
async def test_a_request_that_took_longer_than_a_lease_is_repeated() -> None:
    backend = Scripted(MemoryBackend())
    one = One(backend)
    await one.claimant.start()
    one.claimant._looked = one.claimant._beat = None
    backend.next("put_if_unchanged", after(lambda: runtime.sleep(21.0)))
    await one.claimant.ensure_current()
    assert one.claimant.is_current
    await one.claimant.stop()


@virtual
async def test_a_member_that_left_for_good_joins_no_more() -> None:
    one = One(MemoryBackend())
    await one.claimant.start()
    await one.claimant.leave(for_good=True)
    with pytest.raises(Refused, match="left for good"):
        await one.claimant.ensure_current()
    assert (await TableRegister(one.store).read()).table.members == {}


@virtual
async def test_one_that_looks_while_its_member_leaves_joins_again_afterwards() -> None:
    one = One(MemoryBackend())
    ends = asyncio.Event()
    one.user.drain = lambda: _wait(ends)
    await one.claimant.start()
    leaving = runtime.spawn(one.claimant.leave(), name="leave")
    await runtime.sleep(1.0)
    looking = runtime.spawn(one.claimant.ensure_current(), name="look")
    await runtime.sleep(1.0)
    assert not looking.done()
    ends.set()
    await leaving
    await looking
    assert (one.held, one.claimant.is_current) == ("0123", True)
    await one.claimant.stop()


@virtual
async def test_a_member_that_was_evicted_joins_again_and_claims_under_a_new_epoch() -> None:
    backend = MemoryBackend()
    one = One(backend)
    await one.claimant.start()
    before = one.claimant.claims["0"]
    await TableRegister(Store(backend)).update(
        lambda now: ClaimState(now.epoch, claims.leave(now.table, one.claimant.member))
    )
    await runtime.sleep(6.0)
    assert one.user.heard[1:] == [("lost", ["0", "1", "2", "3"]), ("claimed", ["0", "1", "2", "3"])]
    assert one.claimant.claims["0"] > before
