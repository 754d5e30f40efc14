"""A failed flush is loud, and one that may pass is tried again."""

from __future__ import annotations

import asyncio

import pytest

from headwater.coordinator import (
    ApplyFailed,
    Durability,
    FlushFailed,
    FrozenDelta,
    WriteCoordinator,
)
from headwater.core import runtime
from headwater.core.errors import DiskFailed, Refused, Unavailable
from tests.coordinator.key_state import (
    Context,
    Coordinator,
    Gate,
    KeyDelta,
    KeyFlusher,
    Put,
    Rows,
    coordinator,
    quiet,
)
from tests.store.scripted import virtual

APPLIED, WRITTEN, DURABLE = Durability.APPLIED, Durability.WRITTEN, Durability.DURABLE


@virtual
async def test_every_waiting_call_fails_with_the_cause() -> None:
    flusher = KeyFlusher()
    flusher.errors = [DiskFailed("no more")]
    gate = flusher.gate = Gate()
    c = coordinator(flusher, "in", "held", queue_capacity=1)
    c.pause_handle("held").pause()
    c.start()
    subscriber, monitor = c.subscribe()
    subscriber.initialize()
    write = await c.handle("in").write(Put("a", 1))
    queued = await c.handle("held").write(Put("b", 2))
    flush = await c.handle("in").flush(durable=True)
    await gate.arrived.wait()
    await subscriber.recv()

    async def wait_for_room() -> None:
        await c.handle("held").write(Put("c", 3))

    told = [
        asyncio.ensure_future(one)
        for one in (
            write.wait(WRITTEN),
            write.wait(DURABLE),
            flush.wait(DURABLE),
            queued.write_epoch(),
            queued.wait(WRITTEN),
            wait_for_room(),
            subscriber.recv(),
            monitor.wait(1),
        )
    ]
    await runtime.sleep(0.1)
    assert not any(one.done() for one in told)
    gate.opened.set()
    errors = await asyncio.gather(*told, return_exceptions=True)
    assert {type(error) for error in errors} == {FlushFailed}
    causes = [error.__cause__ for error in errors if isinstance(error, FlushFailed)]
    assert {type(cause) for cause in causes} == {DiskFailed}
    with pytest.raises(FlushFailed, match="no more"):
        await c.stop()


@virtual
async def test_every_later_call_fails_too() -> None:
    flusher = KeyFlusher()
    flusher.errors = [DiskFailed("no more")]
    c = coordinator(flusher)
    handle = c.handle("default")
    c.start()
    write = handle.try_write(Put("a", 1))
    with pytest.raises(FlushFailed, match="no more"):
        await (await handle.flush()).wait(WRITTEN)
    assert await write.wait(APPLIED) == 1
    subscriber, monitor = c.subscribe()
    for later in (
        lambda: write.wait(WRITTEN),
        lambda: handle.write(Put("b", 2)),
        lambda: handle.write_timeout(Put("b", 2), 1.0),
        handle.flush,
        subscriber.recv,
        lambda: monitor.wait(1),
        c.stop,
        c.stop,
    ):
        with pytest.raises(FlushFailed, match="no more"):
            await later()
    with pytest.raises(FlushFailed):
        handle.try_write(Put("b", 2))
    with pytest.raises(FlushFailed):
        c.start()
    assert c.view().frozen[0].view == {"a": (0, 1)}


@virtual
async def test_a_failed_flush_of_the_storage_is_as_loud() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher)
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    await (await c.handle("default").flush()).wait(WRITTEN)
    flusher.errors = [DiskFailed("no more")]
    flush = await c.handle("default").flush(durable=True)
    with pytest.raises(FlushFailed):
        await flush.wait(DURABLE)
    with pytest.raises(FlushFailed):
        await write.wait(DURABLE)
    assert await write.wait(WRITTEN) == 1  # what was written before stays written
    with pytest.raises(FlushFailed):
        await c.stop()


