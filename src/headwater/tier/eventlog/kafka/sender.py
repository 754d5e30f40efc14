"""Sending events: one idempotent producer, whose answers are waited for on a thread.

The thread is there only while answers are outstanding, and sleeps in the client until one comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.tier.eventlog.kafka.faults import Trouble, error_of, fault, publish_fault
from headwater.tier.eventlog.kafka.records import epoch_headers

POLL_S: Final = 0.05

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class KafkaSender:
    """A producer, and another one when that is at its end. For one event loop."""

    def __init__(
        self, topic: str, settings: Callable[[Callable[[KafkaError], None]], dict[str, Any]]
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._trouble = Trouble()
        self._client: _Client | None = None
        self._closing: list[asyncio.Task[None]] = []
        """Those that were at their end."""

    async def publish(self, partition: int, payload: bytes, publisher_epoch: int | None) -> int:
        """Send an event; the offset that the broker gave it."""
        headers: Headers = [*epoch_headers(publisher_epoch)]
        what = f"an event for metadata partition {partition} of {self._topic}"
        heard = self._trouble.count
        try:
            landed = self._living_client().send(self._topic, partition, payload, headers)
        except BufferError as error:
            raise Unavailable(f"{what}: too many others are under way; try again later") from error
        except KafkaException as error:
            raise fault(what, error_of(error)) from error
        try:
            offset = await landed
        except KafkaException as error:
            is_first = self._trouble.count == heard
            raise publish_fault(what, error_of(error), self._trouble, is_first=is_first) from error
        if offset is None or offset < 0:
            raise OutcomeUnknown(
                f"{what}: it landed, as an earlier attempt to send it, and the broker no longer "
                "knows at which offset: follow the partition to its end to know"
            )
        return offset

    async def close(self) -> None:
        """Wait for nothing more: of what is under way nobody can say whether it landed."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
        await asyncio.gather(*self._closing)

    def _living_client(self) -> _Client:
        if self._client is not None and self._client.is_dead:
            closing = runtime.spawn(self._client.close(), name="kafka producer closing")
            self._closing.append(closing)
            closing.add_done_callback(self._closing.remove)
            self._client = None
        if self._client is None:
            self._client = _Client(Producer(self._settings(self._trouble.note)))
        return self._client


class _Client:
    """A producer, and who waits for its answers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: dict[asyncio.Future[int | None], None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False
        self.is_dead = False

    def send(
        self, topic: str, partition: int, payload: bytes, headers: Headers
    ) -> asyncio.Future[int | None]:
        """Hand an event to the client; its offset once the broker has answered."""
        loop = asyncio.get_running_loop()
        landed: asyncio.Future[int | None] = loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(self._settle, landed, error, message.offset())

        self._producer.produce(
            topic, payload, partition=partition, headers=headers, on_delivery=delivered
        )
        self._waiting[landed] = None
        if self._serving is None:
            self._serving = runtime.spawn(self._serve(), name="kafka delivery reports")
        return landed

    async def close(self) -> None:
        """Give up what is under way, and let go of the client."""
        self._producer.purge()
        if self._serving is not None:
            await asyncio.wait([self._serving])
        await runtime.run_blocking(self._producer.close)

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await runtime.run_blocking(self._take_answers)
        except asyncio.CancelledError:
            # The event loop ends: a thread that went on would hold up the end of the process.
            self._stopped = True
            raise
        finally:
            self._serving = None

    def _take_answers(self) -> None:
        """On a thread: until everything that was sent is answered, which has a time limit."""
        while len(self._producer) and not self._stopped:
            try:
                self._producer.poll(POLL_S)
            except KafkaException:
                # It lost its place in its sequence, or its right to one: it sends nothing any
                # more. Each event is then told to whoever waits: not sent, or perhaps landed.
                self.is_dead = True
                self._producer.purge()

    def _settle(
        self, landed: asyncio.Future[int | None], error: KafkaError | None, offset: int | None
    ) -> None:
        self._waiting.pop(landed, None)
        if landed.done():
            return  # Whoever published has stopped waiting.
        if error is not None:
            landed.set_exception(KafkaException(error))
        else:
            landed.set_result(offset)
