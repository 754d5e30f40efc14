"""An append lands once, or says that it cannot tell; and it writes what others read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.producer.call import with_column
from headwater.buffer.queue.contract import AppendedBatch, Unsettled
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.appender import UNKNOWN_LSN, V1Appender
from headwater.buffer.queue.v1.batch_format import decode_batch
from headwater.buffer.queue.v1.manifest_format import (
    Manifest,
    ManifestEntry,
    MetadataItem,
    encode_manifest,
)
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.buffer.queue.v1.side_object import create_v1_queue
from headwater.buffer.records import KEY, VALUE, from_arrow, from_values
from headwater.core import limits, runtime
from headwater.core.errors import (
    Contended,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import PreconditionFailed, Store
from headwater.store.backend import Unreachable
from tests.buffer.queue_v1.given import (
    MANIFEST,
    PREFIX,
    QUEUE,
    OtherConsumer,
    OtherProducer,
    Queue,
    either,
    memory,
    new_batch,
    produce,
    real,
    scripted,
    then,
    uploaded,
)
from tests.store.scripted import (
    LOST,
    Apply,
    Step,
    after,
    fails,
    lands_then,
    lands_then_after,
    virtual,
)

REFUSED = PreconditionFailed("412 PreconditionFailed", compared=True)
BUSY = PreconditionFailed("409 ConditionalRequestConflict")
DOWN = Unavailable("500 InternalError")
LOSSES = [lands_then(LOST), lands_then(REFUSED), lands_then(DOWN)]
ONCE = RetryPolicy(attempts=1)


async def sequences(queue: Queue) -> list[int]:
    return [entry.sequence for entry in (await queue.manifest()).entries]


@pytest.mark.parametrize("kind", ["memory", "local"])
@real
async def test_the_manifest_and_the_batch_are_the_published_ones(kind: str, tmp_path: Path) -> None:
    queue = await either(kind, tmp_path).made()
    assert (await queue.store.get(MANIFEST)).data == bytes(20) + b"\x01\x00"
    appender = queue.appender()
    await appender.open()
    batch, data = new_batch(b"a", b"", time_ms=1_700_000_000_000, metadata=b"m")
    await appender.upload(batch.batch_id, data)
    assert await appender.append([batch]) == [AppendedBatch(0, 1)]
    location = f"{PREFIX}/{batch.batch_id}.batch"
    entry = ManifestEntry(0, location, [MetadataItem(0, 1_700_000_000_000, b"m")])
    assert (await queue.store.get(MANIFEST)).data == encode_manifest(Manifest([entry], 1, 0))
    stored = (await queue.store.get(location)).data
    assert bytes(stored).hex() == "01000000610000000000020000000100"


@virtual
async def test_an_appender_encodes_values_and_nothing_else() -> None:
    appender = memory().appender()
    calls = Calls.of([Call(0, 1, None)])
    values = from_values([b"a", b"bc"])

    def encode(records: pa.RecordBatch) -> bytes:
        return bytes(appender.encode(Batch(runtime.new_ulid(), records, calls), Compression.NONE))

    assert decode_batch(encode(values)).to_pylist() == [b"a", b"bc"]
    assert decode_batch(encode(pa.record_batch([], names=[]))).to_pylist() == []
    with pytest.raises(Refused, match="_key"):
        encode(with_column(values, KEY, [b"k", b"k"]))
    with pytest.raises(Refused, match="amount"):
        encode(from_arrow(pa.table({"amount": [1, 2]}))[0])
    with pytest.raises(Refused, match="null"):
        encode(pa.record_batch([pa.array([b"a", None])], names=[VALUE]))
    batch = Batch(runtime.new_ulid(), values, calls)
    with pytest.raises(Refused, match="LZ4"):
        appender.encode(batch, Compression.LZ4)


@virtual
async def test_batches_of_one_call_stand_together_and_in_order() -> None:
    queue = await memory().made()
    appender = queue.appender()
    group = [await uploaded(appender, *[b"x"] * rows) for rows in (2, 0, 3)]
    assert await appender.append(group) == [
        AppendedBatch(0, 1),
        AppendedBatch(1, 3),
        AppendedBatch(2, 3),
    ]
    assert await appender.append([]) == []
    assert await produce(appender, b"y") == AppendedBatch(3, 6)
    assert appender.counters.writes == 2


@virtual
async def test_a_lone_producer_appends_with_one_request() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    await produce(appender, b"a")
    batch = await uploaded(appender, b"b")
    backend.calls.clear()
    assert await appender.append([batch]) == [AppendedBatch(1, 2)]
    assert backend.calls == [("put_if_unchanged", MANIFEST)]


@virtual
async def test_others_batches_between_are_counted_once() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    await produce(appender, b"a")
    await OtherProducer(queue).produce("other/1.batch", b"b", b"c")
    assert await produce(appender, b"d") == AppendedBatch(2, 4)
    assert await produce(appender, b"e") == AppendedBatch(3, 5)
    assert [key for name, key in backend.calls if name == "get"].count("other/1.batch") == 1


@pytest.mark.parametrize("loss", LOSSES)
@virtual
async def test_an_append_whose_answer_was_lost_is_made_once(loss: Step) -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    backend.next("put_if_unchanged", loss)
    assert await produce(appender, b"a") == AppendedBatch(0, 1)
    assert await sequences(queue) == [0]


@pytest.mark.parametrize("loss", [LOST, REFUSED, DOWN])
@virtual
async def test_landed_and_then_followed_by_others_is_recognised(loss: Exception) -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    group = [await uploaded(appender, b"a"), await uploaded(appender, b"b", b"c")]
    theirs = OtherProducer(queue)
    backend.next("put_if_unchanged", lands_then_after(then(theirs.produce, "o/1", b"x"), loss))
    assert await appender.append(group) == [AppendedBatch(0, 1), AppendedBatch(1, 2)]
    assert await sequences(queue) == [0, 1, 2]


@virtual
async def test_a_lost_race_is_run_again_on_what_won_it() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    backend.next("put_if_unchanged", after(then(OtherProducer(queue).produce, "o/1", b"x", b"y")))
    assert await produce(appender, b"a") == AppendedBatch(1, 3)
    assert await sequences(queue) == [0, 1]
    assert appender.counters.conflicts == 1


async def consume_all(queue: Queue) -> None:
    queue_consumer = await queue.opened()
    last = (await queue_consumer.after(None, 100))[-1].sequence
    await queue_consumer.dequeue(last)


@pytest.mark.parametrize("loss", [LOST, REFUSED, DOWN])
@virtual
async def test_landed_and_dequeued_by_our_consumer_before_looking_is_recognised(
    loss: Exception,
) -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    backend.next("put_if_unchanged", lands_then_after(then(consume_all, queue), loss))
    assert await produce(appender, b"a", b"b") == AppendedBatch(0, 1)
    assert (await queue.manifest()).next_sequence == 1
    assert await produce(appender, b"c") == AppendedBatch(1, 3)


@virtual
async def test_not_landed_though_the_queue_went_on_past_it_is_appended() -> None:
    backend, queue = scripted()
    await queue.made()

    async def appended_and_consumed() -> None:
        await OtherProducer(queue).produce("o/1", b"x", b"y")
        await consume_all(queue)

    appender = queue.appender(Store(backend))
    backend.next("put_if_unchanged", fails(LOST), after(appended_and_consumed))
    assert await produce(appender, b"a") == AppendedBatch(1, 3)


async def other_takes_all(queue: Queue) -> None:
    """Their consumer, which keeps up."""
    consumer = OtherConsumer(queue)
    await consumer.open()
    await consumer.dequeue((await queue.manifest()).next_sequence - 1)


async def others_come_and_go(queue: Queue, count: int = 1) -> None:
    """Their producer appends, and their consumer takes it out at once."""
    for _ in range(count):
        await OtherProducer(queue).produce(f"o/{runtime.new_ulid()}", b"x")
    await other_takes_all(queue)


@virtual
async def test_a_lost_race_beside_a_foreign_consumer_that_keeps_up_is_run_again() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    for sequence in range(1, 10, 2):
        backend.next("put_if_unchanged", after(then(others_come_and_go, queue)))
        assert await produce(appender, b"a") == AppendedBatch(sequence, UNKNOWN_LSN)
    backend.next("put_if_unchanged", *[after(then(others_come_and_go, queue))] * 5)
    assert (await produce(appender, b"a")).sequence == 15
    backend.next(
        "put_if_unchanged", fails(Unreachable("refused")), after(then(others_come_and_go, queue))
    )
    assert (await produce(appender, b"a")).sequence == 17


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(lambda go: [lands_then_after(go, LOST)], id="landed-and-lost"),
        pytest.param(lambda go: [lands_then_after(go, DOWN)], id="landed-and-500"),
        pytest.param(lambda go: [lands_then_after(go, BUSY)], id="landed-and-409"),
        pytest.param(lambda go: [fails(LOST), after(go)], id="lost-and-then-412"),
        pytest.param(lambda go: [fails(DOWN), after(go)], id="500-and-then-412"),
        pytest.param(lambda go: [after(go), lands_then_after(go, LOST)], id="412-and-then-lost"),
    ],
)
@virtual
async def test_what_a_foreign_consumer_may_have_taken_is_unknown_and_named(
    steps: Callable[[Apply], list[Step]],
) -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    batch = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", *steps(then(others_come_and_go, queue)))
    with pytest.raises(Unsettled, match="another implementation") as raised:
        await appender.append([batch])
    assert raised.value.batch_ids == {batch.batch_id}
    end = (await queue.manifest()).next_sequence
    # It is not appended on a guess, and what comes behind it goes on.
    with pytest.raises(Unsettled):
        await appender.append([batch])
    assert await produce(appender, b"b") == AppendedBatch(end, UNKNOWN_LSN)


@virtual
async def test_an_unanswered_group_that_the_queue_is_too_short_for_has_not_landed() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    group = [await uploaded(appender, value) for value in (b"a", b"b", b"c")]
    steps = [fails(LOST), after(then(others_come_and_go, queue, 2))]
    backend.next("put_if_unchanged", *steps)
    assert [place.sequence for place in await appender.append(group)] == [2, 3, 4]


@virtual
async def test_batches_of_which_some_are_in_doubt_are_told_apart() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend, policy=ONCE))
    await appender.open()
    first = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", lands_then_after(then(others_come_and_go, queue), LOST))
    backend.next("get", fails(DOWN))
    with pytest.raises(OutcomeUnknown):
        await appender.append([first])
    second = await uploaded(appender, b"b")
    with pytest.raises(Unsettled) as raised:
        await appender.append([first, second])
    assert raised.value.batch_ids == {first.batch_id}
    assert (await appender.append([second]))[0].sequence == 2


@virtual
async def test_past_the_remembered_locations_the_segments_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _landed_long_ago(monkeypatch, collected=False)


@virtual
async def test_past_everything_that_is_retained_the_outcome_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _landed_long_ago(monkeypatch, collected=True)


async def _landed_long_ago(monkeypatch: pytest.MonkeyPatch, *, collected: bool) -> None:
    monkeypatch.setattr(limits, "V1_REMEMBERED", 2)
    backend, queue = scripted()
    await queue.made()

    async def much_happens() -> None:
        for number in range(5):
            await OtherProducer(queue).produce(f"o/{number}", b"x")
        await consume_all(queue)
        if collected:
            await queue.collector().collect(Retention(0))

    appender = queue.appender(Store(backend))
    batch = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", lands_then_after(much_happens, LOST))
    if collected:
        with pytest.raises(OutcomeUnknown, match="guess"):
            await appender.append([batch])
    else:
        assert await appender.append([batch]) == [AppendedBatch(0, 1)]
    assert (await queue.manifest()).next_sequence == 6


@virtual
async def test_a_cancelled_append_is_looked_for_when_it_is_made_again() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    batch = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", lands_then_after(then(runtime.sleep, 1e6), LOST))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await appender.append([batch])
    more = await uploaded(appender, b"b")
    assert await appender.append([batch, more]) == [AppendedBatch(0, 1), AppendedBatch(1, 2)]
    assert await sequences(queue) == [0, 1]


@virtual
async def test_not_being_able_to_look_leaves_the_outcome_open_until_one_can() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend, policy=ONCE))
    await appender.open()
    batch = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", lands_then(LOST))
    backend.next("get", fails(DOWN), fails(DOWN))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch])
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch])
    assert await appender.append([batch]) == [AppendedBatch(0, 1)]
    assert await sequences(queue) == [0]


@virtual
async def test_what_never_left_is_unavailable_and_may_be_tried_again() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend, policy=ONCE))
    batch = await uploaded(appender, b"a")
    backend.next("get", fails(DOWN))
    with pytest.raises(Unavailable):
        await appender.append([batch])
    assert await appender.append([batch]) == [AppendedBatch(0, 1)]


@virtual
async def test_contention_ends_and_nothing_has_landed() -> None:
    backend, queue = scripted()
    await queue.made()
    theirs = OtherProducer(queue)
    steps = [after(then(theirs.enqueue, f"o/{n}")) for n in range(2 * limits.V1_ATTEMPTS)]
    appender = queue.appender(Store(backend), RetryPolicy(deadline_s=1e6))
    batch = await uploaded(appender, b"a")
    backend.next("put_if_unchanged", *steps)
    with pytest.raises(Contended):
        await appender.append([batch])
    assert appender.counters.writes == limits.V1_ATTEMPTS
    assert appender.counters.conflict_rate == 100
    locations = [entry.location for entry in (await queue.manifest()).entries]
    assert all(location.startswith("o/") for location in locations)


@virtual
async def test_a_landed_append_whose_lsn_cannot_be_told_is_answered_when_asked_again() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend, policy=ONCE))
    await appender.open()
    batch = await uploaded(appender, b"a")
    backend.next("get", fails(DOWN))
    with pytest.raises(OutcomeUnknown, match="sequences 0"):
        await appender.append([batch])
    assert await appender.append([batch]) == [AppendedBatch(0, 1)]
    assert await sequences(queue) == [0]


@virtual
async def test_without_a_way_to_count_the_lsn_is_unknown_and_the_append_is_not() -> None:
    queue = await memory().made()
    await OtherProducer(queue).enqueue("o/missing.batch")
    assert await produce(queue.appender(), b"a") == AppendedBatch(1, UNKNOWN_LSN)
    consumer = OtherConsumer(queue)
    await consumer.open()
    await consumer.dequeue(1)
    assert await produce(queue.appender(), b"b") == AppendedBatch(2, UNKNOWN_LSN)


@virtual
async def test_the_lsn_of_a_batch_that_was_acknowledged_at_once_is_told() -> None:
    backend, queue = scripted()
    await queue.made()
    appender = queue.appender(Store(backend))
    await produce(appender, b"a")
    await OtherProducer(queue).produce("o/1", b"b")
    batch = await uploaded(appender, b"c")

    async def landed() -> None:
        await consume_all(queue)

    async def step(apply: object) -> object:
        version = await apply()  # type: ignore[operator]
        await landed()
        return version

    backend.next("put_if_unchanged", after(then(OtherProducer(queue).enqueue, "o/1")), step)
    assert await appender.append([batch]) == [AppendedBatch(3, 3)]


@virtual
async def test_a_queue_that_vanished_or_went_back_is_not_written_to() -> None:
    queue = await memory().made()
    appender = queue.appender()
    await produce(appender, b"a")
    earlier = (await queue.store.get(MANIFEST)).data
    await produce(appender, b"b")
    await queue.store.put(MANIFEST, earlier)
    with pytest.raises(RolledBack, match="next sequence"):
        await produce(appender, b"c")
    await queue.store.delete(MANIFEST)
    with pytest.raises(RolledBack, match="gone"):
        await produce(appender, b"c")


@virtual
async def test_a_manifest_that_would_be_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "V1_MANIFEST_MAX_BYTES", 150)
    queue = await memory().made()
    appender = queue.appender()
    await produce(appender, b"a")
    with pytest.raises(LimitExceeded, match="catch up"):
        await produce(appender, b"b")
    assert await sequences(queue) == [0]


@virtual
async def test_a_producer_needs_a_queue_and_the_right_one() -> None:
    queue = memory()
    with pytest.raises(NotFound):
        await queue.appender().open()
    await queue.made()
    await create_v1_queue(queue.store, PREFIX, QUEUE)
    other = V1Appender(V1Queue(queue.store, PREFIX, "orders-of-another-stream"))
    with pytest.raises(Refused, match="another stream"):
        await other.open()
    with pytest.raises(Refused, match="ULID"):
        await queue.appender().upload("x", b"")
    batch, _ = new_batch(b"a")
    with pytest.raises(Refused, match="twice"):
        await queue.appender().append([batch, batch])
