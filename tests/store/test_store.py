"""The store's promises, over a backend that answers whatever a store or a network may answer."""

from __future__ import annotations

import array
import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.core import limits, runtime
from headwater.core.backoff import RetryPolicy
from headwater.core.errors import (
    AlreadyExists,
    BadKey,
    Conflict,
    Denied,
    LimitExceeded,
    NoSpace,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.store import (
    ByteRange,
    MemoryBackend,
    Object,
    ObjectMeta,
    PreconditionFailed,
    Store,
    Version,
    open_store,
)
from headwater.store.backend import Unreachable
from headwater.store.objects import Buffer
from tests.store.scripted import (
    LOST,
    Apply,
    GivenParts,
    Scripted,
    after,
    fails,
    gives,
    lands_then,
    lands_then_after,
    stalls,
    virtual,
)

MINE, OTHERS = b"token-1 mine", b"token-2 others"
TOKEN = b"token-1"
REFUSED = PreconditionFailed("412 PreconditionFailed")
CONFLICT = PreconditionFailed("409 ConditionalRequestConflict")
DOWN = Unavailable("500 InternalError")
SLOW_DOWN = Throttled("503 SlowDown")
UNREACHABLE = Unreachable("connection refused")


def given(*, policy: RetryPolicy | None = None) -> tuple[Scripted, Store]:
    backend = Scripted()
    return backend, Store(backend, policy=policy)


# Creating


@virtual
async def test_a_lost_response_and_then_412_for_ones_own_write_is_success() -> None:
    backend, store = given()
    backend.next("put_if_absent", lands_then(LOST))
    version = await store.put_if_absent("a", MINE, token=TOKEN)
    assert (await store.get("a")).version == version
    assert backend.count("put_if_absent") == 2


@virtual
async def test_412_at_once_for_ones_own_write_is_success() -> None:
    backend, store = given()
    backend.next("put_if_absent", lands_then(REFUSED))
    version = await store.put_if_absent("a", MINE, token=TOKEN)
    assert (await store.get("a")).version == version
    assert backend.count("put_if_absent") == 1


@virtual
async def test_409_while_the_key_is_absent_is_tried_again_until_created() -> None:
    backend, store = given()
    backend.next("put_if_absent", *[fails(CONFLICT)] * 3)
    await store.put_if_absent("a", MINE, token=TOKEN)
    assert (await store.get("a")).data == MINE
    assert backend.count("put_if_absent") == 4


@virtual
async def test_409_with_anothers_object_there_tells_whose() -> None:
    backend, store = given()
    theirs = await backend.inner.put("a", OTHERS)
    backend.next("put_if_absent", fails(CONFLICT))
    with pytest.raises(AlreadyExists) as raised:
        await store.put_if_absent("a", MINE, token=TOKEN)
    assert isinstance(raised.value.current, Object)
    assert (raised.value.current.data, raised.value.current.version) == (OTHERS, theirs)


@virtual
async def test_409_for_ever_with_the_key_absent_ends_without_a_guess() -> None:
    # A refused create whose object is gone may have been created and deleted meanwhile.
    backend, store = given()
    backend.next("put_if_absent", *[fails(CONFLICT)] * limits.ATTEMPTS_MAX)
    with pytest.raises(OutcomeUnknown):
        await store.put_if_absent("a", MINE, token=TOKEN)
    assert backend.count("put_if_absent") == limits.ATTEMPTS_MAX


@virtual
async def test_the_same_bytes_without_a_token_may_be_anybodys() -> None:
    backend, store = given()
    await backend.inner.put("a", b"same")
    with pytest.raises(OutcomeUnknown, match="no token"):
        await store.put_if_absent("a", b"same", token=None)


@virtual
async def test_other_bytes_without_a_token_are_anothers() -> None:
    backend, store = given()
    await backend.inner.put("a", OTHERS)
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("a", b"same", token=None)


@pytest.mark.parametrize("token", [b"", b"another"])
@virtual
async def test_a_token_must_stand_in_the_bytes(token: bytes) -> None:
    backend, store = given()
    with pytest.raises(Refused, match="token"):
        await store.put_if_absent("a", MINE, token=token)
    with pytest.raises(Refused, match="token"):
        await store.put_if_unchanged("a", MINE, Version("x"), token=token)
    assert backend.calls == []


# Replacing


@virtual
async def test_a_lost_response_of_a_replacement_is_settled_by_looking() -> None:
    backend, store = given()
    before = await store.put("a", OTHERS)
    backend.next("put_if_unchanged", lands_then(LOST))
    version = await store.put_if_unchanged("a", MINE, before, token=TOKEN)
    found = await store.get("a")
    assert (found.data, found.version) == (MINE, version)


@virtual
async def test_404_while_the_object_is_unchanged_is_tried_again() -> None:
    backend, store = given()
    before = await store.put("a", OTHERS)
    backend.next("put_if_unchanged", fails(NotFound("404 NoSuchKey")), fails(CONFLICT))
    await store.put_if_unchanged("a", MINE, before, token=TOKEN)
    assert (await store.get("a")).data == MINE


@virtual
async def test_another_content_is_a_conflict_that_shows_it() -> None:
    _, store = given()
    before = await store.put("a", b"first")
    await store.put("a", OTHERS)
    with pytest.raises(Conflict) as raised:
        await store.put_if_unchanged("a", MINE, before, token=TOKEN)
    assert raised.value.current.data == OTHERS
    assert not isinstance(raised.value, AlreadyExists)


@virtual
async def test_a_vanished_object_is_a_conflict_with_nothing() -> None:
    _, store = given()
    before = await store.put("a", b"first")
    await store.delete("a")
    with pytest.raises(Conflict) as raised:
        await store.put_if_unchanged("a", MINE, before, token=TOKEN)
    assert raised.value.current is None


@virtual
async def test_refused_for_ever_though_unchanged_ends_without_a_guess() -> None:
    backend, store = given()
    before = await store.put("a", OTHERS)
    backend.next("put_if_unchanged", *[fails(CONFLICT)] * limits.ATTEMPTS_MAX)
    with pytest.raises(OutcomeUnknown):
        await store.put_if_unchanged("a", MINE, before, token=TOKEN)
    assert (await store.get("a")).data == OTHERS


# What a write that did not work out says


@pytest.mark.parametrize("error", [LOST, DOWN, SLOW_DOWN])
@virtual
async def test_a_write_that_may_have_landed_has_an_unknown_outcome(error: Exception) -> None:
    for write in ("put", "put_if_absent", "delete"):
        backend, store = given()
        backend.next(write, *[fails(error)] * limits.ATTEMPTS_MAX)
        with pytest.raises(OutcomeUnknown):
            await _write(store, write)
        assert backend.count(write) == limits.ATTEMPTS_MAX


@pytest.mark.parametrize("write", ["put", "put_if_absent", "delete"])
@virtual
async def test_a_write_that_was_never_sent_has_not_landed(write: str) -> None:
    backend, store = given()
    backend.next(write, *[fails(UNREACHABLE)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await _write(store, write)


@pytest.mark.parametrize("write", ["put", "put_if_absent", "delete"])
@virtual
async def test_one_attempt_that_was_sent_keeps_the_outcome_open(write: str) -> None:
    backend, store = given()
    rest = limits.ATTEMPTS_MAX - 1
    backend.next(write, lands_then(LOST), *[fails(UNREACHABLE)] * rest)
    with pytest.raises(OutcomeUnknown):
        await _write(store, write)


@pytest.mark.parametrize("write", ["put", "put_if_absent", "delete"])
@virtual
async def test_a_refusal_says_nothing_of_an_earlier_attempt(write: str) -> None:
    backend, store = given()
    backend.next(write, lands_then(LOST), fails(Denied("403 ExpiredToken")))
    with pytest.raises(OutcomeUnknown, match="ExpiredToken"):
        await _write(store, write)


@pytest.mark.parametrize("write", ["put", "put_if_absent", "delete"])
@virtual
async def test_a_refusal_is_not_tried_again(write: str) -> None:
    backend, store = given()
    backend.next(write, fails(NoSpace("507")))
    with pytest.raises(NoSpace):
        await _write(store, write)
    assert backend.count(write) == 1


@pytest.mark.parametrize("error", [DOWN, Denied("403: may write, may not read")])
@virtual
async def test_not_being_able_to_look_leaves_the_outcome_open(error: Exception) -> None:
    backend, store = given()
    backend.next("put_if_absent", lands_then(REFUSED))
    backend.next("get", *[fails(error)] * limits.ATTEMPTS_MAX**2)
    with pytest.raises(OutcomeUnknown):
        await store.put_if_absent("a", MINE, token=TOKEN)


# Reading


@pytest.mark.parametrize("error", [LOST, DOWN])
@virtual
async def test_a_read_that_keeps_failing_is_unavailable(error: Exception) -> None:
    backend, store = given()
    backend.next("get", *[fails(error)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await store.get("a")
    assert backend.count("get") == limits.ATTEMPTS_MAX


@virtual
async def test_a_short_body_is_read_again() -> None:
    backend, store = given()
    await store.put("a", b"whole")
    short = Object(await backend.inner.head("a"), b"who")
    backend.next("get", gives(short), gives(short))
    assert (await store.get("a")).data == b"whole"
    backend.next("get", gives(short))
    assert (await store.get("a", ByteRange(1, 99))).data == b"hole"
    assert backend.count("get") == 5


@virtual
async def test_a_range_past_the_end_is_cut_and_not_taken_for_short() -> None:
    backend, store = given()
    await store.put("a", b"whole")
    assert (await store.get("a", ByteRange(3, 99))).data == b"le"
    assert (await store.get("a", ByteRange(9, 99))).data == b""
    assert (await store.get("a", ByteRange(4, 2))).data == b""
    assert (await store.get("a", ByteRange(-2))).data == b"le"
    assert backend.count("get") == 4


@virtual
async def test_parts_of_two_contents_are_never_mixed() -> None:
    backend, store = given()
    await store.put("a", b"first")
    assert [o.data for o in await store.get_ranges("a", [ByteRange(0, 2), ByteRange(-1)])] == [
        b"fi",
        b"t",
    ]

    async def replaced() -> None:
        await backend.inner.put("a", b"other")

    backend.next("get", gives(await backend.inner.get("a")), after(replaced))
    with pytest.raises(Conflict, match="replaced"):
        await store.get_ranges("a", [ByteRange(0, 5), ByteRange(3, 5)])


@virtual
async def test_a_stream_is_of_one_content() -> None:
    backend, store = given()
    await store.put("a", b"0123456789")
    chunks = [bytes(chunk) async for chunk in store.get_stream("a", chunk_bytes=4)]
    assert chunks == [b"0123", b"4567", b"89"]
    await store.put("empty", b"")
    assert [chunk async for chunk in store.get_stream("empty")] == []
    stream = store.get_stream("a", chunk_bytes=4)
    assert await anext(stream) == b"0123"
    await backend.inner.put("a", b"abcdefghij")
    with pytest.raises(Conflict, match="replaced"):
        await anext(stream)


# Waiting


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


# Listing


def _metas(*keys: str) -> list[ObjectMeta]:
    return [ObjectMeta(key, 0, Version(key), 0) for key in keys]


async def _keys(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key async for meta in store.list(prefix, start_after=start_after)]


@virtual
async def test_a_listing_goes_on_where_it_broke_off_without_duplicates() -> None:
    backend, store = given()
    for key in "abcdef":
        await backend.inner.put(key, b"")
    backend.next(
        "list",
        gives([_metas("a", "b"), DOWN]),
        fails(LOST),
        gives([_metas("c", "d"), SLOW_DOWN]),
    )
    assert await _keys(store) == list("abcdef")
    assert [key for name, key in backend.calls if name == "list"] == ["", "b", "b", "d"]


@virtual
async def test_a_listing_that_moves_on_may_fail_often() -> None:
    backend, store = given(policy=RetryPolicy(attempts=2))
    backend.next("list", *[gives([_metas(key), DOWN]) for key in "abcdef"], gives([]))
    assert await _keys(store) == list("abcdef")


@virtual
async def test_a_listing_that_does_not_move_on_ends() -> None:
    backend, store = given()
    backend.next("list", *[fails(DOWN)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await _keys(store)
    assert backend.count("list") == limits.ATTEMPTS_MAX


@virtual
async def test_a_store_that_ignores_where_to_start_is_filtered() -> None:
    backend, store = given()
    backend.next("list", gives([_metas("a", "b"), _metas("c", "d")]))
    assert await _keys(store, start_after="b") == ["c", "d"]


@virtual
async def test_a_listing_out_of_order_is_refused() -> None:
    backend, store = given()
    backend.next("list", gives([_metas("a", "c", "b")]))
    with pytest.raises(NotSupported, match="order"):
        await _keys(store)


@virtual
async def test_a_page_that_takes_too_long_is_asked_for_again() -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=2.0))
    await backend.inner.put("a", b"")
    backend.next("list", stalls(3600))
    assert await _keys(store) == ["a"]
    assert backend.count("list") == 2


@virtual
async def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name() -> None:
    _, store = given()
    for key in ("a", "a-b", "a/b", "a/c/d", "ab/c"):
        await store.put(key, b"")
    assert await _keys(store, "a") == await _keys(store, "a/") == ["a/b", "a/c/d"]


# Limits


@virtual
async def test_keys_are_checked_before_anything_is_sent() -> None:
    backend, store = given()
    with pytest.raises(BadKey):
        await store.get("../a")
    with pytest.raises(BadKey):
        await store.head("a b")
    with pytest.raises(BadKey):
        await store.put("/a", b"")
    with pytest.raises(BadKey):
        await store.put_stream("/a", _chunks(b""))
    with pytest.raises(BadKey):
        await store.put_if_absent("a//b", MINE, token=TOKEN)
    with pytest.raises(BadKey):
        await store.put_if_unchanged("a//b", MINE, Version("x"), token=TOKEN)
    with pytest.raises(BadKey):
        await store.delete(".headwater/tmp")
    with pytest.raises(BadKey):
        await _keys(store, "..")
    assert backend.calls == []


async def _chunks(*chunks: Buffer) -> AsyncIterator[Buffer]:
    for chunk in chunks:
        yield chunk


def test_an_object_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_MAX_BYTES", 10)

    @virtual
    async def check() -> None:
        backend, store = given()
        await store.put("a", bytes(10))
        for write in (
            store.put("b", bytes(11)),
            store.put_if_absent("b", bytes(11), token=None),
            store.put_if_unchanged("b", bytes(11), Version("x"), token=None),
            store.put_stream("b", _chunks(bytes(6), bytes(5))),
        ):
            with pytest.raises(LimitExceeded, match="OBJECT_MAX_BYTES"):
                await write
        with pytest.raises(NotFound):
            await backend.inner.get("b")

    check()


def test_a_large_put_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MULTIPART_ABOVE_BYTES", 10)
    monkeypatch.setattr(limits, "MULTIPART_PART_BYTES", 4)

    @virtual
    async def check() -> None:
        backend, store = given()
        backend.next("put_stream", fails(DOWN))
        await store.put("a", b"0123456789a")
        await store.put("b", b"0123456789")
        assert (await store.get("a")).data == b"0123456789a"
        assert backend.count("put_stream") == 2
        assert backend.count("put") == 1
        backend.next("put_stream", lands_then(LOST), fails(Denied("403")))
        with pytest.raises(OutcomeUnknown):
            await store.put("c", bytes(11))

    check()


@virtual
async def test_parts_that_stand_apart_make_one_object() -> None:
    backend, store = given()
    backend.next("put", fails(DOWN))
    await store.put("a", GivenParts(b"one", b"", b"two"))
    assert (await store.get("a")).data == b"onetwo"
    assert store.stats.of("put").bytes_sent == 12


def test_parts_count_together_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_MAX_BYTES", 5)

    @virtual
    async def check() -> None:
        for store in (given()[1], Store(MemoryBackend())):
            with pytest.raises(LimitExceeded, match="OBJECT_MAX_BYTES"):
                await store.put("a", GivenParts(b"one", b"two"))
            with pytest.raises(NotFound):
                await store.get("a")

    check()


@virtual
async def test_a_stream_is_sent_once() -> None:
    backend, store = given()
    backend.next("put_stream", fails(DOWN))
    with pytest.raises(Unavailable):
        await store.put_stream("a", _chunks(b"a"))
    assert backend.count("put_stream") == 1


# Sending a store elsewhere


def test_a_pickled_store_opens_again_by_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", policy=RetryPolicy(attempts=3))
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again._policy == RetryPolicy(attempts=3)
    asyncio.run(store.put("a", b"one"))
    assert asyncio.run(again.get("a")).data == b"one"


def test_a_memory_store_does_not_travel() -> None:
    for store in (open_store("memory://"), open_store("memory://x"), Store(MemoryBackend())):
        with pytest.raises(TypeError, match="this process"):
            pickle.dumps(store)


def test_a_store_shows_its_address() -> None:
    assert repr(open_store("memory://shown")) == "Store('memory://shown')"


@virtual
async def test_a_store_is_closed_with_its_backend() -> None:
    closed: list[bool] = []

    class Closing(MemoryBackend):
        async def close(self) -> None:
            closed.append(True)

    async with Store(Closing()) as store:
        await store.put("a", b"")
    assert closed == [True]


@virtual
async def test_a_landed_write_that_others_deleted_is_not_reported_as_theirs() -> None:
    backend, store = given()

    async def deleted() -> None:
        await backend.inner.delete("a")

    backend.next(
        "put_if_absent",
        lands_then_after(deleted, REFUSED),
        *[fails(UNREACHABLE)] * limits.ATTEMPTS_MAX,
    )
    with pytest.raises(OutcomeUnknown):
        await store.put_if_absent("a", MINE, token=TOKEN)


async def _write(store: Store, operation: str) -> None:
    match operation:
        case "put":
            await store.put("a", MINE)
        case "put_if_absent":
            await store.put_if_absent("a", MINE, token=TOKEN)
        case _:
            await store.delete("a")


# What a caller may hand in


@virtual
async def test_a_write_of_arrow_memory_recognises_itself() -> None:
    backend, store = given()
    buffer = pa.py_buffer(TOKEN + bytes(range(256)))
    backend.next("put_if_absent", lands_then(LOST), fails(REFUSED))
    await store.put_if_absent("a", memoryview(buffer), token=TOKEN)
    assert bytes((await store.get("a")).data) == buffer.to_pybytes()


@virtual
async def test_memory_of_wider_items_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = given()
    monkeypatch.setattr(limits, "OBJECT_MAX_BYTES", 11)
    numbers = memoryview(array.array("i", [1, 2, 3]))
    with pytest.raises(LimitExceeded, match="12 bytes"):
        await store.put("a", numbers)
    monkeypatch.undo()
    await store.put("a", numbers)
    assert (await store.head("a")).size_bytes == 12
    assert store.stats.of("put").bytes_sent == 12


@virtual
async def test_a_chunk_has_at_least_one_byte() -> None:
    _, store = given()
    await store.put("a", b"x")
    with pytest.raises(Refused, match="chunk_bytes"):
        [part async for part in store.get_stream("a", chunk_bytes=0)]


@pytest.mark.parametrize("operation", ["put", "delete"])
@virtual
async def test_409_where_no_condition_was_made_is_tried_again(operation: str) -> None:
    backend, store = given()
    backend.next(operation, fails(CONFLICT), fails(CONFLICT))
    if operation == "put":
        await store.put("a", MINE)
        assert (await store.get("a")).data == MINE
    else:
        await store.delete("a")


@virtual
async def test_a_large_object_gets_the_time_it_needs_once_that_is_known() -> None:
    backend, store = given(policy=RetryPolicy(attempts=3, attempt_timeout_s=1, deadline_s=4))
    await backend.inner.put("a", b"x" * (10 * limits.MIB))

    async def slowly(apply: Apply) -> object:
        await runtime.sleep(8)
        return await apply()

    backend.next("get", slowly, slowly)
    assert len((await store.get("a")).data) == 10 * limits.MIB
