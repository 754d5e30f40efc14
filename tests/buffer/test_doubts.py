"""A write whose answer was lost, and a store that is away when one looks: it stays unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.queue.contract import NewBatch
from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.manifest_object import ManifestObject, V1Names
from headwater.buffer.stream import create_stream
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
    staying_unknown,
)
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Object, Store, Version
from headwater.store.backend import Condition, Unreachable
from headwater.store.objects import Buffer, ByteRange
from tests.store.scripted import virtual


class Cut(MemoryBackend):
    """The network breaks right after a conditional write of such a key arrived."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.breaks_at: str | None = None
        self.is_away = False

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self.is_away:
            raise Unreachable("no route to host")
        version = await super().put(key, data, condition)
        if self.breaks_at is not None and self.breaks_at in key:
            self.is_away = True
            raise OutcomeUnknown("connection reset")
        return version

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if self.is_away:
            raise Unreachable("no route to host")
        return await super().get(key, byte_range)


def cut() -> tuple[Cut, Store]:
    backend = Cut()
    return backend, Store(backend, policy=RetryPolicy(attempts=2, deadline_s=10))


async def expect_unknown(call: Callable[[], Awaitable[object]]) -> None:
    """Also where the store lets the unknown outcome through, and a look above it fails."""
    with pytest.raises(OutcomeUnknown):
        await call()


@virtual
async def test_appending_again_while_the_store_is_away_leaves_the_first_try_in_doubt() -> None:
    backend, store = cut()
    stream = await create_stream(store, "s", partitions=1)
    appender = stream.appender(0, "p")
    await appender.open()
    batch = NewBatch("0" * 26, 1, 1, 1, 0, 0, inline=b"x")
    backend.breaks_at = "/chunks/"
    await expect_unknown(lambda: appender.append([batch]))
    await expect_unknown(lambda: appender.append([batch]))
    backend.breaks_at, backend.is_away = None, False
    assert [placed.sequence for placed in await appender.append([batch])] == [0]


@virtual
async def test_an_append_that_was_never_sent_is_called_so() -> None:
    backend, store = cut()
    stream = await create_stream(store, "s", partitions=1)
    appender = stream.appender(0, "p")
    await appender.open()
    backend.is_away = True
    with pytest.raises(Unavailable):
        await appender.append([NewBatch("0" * 26, 1, 1, 1, 0, 0, inline=b"x")])


@virtual
async def test_an_opening_that_may_be_noted_is_not_called_failed() -> None:
    backend, store = cut()
    stream = await create_stream(store, "s", partitions=1)
    await stream.appender(0, "p").open()
    backend.breaks_at = "/chunks/"
    await expect_unknown(stream.appender(0, "p").open)


@virtual
async def test_a_manifest_that_may_be_there_is_not_called_failed() -> None:
    backend, store = cut()
    backend.breaks_at = "manifest"
    await expect_unknown(ManifestObject(store, "s/0/ingest/manifest").find_or_create)


@virtual
async def test_a_segment_that_may_be_there_is_not_called_failed() -> None:
    backend, store = cut()
    backend.breaks_at = "acked"
    acked = AckedSegments(store, V1Names("s/0/ingest", "q"))
    await expect_unknown(lambda: acked._put("s/0/ingest/headwater/acked/x", b"token", b"token"))


@pytest.mark.parametrize("error", [Unavailable, Conflict, NotFound, Refused])
def test_what_fails_while_one_looks_leaves_the_outcome_unknown(error: type[HeadwaterError]) -> None:
    with (
        pytest.raises(OutcomeUnknown, match="reset; reading what became of it failed: x"),
        staying_unknown(OutcomeUnknown("reset")),
    ):
        raise error("x")
    with pytest.raises(error), staying_unknown(None):
        raise error("x")


@pytest.mark.parametrize("error", [Fenced, RolledBack, Bug])
def test_what_says_to_stop_stays(error: type[HeadwaterError]) -> None:
    with pytest.raises(error), staying_unknown(OutcomeUnknown("reset")):
        raise error("x")
