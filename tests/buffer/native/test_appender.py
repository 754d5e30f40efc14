"""An append costs what is promised, fills chunks to their size, and ends in bounded time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headwater.core import limits, runtime
from headwater.core.errors import Bug, Contended, LimitExceeded
from headwater.store import MemoryBackend
from headwater.testing import SimRuntime
from tests.buffer.native.given import PREFIX, Cloud, Queue, batch
from tests.buffer.native.watched import WRITES, client
from tests.store.scripted import after, virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])


@shapes
@virtual
async def test_an_append_is_an_upload_and_one_write_or_one_write_alone(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    await appender.append([batch(1)])
    backend.operations()
    await appender.append([await queue.upload(appender, 2)])
    assert backend.operations() == ["put", "put_if_unchanged"]
    await appender.append([batch(3)])
    assert backend.operations() == ["put_if_unchanged"]
    await appender.append([batch(4), batch(5), batch(6)])
    assert backend.operations() == ["put_if_unchanged"]
    await queue.close_last(appender)
    backend.operations()
    await appender.append([batch(7)])
    assert backend.operations() == ["put_if_absent"]


async def looks_of(appends: int, every_s: float, *, chunk_of: int | None = None) -> list[float]:
    """When a lone producer looked at the floor, in seconds after it was opened."""
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    backend.requests()
    opened_s = runtime.monotonic_s()
    for sequence in range(1, appends + 1):
        await appender.append([batch(sequence)])
        await runtime.sleep(every_s)
        if chunk_of is not None and sequence % chunk_of == 0:
            await queue.close_last(appender)
    calls = zip(backend.calls, backend.at_s, strict=True)
    return [at_s - opened_s for (_, key), at_s in calls if key == f"{PREFIX}/queue.json"]


@virtual
async def test_whoever_adds_to_a_chunk_looks_at_the_floor_once() -> None:
    (looked_s,) = await looks_of(180, 1.0)
    assert limits.FLOOR_LEASE_S <= looked_s < limits.FLOOR_LEASE_S + 1.5


@virtual
async def test_a_floor_is_looked_at_again_when_its_lease_ran_out_between_two_appends() -> None:
    assert len(await looks_of(10, limits.FLOOR_LEASE_S + 1)) >= 9


@virtual
async def test_a_floor_is_looked_at_now_and_then_though_the_chunk_grows() -> None:
    looked = await looks_of(200, 20.0)
    gaps = [later - earlier for earlier, later in pairwise(looked)]
    assert gaps
    assert max(gaps) < limits.FLOOR_LOOK_S + 2 * limits.FLOOR_LEASE_S


@virtual
async def test_a_chunk_that_was_made_does_not_tell_where_the_floor_is() -> None:
    looked = await looks_of(120, 1.0, chunk_of=1)
    gaps = [later - earlier for earlier, later in pairwise(looked)]
    assert gaps
    assert max(gaps) < limits.FLOOR_LEASE_S + 3


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
@virtual
async def test_a_clock_that_jumped_ends_the_lease(jump_ms: int) -> None:
    queue = await Queue().create()
    backend, store = client(queue)
    appender = await queue.opened(store=store)
    await appender.append([batch(1)])
    backend.operations()
    mine = runtime.current()
    assert isinstance(mine, SimRuntime)
    mine.jump(jump_ms)  # the machine was suspended, and its monotonic clock stood still meanwhile
    await appender.append([batch(2)])
    assert backend.requests() == [
        ("put_if_unchanged", f"chunks/{1:020d}"),
        ("get", "q1/queue.json"),
    ]


@shapes
@virtual
async def test_a_group_is_cut_at_the_entries_and_at_the_bytes_of_a_chunk(
    shape: type[MemoryBackend],
) -> None:
    queue = await Queue(shape(versions_by_content=True)).create()
    appender = await queue.opened()
    places = await appender.append([batch(n) for n in range(1, 601)])
    assert [place.sequence for place in places] == list(range(600))
    sizes = [len((await queue.chunk(number)).entries) for number in (1, 2, 3)]
    assert sizes == [limits.CHUNK_MAX_ENTRIES, limits.CHUNK_MAX_ENTRIES, 88]
    assert [(await queue.chunk(number)).closed for number in (1, 2, 3)] == [True, True, False]
    await queue.close_last(appender)
    large = bytes(limits.INLINE_MAX_BYTES)
    await appender.append([batch(n, inline=large) for n in range(601, 621)])
    last = (await queue.chunks.last()).chunk.number
    for number in range(4, last + 1):
        chunk = await queue.chunk(number)
        # What takes it past its size is the last that it takes.
        assert chunk.stored_bytes - chunk.entries[-1].stored_bytes < limits.CHUNK_FULL_BYTES
        assert chunk.closed or number == last
    assert last <= 4 + 20 * len(large) // limits.CHUNK_FULL_BYTES
    assert await queue.entries() == [("p", n) for n in range(1, 621)]


@virtual
async def test_nothing_is_added_to_a_chunk_that_one_large_batch_has_filled() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    large = bytes(2 * limits.CHUNK_FULL_BYTES)
    for sequence in range(1, 4):
        await appender.append([batch(sequence, inline=large)])
        assert len((await queue.chunk(sequence)).entries) == 1


@virtual
async def test_whoever_always_loses_is_told_that_nothing_landed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "APPEND_ATTEMPTS", 3)
    queue = await Queue().create()
    backend, store = client(queue)
    appender, other = await queue.opened(store=store), await queue.opened("other")
    await other.append([batch(1)])
    sequences = iter(range(2, 100))
    for _ in range(10):
        for operation in WRITES:
            backend.on(operation, "chunks/", after(lambda: other.append([batch(next(sequences))])))
    with pytest.raises(Contended, match="other writers won 3 times"):
        await appender.append([batch(1)])
    assert {producer for producer, _ in await queue.entries()} == {"other"}
    backend.forget()
    await appender.append([batch(1)])
    assert (await queue.entries())[-1] == ("p", 1)


@virtual
async def test_a_callers_mistakes_are_refused_before_anything_is_written() -> None:
    queue = await Queue().create()
    with pytest.raises(Bug, match="before open"):
        await queue.appender().append([batch(1)])
    appender = await queue.opened()
    for wrong in (2, 0):
        with pytest.raises(Bug, match=r"where 1 follows|answered long ago"):
            await appender.append([batch(wrong)])
    with pytest.raises(LimitExceeded, match="METADATA_MAX_BYTES"):
        await appender.append([batch(1, metadata=bytes(limits.METADATA_MAX_BYTES + 1))])
    await appender.append([batch(1), batch(2)])
    await appender.append([batch(2), batch(3)])
    with pytest.raises(Bug, match="answered long ago"):
        await appender.append([batch(1)])
    assert await queue.entries() == [("p", 1), ("p", 2), ("p", 3)]
    assert await appender.append([]) == []
