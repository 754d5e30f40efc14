"""Writes: whose object is there, and what is said of one that did not work out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.core import limits
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.store import Object, PreconditionFailed, Store, Version
from headwater.store.backend import Unreachable
from tests.store.answers import DOWN, MINE, OTHERS, SLOW_DOWN, TOKEN, given
from tests.store.scripted import LOST, Step, fails, lands_then, lands_then_after, virtual

REFUSED = PreconditionFailed("412 PreconditionFailed", compared=True)
CONFLICT = PreconditionFailed("409 ConditionalRequestConflict")
UNREACHABLE = Unreachable("connection refused")


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
async def test_409_with_another_writers_object_is_a_conflict_with_it() -> None:
    backend, store = given()
    theirs = await backend.inner.put("a", OTHERS)
    backend.next("put_if_absent", fails(CONFLICT))
    with pytest.raises(AlreadyExists) as raised:
        await store.put_if_absent("a", MINE, token=TOKEN)
    assert isinstance(raised.value.current, Object)
    assert (raised.value.current.data, raised.value.current.version) == (OTHERS, theirs)


@virtual
async def test_endless_409_with_the_key_absent_is_an_unknown_outcome() -> None:
    # A refused create whose object is gone may have been created and deleted meanwhile.
    backend, store = given()
    backend.next("put_if_absent", *[fails(CONFLICT)] * limits.ATTEMPTS_MAX)
    with pytest.raises(OutcomeUnknown):
        await store.put_if_absent("a", MINE, token=TOKEN)
    assert backend.count("put_if_absent") == limits.ATTEMPTS_MAX


@virtual
async def test_the_same_bytes_without_a_token_may_be_another_writers() -> None:
    backend, store = given()
    await backend.inner.put("a", b"same")
    with pytest.raises(OutcomeUnknown, match="without a token"):
        await store.put_if_absent("a", b"same", token=None)


@virtual
async def test_other_bytes_without_a_token_are_anothers() -> None:
    backend, store = given()
    await backend.inner.put("a", OTHERS)
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("a", b"same", token=None)


@pytest.mark.parametrize("token", [b"", b"another"])
@virtual
async def test_a_token_must_be_part_of_the_bytes(token: bytes) -> None:
    backend, store = given()
    with pytest.raises(Refused, match="token"):
        await store.put_if_absent("a", MINE, token=token)
    with pytest.raises(Refused, match="token"):
        await store.put_if_unchanged("a", MINE, Version("x"), token=token)
    assert backend.calls == []


@virtual
async def test_a_write_of_arrow_memory_recognises_itself() -> None:
    backend, store = given()
    buffer = pa.py_buffer(TOKEN + bytes(range(256)))
    backend.next("put_if_absent", lands_then(LOST), fails(REFUSED))
    await store.put_if_absent("a", memoryview(buffer), token=TOKEN)
    assert bytes((await store.get("a")).data) == buffer.to_pybytes()


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
async def test_endless_refusals_of_an_unchanged_object_are_an_unknown_outcome() -> None:
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


async def _write(store: Store, operation: str) -> None:
    match operation:
        case "put":
            await store.put("a", MINE)
        case "put_if_absent":
            await store.put_if_absent("a", MINE, token=TOKEN)
        case _:
            await store.delete("a")


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


# Whether a conflict says that nothing landed


@pytest.mark.parametrize(
    ("before", "refusal", "nothing_landed"),
    [
        ([], REFUSED, True),
        ([fails(UNREACHABLE)], REFUSED, True),
        ([fails(UNREACHABLE), fails(UNREACHABLE)], REFUSED, True),
        ([fails(LOST)], REFUSED, False),
        ([fails(DOWN)], REFUSED, False),
        ([fails(SLOW_DOWN)], REFUSED, False),
        ([fails(LOST), fails(UNREACHABLE)], REFUSED, False),
        ([], CONFLICT, False),
        ([], NotFound("404 NoSuchKey"), False),
    ],
)
@pytest.mark.parametrize("creating", [False, True])
@virtual
async def test_nothing_landed_only_if_the_one_request_that_was_sent_was_refused(
    creating: bool, before: list[Step], refusal: Exception, nothing_landed: bool
) -> None:
    backend, store = given()
    await store.put("a", OTHERS)
    operation = "put_if_absent" if creating else "put_if_unchanged"
    backend.next(operation, *before, fails(refusal))
    writing = (
        store.put_if_absent("a", MINE, token=TOKEN)
        if creating
        else store.put_if_unchanged("a", MINE, Version("gone"), token=TOKEN)
    )
    with pytest.raises(Conflict) as raised:
        await writing
    assert raised.value.nothing_landed is nothing_landed
