"""A producer on fake queues, and the values that were appended to one."""

from __future__ import annotations

from headwater.buffer.producer import Handle, Producer
from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from tests.buffer.producer.fakes import FakeStream

DOWN = Unavailable("500 InternalError")
LOST = OutcomeUnknown("connection reset")


async def one_by_one(producer: Producer, *values: bytes) -> list[Handle]:
    """Each value in a batch of its own."""
    handles = []
    for value in values:
        handles.append(await producer.produce([value]))
        await runtime.sleep(0.001)
    return handles


async def opened(stream: FakeStream, **settings: object) -> Producer:
    return await Producer(stream, **{"linger_ms": 0, **settings}).open()  # type: ignore[arg-type]
