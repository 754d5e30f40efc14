"""The published coordinator's own tests, by behaviour. Each has its name from there."""

from __future__ import annotations

import pytest

from headwater.coordinator import (
    ApplyFailed,
    Backpressure,
    Durability,
    MessageLost,
    Shutdown,
    WriteTimeout,
)
from headwater.core import runtime
from headwater.core.limits import COORDINATOR_VIEWS
from tests.coordinator.key_state import Context, Gate, KeyFlusher, Put, coordinator
from tests.store.scripted import virtual

APPLIED, WRITTEN, DURABLE = Durability.APPLIED, Durability.WRITTEN, Durability.DURABLE


# Writing


@virtual
async def test_should_assign_monotonic_epochs() -> None:
    async with coordinator(KeyFlusher()) as c:
        handle = c.handle("default")
        writes = [handle.try_write(Put(key, 1)) for key in "abc"]
        assert [await write.write_epoch() for write in writes] == [1, 2, 3]


@virtual
async def test_should_apply_writes_in_order() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        *_, last = [handle.try_write(Put("a", value)) for value in (1, 2, 3)]
        await handle.flush()
        await last.wait(WRITTEN)
        assert [one.view for one in flusher.flushed] == [{"a": (2, 3)}]


@virtual
async def test_should_update_applied_watermark_after_each_write() -> None:
    async with coordinator(KeyFlusher()) as c:
        write = c.handle("default").try_write(Put("a", 1))
        assert await write.wait(APPLIED) == 1
        assert c.metrics.watermarks.applied == 1


@virtual
async def test_should_propagate_apply_error_to_handle() -> None:
    async with coordinator(KeyFlusher(), context=Context(error="apply error")) as c:
        write = c.handle("default").try_write(Put("a", 1))
        with pytest.raises(ApplyFailed) as raised:
            await write.write_epoch()
        assert (raised.value.write_epoch, raised.value.message) == (1, "apply error")


# Flushing on command


@virtual
async def test_should_flush_on_command() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        write = c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush()
        await write.wait(WRITTEN)
        assert len(flusher.flushed) == 1


@virtual
async def test_should_wait_on_flush_handle() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        c.handle("default").try_write(Put("a", 1))
        flush = await c.handle("default").flush()
        await flush.wait(WRITTEN)
        assert len(flusher.flushed) == 1


@virtual
async def test_should_return_correct_epoch_from_flush_handle() -> None:
    async with coordinator(KeyFlusher()) as c:
        handle = c.handle("default")
        handle.try_write(Put("a", 1))
        last = handle.try_write(Put("b", 2))
        flush = await handle.flush()
        assert await flush.write_epoch() == await last.write_epoch() == 2


@virtual
async def test_should_include_all_pending_writes_in_flush() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        *_, last = [handle.try_write(Put(key, n)) for n, key in enumerate("abc", start=1)]
        await handle.flush()
        await last.wait(WRITTEN)
        assert [len(one.view) for one in flusher.flushed] == [3]
        assert flusher.kept == {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
        assert c.view().snapshot == flusher.kept


@virtual
async def test_should_skip_flush_when_no_new_writes() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        write = handle.try_write(Put("a", 1))
        await handle.flush()
        await write.wait(WRITTEN)
        await handle.flush()
        await handle.try_write(Put("sync", 0)).write_epoch()
        assert len(flusher.flushed) == 1


@virtual
async def test_should_update_written_watermark_after_flush() -> None:
    async with coordinator(KeyFlusher()) as c:
        write = c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush()
        await write.wait(WRITTEN)
        assert c.metrics.watermarks.written == 1


# By time and by size


@virtual
async def test_should_flush_on_flush_interval() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher, flush_interval_s=0.1) as c:
        await c.handle("default").try_write(Put("a", 1)).wait(APPLIED)
        assert flusher.flushed == []
        await runtime.sleep(0.15)
        assert len(flusher.flushed) == 1
        assert c.view().snapshot == flusher.kept == {"a": (0, 1)}
        assert c.metrics.flushes == {"interval": 1}


@virtual
async def test_should_flush_when_size_threshold_exceeded() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher, flush_size_bytes=100) as c:
        await c.handle("default").try_write(Put("a", 1, size=150)).wait(WRITTEN)
        assert len(flusher.flushed) == 1


@virtual
async def test_should_accumulate_until_threshold() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher, flush_size_bytes=100) as c:
        handle = c.handle("default")
        for number in range(5):
            await handle.try_write(Put(f"key{number}", number, size=15)).wait(APPLIED)
        assert flusher.flushed == []
        await handle.try_write(Put("final", 999, size=30)).wait(WRITTEN)
        assert len(flusher.flushed) == 1


# Writing while a flush goes on


