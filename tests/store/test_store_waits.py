"""How long the store waits, for an answer and between two attempts."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headwater.core import limits, runtime
from headwater.core.errors import Throttled, Unavailable
from headwater.core.retry import RetryPolicy
from tests.store.answers import DOWN, MINE, SLOW_DOWN, TOKEN, given
from tests.store.scripted import Apply, fails, stalls, virtual


@virtual
async def test_an_attempt_that_takes_too_long_is_abandoned_and_repeated() -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=2.0))
    backend.next("put_if_absent", stalls(3600))
    started_s = runtime.monotonic_s()
    await store.put_if_absent("a", MINE, token=TOKEN)
    assert 2.0 <= runtime.monotonic_s() - started_s < 3.0
    assert backend.count("put_if_absent") == 2


@virtual
async def test_a_deadline_ends_the_attempts() -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=7.0, deadline_s=20.0))
    backend.next("head", *[stalls(3600)] * limits.ATTEMPTS_MAX)
    started_s = runtime.monotonic_s()
    with pytest.raises(Unavailable):
        await store.head("a")
    assert runtime.monotonic_s() - started_s == pytest.approx(20.0)
    assert backend.count("head") == 3


@virtual
async def test_large_objects_get_more_time() -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=1.0, deadline_s=1.0))
    backend.next("put", stalls(2.5))
    await store.put("a", bytes(2 * limits.SLOWEST_BYTES_PER_S))
    assert backend.count("put") == 1


async def _waits(error: Exception, policy: RetryPolicy) -> list[float]:
    backend, store = given(policy=policy)
    backend.next("head", *[fails(error)] * policy.attempts)
    with pytest.raises(type(error)):
        await store.head("a")
    return [later - before for before, later in itertools.pairwise(backend.at_s)]


@virtual
async def test_waits_are_drawn_from_a_span_that_doubles_to_a_cap() -> None:
    policy = RetryPolicy(attempts=12, deadline_s=1e9, base_s=1.0, cap_s=16.0)
    waits = await _waits(DOWN, policy)
    assert len(waits) == len(set(waits)) == 11, "waits without chance meet again"
    for number, wait_s in enumerate(waits):
        assert 0 <= wait_s <= min(16.0, 2.0**number)
    assert max(waits) > 4.0


@virtual
async def test_waits_are_longer_when_throttled_and_never_short() -> None:
    policy = RetryPolicy(attempts=20, deadline_s=1e9, base_s=0.01, throttled_base_s=2.0, cap_s=4.0)
    waits = await _waits(SLOW_DOWN, policy)
    assert all(1.0 <= wait_s <= 4.0 for wait_s in waits)
    assert max(waits) > 2.0


@virtual
async def test_throttled_to_the_end_says_so() -> None:
    backend, store = given()
    backend.next("head", *[fails(SLOW_DOWN)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Throttled):
        await store.head("a")


@virtual
async def test_a_cancelled_call_ends_at_once_and_sends_nothing_more() -> None:
    backend, store = given()
    backend.next("put_if_absent", stalls(10))
    call = runtime.spawn(store.put_if_absent("a", MINE, token=TOKEN), name="call")
    await runtime.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert runtime.monotonic_s() == pytest.approx(1)
    await runtime.sleep(100)
    assert backend.count("put_if_absent") == 1


@virtual
async def test_a_large_object_gets_the_time_it_needs_once_that_is_known() -> None:
    backend, store = given(policy=RetryPolicy(attempts=3, attempt_timeout_s=1, deadline_s=4))
    await backend.inner.put("a", b"x" * (10 * limits.MIB))

    async def slowly(apply: Apply) -> object:
        await runtime.sleep(8)
        return await apply()

    backend.next("get", slowly, slowly)
    assert len((await store.get("a")).data) == 10 * limits.MIB


@virtual
async def test_a_store_that_does_not_answer_is_named_while_the_caller_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=20.0))
    backend.next("head", stalls(limits.SLOW_ANSWER_S + 1))
    await store.put("a", b"")
    await store.head("a")
    (record,) = caplog.records
    assert record.getMessage() == f"{store.url} has not answered a head for 5 s; waiting"


@virtual
async def test_a_slow_store_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    backend, store = given()
    await store.put("a", b"")
    for _ in range(5):
        backend.next("head", stalls(limits.SLOW_ANSWER_S + 1))
        await store.head("a")
    assert len(caplog.records) == 1
    await runtime.sleep(limits.SLOW_AGAIN_S)
    backend.next("head", stalls(limits.SLOW_ANSWER_S + 1))
    await store.head("a")
    assert len(caplog.records) == 2


@virtual
async def test_an_answer_in_time_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    backend, store = given()
    backend.next("put", stalls(limits.SLOW_ANSWER_S + 1))
    await store.put("large", bytes(2 * limits.SLOWEST_BYTES_PER_S))
    await runtime.sleep(limits.SLOW_AGAIN_S)
    assert caplog.records == []