@virtual
async def test_a_delta_that_cannot_be_frozen_ends_the_coordinator() -> None:
    class Icy(KeyDelta):
        def freeze(self) -> FrozenDelta[Rows, Rows, Context]:
            raise Refused("too hot")

    flusher = KeyFlusher()
    c: Coordinator = WriteCoordinator(quiet(), ["in"], Context(), flusher.kept, flusher, delta=Icy)
    c.start()
    c.handle("in").try_write(Put("a", 1))
    with pytest.raises(FlushFailed, match="too hot"):
        await (await c.handle("in").flush()).wait(WRITTEN)
    with pytest.raises(FlushFailed, match="too hot"):
        await c.stop()


@virtual
async def test_stop_reports_what_failed_while_draining() -> None:
    flusher = KeyFlusher()
    flusher.errors = [DiskFailed("no more")]
    c = coordinator(flusher)
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    with pytest.raises(FlushFailed, match="no more"):
        await c.stop()
    with pytest.raises(FlushFailed):
        await write.wait(WRITTEN)


@virtual
async def test_what_may_pass_is_tried_again_with_the_same_delta() -> None:
    flusher = KeyFlusher()
    flusher.errors = [Unavailable("later") for _ in range(5)]
    async with coordinator(flusher) as c:
        write = c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush(durable=True)
        assert await write.wait(DURABLE) == 1
        assert [one.write_epochs for one in flusher.flushed] == [range(1, 2)]
        assert c.metrics.flush_retries == 5


@virtual
async def test_while_a_flush_is_tried_again_memory_is_bounded_and_writers_wait() -> None:
    flusher = KeyFlusher()
    flusher.errors = [Unavailable("later") for _ in range(200)]
    c = coordinator(flusher, queue_capacity=8, flush_size_bytes=20, max_frozen=2)
    c.start()
    handle = c.handle("default")
    accepted = 0

    async def write() -> None:
        nonlocal accepted
        for number in range(100):
            await handle.write(Put(f"k{number}", number))
            accepted += 1

    writing = asyncio.ensure_future(write())
    await runtime.sleep(30)
    # Two frozen deltas and the current one of two writes each, and a full channel.
    assert accepted == 2 * 3 + 8
    assert c.metrics.frozen == 2
    assert c.metrics.backpressure["frozen"] == 1
    flusher.errors.clear()
    await writing
    await c.stop()
    assert len(flusher.kept) == 100


@virtual
async def test_a_stop_does_not_retry_without_end() -> None:
    flusher = KeyFlusher()
    flusher.errors = [Unavailable("later") for _ in range(100_000)]
    c = coordinator(flusher, stop_grace_s=5.0)
    c.start()
    c.handle("default").try_write(Put("a", 1))
    started_s = runtime.monotonic_s()
    with pytest.raises(FlushFailed, match="later"):
        await c.stop()
    assert 5.0 <= runtime.monotonic_s() - started_s < 60.0


@virtual
async def test_durable_can_be_reported_and_never_passes_written() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        writes = [handle.try_write(Put(key, 1)) for key in "abc"]
        await (await handle.flush()).wait(WRITTEN)
        c.durable_through(2)
        await writes[1].wait(DURABLE)
        assert c.metrics.watermarks.durable == 2
        late = handle.try_write(Put("d", 1))
        await late.wait(APPLIED)
        c.durable_through(4)  # a quorum was quicker than the flush
        assert c.metrics.watermarks.durable == 3
        await (await handle.flush()).wait(WRITTEN)
        await late.wait(DURABLE)
        assert flusher.storage_flushes == 0
        c.durable_through(1)
        assert c.metrics.watermarks.durable == 4


@virtual
async def test_a_write_cannot_be_reported_durable_before_it_is_made() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        c.durable_through(5_000)  # of another run, with other write epochs
        write = c.handle("default").try_write(Put("a", 1))
        await (await c.handle("default").flush()).wait(WRITTEN)
        assert c.metrics.watermarks.durable == 0
        await c.handle("default").flush(durable=True)
        await write.wait(DURABLE)
        assert flusher.storage_flushes == 1