@virtual
async def test_should_accept_writes_during_flush() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        first = handle.try_write(Put("a", 1))
        await handle.flush()
        await gate.arrived.wait()
        assert await handle.try_write(Put("b", 2)).write_epoch() > await first.write_epoch()
        gate.opened.set()


@virtual
async def test_should_assign_new_epochs_during_flush() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        handle.try_write(Put("a", 1))
        await handle.flush()
        await gate.arrived.wait()
        writes = [handle.try_write(Put(key, 2)) for key in "bc"]
        assert [await write.write_epoch() for write in writes] == [2, 3]
        gate.opened.set()


# When a channel is full


@virtual
async def test_should_return_backpressure_when_queue_full() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=2)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    handle.try_write(Put("b", 2))
    with pytest.raises(Backpressure):
        handle.try_write(Put("c", 3))


@virtual
async def test_should_accept_writes_after_queue_drains() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=2)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    last = handle.try_write(Put("b", 2))
    c.start()
    await last.wait(APPLIED)
    await handle.try_write(Put("c", 3)).wait(APPLIED)
    await c.stop()


@virtual
async def test_should_return_write_in_backpressure_error() -> None:
    handle = coordinator(KeyFlusher(), queue_capacity=1).handle("default")
    handle.try_write(Put("a", 1))
    with pytest.raises(Backpressure) as raised:
        handle.try_write(Put("retry_me", 42))
    assert raised.value.write == Put("retry_me", 42)


@virtual
async def test_should_succeed_with_write_timeout_when_queue_has_space() -> None:
    async with coordinator(KeyFlusher()) as c:
        write = await c.handle("default").write_timeout(Put("a", 1), 1.0)
        assert await write.wait(APPLIED) == 1


@virtual
async def test_should_timeout_when_queue_full() -> None:
    handle = coordinator(KeyFlusher(), queue_capacity=2).handle("default")
    handle.try_write(Put("a", 1))
    handle.try_write(Put("b", 2))
    with pytest.raises(WriteTimeout):
        await handle.write_timeout(Put("c", 3), 0.01)


@virtual
async def test_should_return_write_in_timeout_error() -> None:
    handle = coordinator(KeyFlusher(), queue_capacity=1).handle("default")
    handle.try_write(Put("a", 1))
    with pytest.raises(WriteTimeout) as raised:
        await handle.write_timeout(Put("retry_me", 42), 0.01)
    assert raised.value.write == Put("retry_me", 42)


@virtual
async def test_should_succeed_when_queue_drains_within_timeout() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=2)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    handle.try_write(Put("b", 2))
    c.start()
    write = await handle.write_timeout(Put("c", 3), 5.0)
    assert await write.write_epoch() == 3
    await c.stop()


# Stopping


@virtual
async def test_should_shutdown_cleanly_when_stop_called() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    await c.stop()


@virtual
async def test_should_flush_pending_writes_on_shutdown() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher)
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    write_epoch = await write.write_epoch()
    await c.stop()
    assert [list(one.write_epochs) for one in flusher.flushed] == [[write_epoch]]
    assert flusher.kept == {"a": (0, 1)}
    assert c.metrics.flushes == {"stop": 1}


@virtual
async def test_should_return_shutdown_error_after_coordinator_stops() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    await c.stop()
    with pytest.raises(Shutdown) as raised:
        c.handle("default").try_write(Put("a", 1))
    assert raised.value.write == Put("a", 1)


@virtual
async def test_should_return_shutdown_on_write_timeout_after_coordinator_stops() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    await c.stop()
    with pytest.raises(Shutdown):
        await c.handle("default").write_timeout(Put("a", 1), 1.0)


# Ranges of write epochs


@virtual
async def test_should_track_epoch_range_in_flush_event() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        *_, last = [handle.try_write(Put(key, 1)) for key in "abc"]
        await handle.flush()
        await last.wait(WRITTEN)
        assert flusher.flushed[0].write_epochs == range(1, 4)


@virtual
async def test_should_have_contiguous_epoch_ranges() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        for keys in ("ab", "c"):
            *_, last = [handle.try_write(Put(key, 1)) for key in keys]
            await handle.flush()
            await last.wait(WRITTEN)
        assert [one.write_epochs for one in flusher.flushed] == [range(1, 3), range(3, 4)]


@virtual
async def test_should_include_exact_epochs_in_range() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        write_epochs = [await handle.try_write(Put(key, 1)).write_epoch() for key in "ab"]
        await (await handle.flush()).wait(WRITTEN)
        assert list(flusher.flushed[0].write_epochs) == write_epochs


@virtual
async def test_should_preserve_context_across_flushes() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        for value in (1, 2):
            handle.try_write(Put("a", value))
            await (await handle.flush()).wait(WRITTEN)
        assert [one.view["a"] for one in flusher.flushed] == [(0, 1), (1, 2)]


