"""The coordinator from threads."""

from __future__ import annotations

import threading

import pytest

from headwater.coordinator import BlockingCoordinator, Durability, MessageLost, Shutdown
from headwater.core.errors import DiskFailed
from tests.coordinator.given import Context, KeyDelta, KeyFlusher, Put, Rows, quiet

Blocking = BlockingCoordinator[Put, int, Rows, Rows, Rows]


def blocking(flusher: KeyFlusher, *channels: str) -> Blocking:
    return BlockingCoordinator(quiet(), channels, Context(), flusher.kept, flusher, delta=KeyDelta)


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
    c.pause("a")
    c.start()
    write = c.handle("a").try_write(Put("a", 1))
    with pytest.raises(TimeoutError):
        write.wait(Durability.APPLIED, timeout_s=0)
    c.unpause("a")
    assert (write.epoch(), write.result()) == (1, 0)
    c.handle("a").write_timeout(Put("b", 2), 5.0).wait(Durability.APPLIED)
    c.durable_through(2)
    c.handle("a").flush()
    subscriber, _ = c.subscribe()
    subscriber.close()
    c.stop()
    with pytest.raises(Shutdown):
        c.handle("a").write(Put("c", 3))


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
