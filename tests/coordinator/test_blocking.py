"""The coordinator from threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headwater.coordinator import (
    Backpressure,
    BlockingCoordinator,
    Durability,
    MessageLost,
    Shutdown,
    WriteTimeout,
)
from headwater.core import runtime
from headwater.core.errors import DiskFailed
from tests.coordinator.given import Context, KeyDelta, KeyFlusher, Put, Rows, quiet

Blocking = BlockingCoordinator[Put, int, Rows, Rows, Rows]


def blocking(flusher: KeyFlusher, *channels: str, **changed: Any) -> Blocking:
    return BlockingCoordinator(
        quiet(**changed), channels, Context(), flusher.kept, flusher, delta=KeyDelta
    )


def test_threads_write_flush_and_read() -> None:
    flusher = KeyFlusher()
    with blocking(flusher, "a", "b") as c:
        subscriber, monitor = c.subscribe()
        assert subscriber.initialize().snapshot == {}

        def write(name: str) -> None:
            for number in range(50):
                c.handle(name).write(Put(f"{name}{number}", number))

        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        epoch = c.handle("a").flush(durable=True).wait(Durability.DURABLE)
        assert epoch == 100
        assert len(c.view().snapshot) == 100
        assert len(subscriber.recv().frozen) == 1
        assert subscriber.recv().written == 100
        with pytest.raises(TimeoutError):
            subscriber.recv(timeout_s=0)
        subscriber.close()
        monitor.wait(100, timeout_s=60)
        assert c.metrics.writes_applied == 100


def test_every_call_has_its_blocking_twin() -> None:
    c = blocking(KeyFlusher(), "a")
    pause = c.pause_handle("a")
    pause.pause()
    assert pause.is_paused
    c.start()
    write = c.handle("a").try_write(Put("a", 1))
    with pytest.raises(TimeoutError):
        write.wait(Durability.APPLIED, timeout_s=0)
    pause.unpause()
    assert (write.epoch(), write.result()) == (1, 0)
    c.handle("a").write_timeout(Put("b", 2), 5.0).wait(Durability.APPLIED)
    c.durable_through(2)
    c.handle("a").flush()
    subscriber, _ = c.subscribe()
    subscriber.close()
    c.stop()
    with pytest.raises(Shutdown):
        c.handle("a").write(Put("c", 3))


def test_a_handle_reads_and_follows_as_the_coordinator_does() -> None:
    with blocking(KeyFlusher(), "a") as c:
        handle = c.handle("a")
        subscriber, monitor = handle.subscribe()
        epoch = handle.write(Put("a", 1)).epoch(timeout_s=60)
        handle.flush(timeout_s=60).wait(timeout_s=60)
        assert handle.view().snapshot == {"a": (0, 1)}
        assert subscriber.recv(timeout_s=60).frozen[0].epochs == range(1, 2)
        assert subscriber.recv(timeout_s=60).written == epoch
        with pytest.raises(TimeoutError):
            monitor.wait(epoch, timeout_s=0)  # handed out, and not come back for the next one
        with pytest.raises(TimeoutError):
            subscriber.recv(timeout_s=0)
        monitor.wait(epoch, timeout_s=0)


def test_a_call_that_is_given_no_time_still_finds_what_is_there() -> None:
    with blocking(KeyFlusher(), "a") as c:
        subscriber, _ = c.subscribe()
        for number in range(5):
            write = c.handle("a").write(Put(f"k{number}", 1))
            c.handle("a").flush(durable=True, timeout_s=0).wait(Durability.DURABLE)
            assert write.wait(Durability.DURABLE, timeout_s=0) == number + 1
            assert write.epoch(timeout_s=0) == number + 1
            assert write.result(timeout_s=0) == number
            assert len(subscriber.recv(timeout_s=0).frozen) == 1
            assert subscriber.recv(timeout_s=0).written == number + 1


def test_what_was_given_up_on_has_changed_nothing() -> None:
    flusher = KeyFlusher()
    c = blocking(flusher, "a", queue_capacity=1)
    c.pause_handle("a").pause()
    c.start()
    handle = c.handle("a")
    write = handle.try_write(Put("kept", 1))
    with pytest.raises(Backpressure) as full:
        handle.try_write(Put("full", 1))
    with pytest.raises(WriteTimeout) as late:
        handle.write_timeout(Put("late", 1), 0.0)
    assert (full.value.write, late.value.write) == (Put("full", 1), Put("late", 1))
    with pytest.raises(TimeoutError):
        handle.flush(timeout_s=0)
    for wait in (write.epoch, write.result, write.wait):
        with pytest.raises(TimeoutError):
            wait(timeout_s=0)
    c.pause_handle("a").unpause()
    assert write.epoch(timeout_s=60) == 1
    c.stop(timeout_s=60)
    assert flusher.kept == {"kept": (0, 1)}
    assert c.metrics.flushes == {"stop": 1}


def test_a_stop_that_was_given_up_on_goes_on() -> None:
    opened = threading.Event()

    class Slow(KeyFlusher):
        async def flush_delta(self, frozen: Rows, epochs: range) -> Rows:
            await runtime.run_blocking(opened.wait)
            return await super().flush_delta(frozen, epochs)

    flusher = Slow()
    c = blocking(flusher, "a")
    c.start()
    c.handle("a").write(Put("a", 1))
    with pytest.raises(TimeoutError):
        c.stop(timeout_s=0)
    opened.set()
    c.stop(timeout_s=60)
    assert flusher.kept.keys() == {"a"}


def test_a_subscriber_that_another_thread_drops_is_told_of() -> None:
    with blocking(KeyFlusher(), "a") as c:
        subscriber, monitor = c.subscribe()
        told: list[BaseException] = []

        def wait() -> None:
            try:
                monitor.wait(5, timeout_s=60)
            except MessageLost as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        del subscriber
        waiting.join()
        assert len(told) == 1


def test_an_error_of_the_body_is_not_hidden_by_one_of_the_stop() -> None:
    flusher = KeyFlusher()
    flusher.errors = [DiskFailed("no more")]

    def work() -> None:
        with blocking(flusher, "a") as c:
            c.handle("a").write(Put("a", 1)).epoch()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        work()
    assert "no more" in raised.value.__notes__[0]
