"""A client whose requests are watched, slowed down, or answered as a test tells them to be."""

from __future__ import annotations

from typing import Any

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.reader import LAST_POLLS
from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import Store
from headwater.store.backend import Backend
from tests.buffer.native.given import NOTHING_KEPT, Queue
from tests.store.scripted import Apply, Scripted, Step

# One attempt, for as long as it takes: what a request stands still for is up to the test.
PATIENT = RetryPolicy(attempts=1, attempt_timeout_s=1e7, deadline_s=1e7)
INSIST_TIMES = 8
WRITES = ["put_if_absent", "put_if_unchanged"]
"""How an append is written: into a chunk that it creates, or into one that is there."""


class Watched(Scripted):
    """A backend over another one, with steps for chosen keys."""

    def __init__(self, inner: Backend, *, latency_s: float = 0.0) -> None:
        super().__init__(inner)
        self.is_local = inner.is_local
        self.latency_s = latency_s
        self._once: list[tuple[str, str, Step]] = []

    def on(self, operation: str, part: str, step: Step) -> None:
        """What is done with the next such request whose key has this part."""
        self._once.append((operation, part, step))

    def forget(self) -> None:
        """From here on every request goes through."""
        self._once.clear()

    def requests(self) -> list[tuple[str, str]]:
        """Operation and the last two parts of the key of what arrived; forgets it."""
        found = [(name, "/".join(key.split("/")[-2:])) for name, key in self.calls]
        self.calls.clear()
        self.at_s.clear()
        return found

    def operations(self) -> list[str]:
        """The operations that arrived; forgets them."""
        return [name for name, _ in self.requests()]

    async def _do(self, operation: str, key: str, apply: Apply) -> Any:
        if self.latency_s:
            await runtime.sleep(self.latency_s)
        for place, (name, part, step) in enumerate(self._once):
            if name == operation and part in key:
                del self._once[place]
                self.calls.append((operation, key))
                self.at_s.append(runtime.monotonic_s())
                return await step(apply)
        return await super()._do(operation, key, apply)


def client(
    queue: Queue, *, latency_s: float = 0.0, policy: RetryPolicy | None = PATIENT
) -> tuple[Watched, Store]:
    """A client of its own on a queue's objects."""
    backend = Watched(queue.backend, latency_s=latency_s)
    return backend, Store(backend, policy=policy)


async def acknowledge_everything(queue: Queue) -> None:
    """As a consumer that was quick."""
    queue_consumer = await queue.taken()
    state = await queue.queue_reader().state()
    if state.pending:
        await queue_consumer.dequeue(state.next_sequence - 1)


async def acknowledge_through(queue: Queue, sequence: int) -> None:
    """As a consumer that came so far."""
    await (await queue.taken()).dequeue(sequence)


async def consume_and_collect(queue: Queue) -> None:
    """Everything is acknowledged and deleted; the floor stands behind it."""
    await acknowledge_everything(queue)
    await queue.collector().collect(NOTHING_KEPT, full=True)


async def polled(
    queue_consumer: NativeConsumer, sequence: int, *, times: int = LAST_POLLS
) -> list[Descriptor]:
    """Read on as often as it may take until a reader looks at what it need not look at always."""
    for _ in range(times):
        if found := await queue_consumer.after(sequence, 10):
            return found
    return []


async def insist(call: Any, *args: Any) -> Any:
    """Call again while the outcome is open, as a producer does."""
    for _ in range(INSIST_TIMES):
        try:
            return await call(*args)
        except (OutcomeUnknown, Unavailable):
            await runtime.sleep(1.0)
    raise AssertionError("the outcome never became known")
