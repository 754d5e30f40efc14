"""The coordinator from threads."""

from __future__ import annotations

import threading

import pytest

from headwater.coordinator import BlockingCoordinator, Durability, Shutdown
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