@virtual
async def test_a_stop_in_an_outage_ends_though_the_writer_waits_for_room() -> None:
    flusher = KeyFlusher()
    flusher.errors = [Unavailable("later") for _ in range(100_000)]
    c = coordinator(flusher, max_frozen=1, flush_size_bytes=10, stop_grace_s=1.0)
    c.start()
    for key in "abc":
        c.handle("default").try_write(Put(key, 1))
    await runtime.sleep(0.5)
    started_s = runtime.monotonic_s()
    with pytest.raises(FlushFailed, match="later"):
        await c.stop()
    assert runtime.monotonic_s() - started_s < 30.0


@virtual
async def test_a_flush_that_was_cancelled_is_no_stop() -> None:
    class Cancelled(KeyFlusher):
        async def flush_delta(self, frozen: Rows, write_epochs: range) -> Rows:
            raise asyncio.CancelledError

    c = coordinator(Cancelled())
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    await c.handle("default").flush()
    with pytest.raises(FlushFailed, match="cancelled"):
        await write.wait(WRITTEN)
    with pytest.raises(FlushFailed, match="cancelled"):
        await c.stop()


@virtual
async def test_no_flush_goes_on_after_the_writer_failed() -> None:
    class Melting(KeyDelta):
        def freeze(self) -> FrozenDelta[Rows, Rows, Context]:
            if "bad" in self._rows:
                raise Refused("too hot")
            return super().freeze()

    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c: Coordinator = WriteCoordinator(
        quiet(), ["in"], Context(), flusher.kept, flusher, delta=Melting
    )
    c.start()
    c.handle("in").try_write(Put("a", 1))
    await c.handle("in").flush()
    await gate.arrived.wait()
    c.handle("in").try_write(Put("bad", 1))
    await c.handle("in").flush()
    with pytest.raises(FlushFailed, match="too hot"):
        await c.stop()
    gate.opened.set()
    await runtime.sleep(1)
    assert flusher.flushed == []
    assert c.metrics.watermarks.written == 0


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("raised", [asyncio.CancelledError, GeneratorExit, Unspeakable])
@virtual
async def test_the_writer_gets_whatever_apply_raises(raised: type[BaseException]) -> None:
    class Odd(KeyDelta):
        def apply(self, write: Put) -> int:
            raise raised

    flusher = KeyFlusher()
    c: Coordinator = WriteCoordinator(quiet(), ["in"], Context(), flusher.kept, flusher, delta=Odd)
    c.start()
    write = c.handle("in").try_write(Put("a", 1))
    with pytest.raises(ApplyFailed, match=raised.__name__):
        await write.write_epoch()
    if raised is Unspeakable:
        await c.stop()
    else:
        with pytest.raises(FlushFailed):
            await c.stop()


@virtual
async def test_errors_that_are_raised_repeatedly_do_not_grow() -> None:
    async with coordinator(KeyFlusher(), context=Context(error="no")) as c:
        write = c.handle("default").try_write(Put("a", 1))
        lengths = []
        for _ in range(3):
            with pytest.raises(ApplyFailed) as raised:
                await write.write_epoch()
            lengths.append(len(raised.traceback))
        assert len(set(lengths)) == 1


@virtual
async def test_waiters_that_gave_up_are_not_kept() -> None:
    c = coordinator(KeyFlusher())
    c.pause_handle("default").pause()
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    for _ in range(50):
        for level in (APPLIED, DURABLE):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await write.wait(level)
    assert not write._waiting
    c.pause_handle("default").unpause()
    await write.wait(APPLIED)
    for _ in range(50):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await write.wait(DURABLE)
    assert sum(map(len, c._watermarks._waiting.values())) <= 2
    await c.stop()
