"""Counters: requests, failures, retries, bytes, latencies, and what it would have cost."""

from __future__ import annotations

import pytest

from headwater.core import limits
from headwater.core.errors import OutcomeUnknown, Throttled, Unavailable
from headwater.store import PreconditionFailed, Store, StoreStats
from tests.store.scripted import Scripted, fails, stalls, virtual

DOWN, SLOW_DOWN = Unavailable("500"), Throttled("503")


@virtual
async def test_every_attempt_is_a_request_and_all_but_the_first_are_retries() -> None:
    backend = Scripted()
    store = Store(backend)
    backend.next("put", fails(DOWN), fails(SLOW_DOWN), fails(SLOW_DOWN))
    await store.put("a", b"12345")
    stats = store.stats.of("put")
    assert (stats.requests, stats.failures, stats.retries, stats.throttled) == (4, 3, 3, 2)
    assert stats.bytes_sent == 20
    assert stats.latency_s.count == 4


@virtual
async def test_giving_up_is_not_a_retry() -> None:
    backend = Scripted()
    store = Store(backend)
    backend.next("put", *[fails(DOWN)] * limits.ATTEMPTS_MAX)
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"")
    stats = store.stats.of("put")
    assert (stats.requests, stats.retries) == (limits.ATTEMPTS_MAX, limits.ATTEMPTS_MAX - 1)


@virtual
async def test_a_refused_condition_that_is_tried_again_counts_as_a_retry() -> None:
    backend = Scripted()
    store = Store(backend)
    backend.next("put_if_absent", fails(PreconditionFailed("409")))
    await store.put_if_absent("a", b"t", token=b"t")
    assert store.stats.of("put_if_absent").retries == 1
    assert store.stats.of("get").requests == 1, "looking is counted as what it is"


@virtual
async def test_bytes_and_time_are_counted() -> None:
    backend = Scripted()
    store = Store(backend)
    await store.put("a", b"12345")
    backend.next("get", stalls(2.0))
    await store.get("a")
    stats = store.stats.of("get")
    assert stats.bytes_received == 5
    assert stats.latency_s.sum == pytest.approx(2.0)


@virtual
async def test_a_listing_counts_its_pages() -> None:
    store = Store(Scripted())
    assert [meta async for meta in store.list()] == []
    assert store.stats.of("list").requests == 1, "an empty listing is one request"
    await store.put("a", b"")
    assert len([meta async for meta in store.list()]) == 1
    assert store.stats.of("list").requests == 2


def test_cost_follows_the_list_prices() -> None:
    stats = StoreStats("s3")
    for operation in ("put", "put_if_absent", "put_if_unchanged", "list"):
        stats.of(operation).requests += 1000
    assert stats.cost_usd == pytest.approx(4 * 0.005)
    for operation in ("get", "head"):
        stats.of(operation).requests += 1000
    assert stats.cost_usd == pytest.approx(4 * 0.005 + 2 * 0.0004)
    stats.of("delete").requests += 1000
    assert stats.cost_usd == pytest.approx(4 * 0.005 + 2 * 0.0004), "deletes are free"
    assert stats.requests == 7000


def test_local_requests_cost_nothing() -> None:
    for scheme in ("memory", "file"):
        stats = StoreStats(scheme)
        stats.of("put").requests = 1_000_000
        assert stats.cost_usd == 0.0
