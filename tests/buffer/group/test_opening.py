"""Opening a member of a group: the constructor only checks its arguments, `open` joins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.buffer.group.admin import list_groups
from headwater.buffer.group.blocking import BlockingGroupConsumer
from headwater.buffer.group.consumer import GroupConsumer
from headwater.core.errors import BadUrl, NotFound, Refused
from headwater.store import MemoryBackend, Store
from tests.buffer.group.members import member, poll, stream_with
from tests.store.scripted import virtual

KINDS = pytest.mark.parametrize("kind", [GroupConsumer, BlockingGroupConsumer])


@KINDS
@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        ((None, "orders"), {}, "a store is needed here"),
        ((Store(MemoryBackend()),), {}, "give the name of the stream"),
        (("memory://", "orders", 5), {}, "5 is not a valid group name"),
        (("memory://", "orders"), {"max_poll_interval_s": "soon"}, "max_poll_interval_s"),
    ],
)
def test_the_constructor_refuses_wrong_arguments(
    kind: Any, arguments: tuple[Any, ...], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        kind(*arguments, **options)
    with pytest.raises(BadUrl):
        kind("orders", "orders")


@virtual
async def test_a_consumer_that_is_not_open_says_how_to_open_it_and_has_not_joined() -> None:
    stream = await stream_with(1)
    consumer = GroupConsumer(stream, group="billing", collect=False)
    assert (consumer.is_open, repr(consumer)) == (False, "<consumer of group 'billing', not open>")
    for call in (consumer.poll, consumer.flush, lambda: consumer.seek(0, 1), consumer.lag):
        with pytest.raises(Refused, match="this consumer is not open: use it in a `with` block"):
            await call()
    for name in ("stream", "assignment", "member"):
        with pytest.raises(Refused, match="not open"):
            getattr(consumer, name)
    await consumer.close()
    assert await list_groups(stream) == []
    async with consumer as opened:
        assert opened is consumer
        assert consumer.is_open
        assert (await poll(consumer)).first_lsn == 1
    assert not consumer.is_open


def test_a_blocking_consumer_that_is_not_open_says_how_to_open_it() -> None:
    consumer = BlockingGroupConsumer("memory://", "orders")
    for call in (consumer.poll, consumer.flush, consumer.pause, consumer.lag):
        with pytest.raises(Refused, match="this consumer is not open: use it in a `with` block"):
            call()
    consumer.close()
    with pytest.raises(NotFound):
        consumer.open()


@virtual
async def test_opening_again_joins_once_and_not_after_closing() -> None:
    stream = await stream_with(1, 1)
    consumer = await member(stream)
    joined = consumer.member
    await asyncio.gather(consumer.open(), consumer.open())
    assert consumer.member == joined
    assert (await list_groups(stream))[0].readers == (joined,)
    await consumer.close()
    with pytest.raises(Refused, match="this consumer of 'orders' is closed: open another"):
        await consumer.open()