# Views


@virtual
async def test_should_receive_view_on_subscribe() -> None:
    c = coordinator(KeyFlusher())
    subscriber, _ = c.subscribe()
    assert subscriber.initialize().frozen == ()
    c.start()
    c.handle("default").try_write(Put("a", 1))
    await c.handle("default").flush()
    view = await subscriber.recv()
    assert [one.view for one in view.frozen] == [{"a": (0, 1)}]
    await c.stop()


@virtual
async def test_should_include_snapshot_in_view_after_flush() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush()
        await subscriber.recv()
        assert (await subscriber.recv()).snapshot == {"a": (0, 1)}


@virtual
async def test_should_include_delta_in_view_after_flush() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        c.handle("default").try_write(Put("a", 42))
        await c.handle("default").flush()
        await subscriber.recv()
        last = (await subscriber.recv()).last_written
        assert last is not None
        assert last.view == {"a": (0, 42)}


@virtual
async def test_should_include_epoch_range_in_view_after_flush() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        handle = c.handle("default")
        write_epochs = [await handle.try_write(Put(key, 1)).write_epoch() for key in "ab"]
        await handle.flush()
        await subscriber.recv()
        last = (await subscriber.recv()).last_written
        assert last is not None
        assert list(last.write_epochs) == write_epochs


@virtual
async def test_should_broadcast_frozen_delta_on_freeze() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush()
        view = await subscriber.recv()
        assert len(view.frozen) == 1
        assert "a" in view.frozen[0].view


@virtual
async def test_should_remove_frozen_delta_after_flush_complete() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        c.handle("default").try_write(Put("a", 1))
        await c.handle("default").flush()
        assert len((await subscriber.recv()).frozen) == 1
        view = await subscriber.recv()
        assert view.frozen == ()
        assert view.last_written is not None


@virtual
async def test_should_recover_from_message_lost_subscriber() -> None:
    async with coordinator(KeyFlusher()) as c:
        handle = c.handle("default")
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        for number in range(COORDINATOR_VIEWS + 4):
            handle.try_write(Put(f"key_{number}", number))
            await handle.flush()
        await (await handle.flush(durable=True)).wait(DURABLE)
        with pytest.raises(MessageLost):
            await subscriber.recv()

        subscriber, _ = c.subscribe()
        assert len(subscriber.initialize().snapshot) == COORDINATOR_VIEWS + 4
        handle.try_write(Put("post_recovery", 100))
        await handle.flush()
        assert "post_recovery" in (await subscriber.recv()).frozen[0].view


@virtual
async def test_should_see_applied_write_via_view() -> None:
    async with coordinator(KeyFlusher()) as c:
        await c.handle("default").try_write(Put("a", 42)).wait(APPLIED)
        assert c.view().current["a"] == (0, 42)


# Durable


@virtual
async def test_should_flush_even_when_no_writes_if_flush_storage() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        flush = await c.handle("default").flush(durable=True)
        await flush.wait(DURABLE)
        assert flusher.storage_flushes == 1
        assert flusher.flushed == []


@virtual
async def test_should_advance_durable_watermark() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher) as c:
        write = c.handle("default").try_write(Put("a", 1))
        flush = await c.handle("default").flush(durable=True)
        await flush.wait(DURABLE)
        await write.wait(DURABLE)
        assert len(flusher.flushed) == 1


# Channels


@virtual
async def test_should_flush_writes_from_multiple_channels() -> None:
    flusher = KeyFlusher()
    async with coordinator(flusher, "ch1", "ch2") as c:
        for value, (name, key) in enumerate([("ch1", "a"), ("ch2", "b"), ("ch1", "c")], 1):
            await c.handle(name).try_write(Put(key, 10 * value)).wait(APPLIED)
        await (await c.handle("ch1").flush()).wait(WRITTEN)
        assert flusher.kept == {"a": (0, 10), "b": (1, 20), "c": (2, 30)}
        assert c.view().snapshot == flusher.kept


@virtual
async def test_should_pause_and_resume_write_channel() -> None:
    c = coordinator(KeyFlusher(), "a", "b", queue_capacity=2000)
    c.pause_handle("a").pause()
    c.start()
    held = c.handle("a").try_write(Put("a", 1))
    for number in range(1000):
        await c.handle("b").try_write(Put(f"b{number}", number)).wait(APPLIED)
    assert c.view().current.keys() == {f"b{number}" for number in range(1000)}
    c.pause_handle("a").unpause()
    await held.wait(APPLIED)
    assert c.view().current.keys() == {"a", *(f"b{number}" for number in range(1000))}
    await c.stop()
