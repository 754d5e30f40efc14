"""Writers that meet let each other pass, and whoever is alone never waits."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.native.chunk import Chunk, ProducerIncarnation, first_chunk
from headwater.buffer.queue.native.turns import (
    APART,
    PATIENCE,
    ROUNDS_ABSENT,
    WAIT_MOST_S,
    WRITE_MOST_S,
    AppendTurns,
)
from headwater.core import runtime
from headwater.core.runtime import encode_ulid
from tests.buffer.native.given import Queue, batch
from tests.buffer.native.watched import client
from tests.store.scripted import virtual

REQUEST_S = 0.05


def appended(*producers: str, on: Chunk | None = None) -> Chunk:
    chunk = on or first_chunk("q1")
    for number, producer in enumerate(producers, start=1):
        new = batch(number, batch_id=encode_ulid(number))
        chunk = chunk.written(bytes(16), owner=ProducerIncarnation(producer, "1"), batches=[new])
    return chunk


def settled(turns: AppendTurns) -> None:
    """It knows how long a write takes."""
    for _ in range(100):
        turns.took(REQUEST_S)


@virtual
async def test_a_round_has_a_turn_for_each_that_appended_lately() -> None:
    turns = AppendTurns("a")
    settled(turns)
    turns.see(first_chunk("q1"))
    turns.see(appended("a", "b", "c", "d"))
    assert turns.wait_s(0) == pytest.approx(4 * PATIENCE * REQUEST_S)
    await runtime.sleep(3 * PATIENCE * REQUEST_S)
    assert turns.wait_s(0) == pytest.approx(PATIENCE * REQUEST_S)
    await runtime.sleep(10.0)
    assert turns.wait_s(0) == 0


@virtual
async def test_who_has_not_appended_for_long_is_not_waited_for() -> None:
    turns = AppendTurns("a")
    settled(turns)
    turns.see(first_chunk("q1"))
    chunk = appended("a", "b", "gone", "b", "gone")
    turns.see(chunk)
    await runtime.sleep(3 * ROUNDS_ABSENT * PATIENCE * REQUEST_S)
    turns.see(appended("b", "a", on=chunk))
    settled(turns)
    assert turns.wait_s(0) == pytest.approx(2 * PATIENCE * REQUEST_S)


@virtual
async def test_many_who_come_once_and_leave_make_nobody_wait() -> None:
    turns = AppendTurns("a")
    settled(turns)
    chunk = first_chunk("q1")
    for number in range(100):
        chunk = appended("a", f"task {number}", on=chunk)
        turns.see(chunk)
        turns.took(REQUEST_S)
        await runtime.sleep(1.0)
    assert turns.wait_s(0) == 0


@virtual
async def test_what_is_there_at_the_first_look_may_be_from_long_ago() -> None:
    chunk = appended(*(f"task {number}" for number in range(100)))
    await runtime.sleep(3600.0)
    turns = AppendTurns("a")
    settled(turns)
    turns.see(chunk)
    assert turns.wait_s(0) == pytest.approx(PATIENCE * REQUEST_S)


@virtual
async def test_nobody_waits_until_its_records_are_given_up() -> None:
    turns = AppendTurns("a")
    turns.see(first_chunk("q1"))
    for _ in range(100):
        turns.took(WRITE_MOST_S)
    turns.see(appended(*[f"p{number}" for number in range(100)] * 2))
    assert turns.wait_s(0) == pytest.approx(WAIT_MOST_S)


@virtual
async def test_who_met_moves_apart_by_chance() -> None:
    turns = AppendTurns("a")
    settled(turns)
    waits = [turns.wait_s(1) for _ in range(50)]
    assert len(set(waits)) > 1
    assert all(0 <= wait <= APART * PATIENCE * REQUEST_S * 1.001 for wait in waits)


@virtual
async def test_a_machine_that_stood_still_does_not_wait_longer_for_it() -> None:
    turns = AppendTurns("a")
    turns.took(86_400)
    turns.see(appended("a", "b"))
    assert turns.wait_s(0) <= 2 * PATIENCE * WRITE_MOST_S


@virtual
async def test_one_in_company_waits_for_its_turn_and_one_alone_does_not() -> None:
    queue = await Queue().create()
    _, store = client(queue, latency_s=REQUEST_S)
    mine, other = await queue.opened("mine", store=store), await queue.opened("other")
    started_s = runtime.monotonic_s()
    for sequence in range(1, 4):
        await mine.append([batch(sequence)])
    assert runtime.monotonic_s() - started_s == pytest.approx(3 * REQUEST_S)
    for sequence in range(1, 5):
        await other.append([batch(sequence)])
        await mine.append([batch(3 + sequence)])
    await other.append([batch(5)])
    started_s = runtime.monotonic_s()
    await mine.append([batch(8)])
    # One look and one write, and before them the other's turn.
    assert runtime.monotonic_s() - started_s > 3 * REQUEST_S
