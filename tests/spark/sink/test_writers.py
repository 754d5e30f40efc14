"""What Spark may do to a write: tasks twice, replays, aborts; the outcome is one copy, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.buffer.stream import alter_stream, delete_stream
from headwater.buffer.transaction.commit import OlderMicroBatch
from headwater.buffer.transaction.holds import HoldLost, holds_register, read_holds
from headwater.core import runtime
from headwater.core.errors import Bug, NotFound, Refused
from headwater.core.runtime import RealRuntime
from headwater.spark.data_source import HeadwaterDataSource
from headwater.spark.sink import writers
from tests.spark.sink.sink_world import World, values, wait


class Late(RealRuntime):
    """A clock that is ahead."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        super().__init__()

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


def test_tasks_stand_in_their_order_whatever_order_they_end_in(sink: World) -> None:
    sink.stream()
    writer = sink.batch_writer(values("a").schema)
    messages = [sink.run_task(writer, number, values(str(number))) for number in (2, 0, 1)]
    writer.commit(messages)
    assert sink.values() == ["0", "1", "2"]


def test_nothing_is_seen_before_the_commit(sink: World) -> None:
    sink.stream()
    writer = sink.batch_writer(values("a").schema)
    message = sink.run_task(writer, 0, values("a"))
    assert sink.values() == []
    writer.commit([message])
    assert sink.values() == ["a"]


def test_a_speculative_or_retried_task_counts_once(sink: World) -> None:
    stream = sink.stream(gc_grace_ms=0)
    writer = sink.batch_writer(values("a").schema)
    sink.run_task(writer, 0, values("a"))
    message = sink.run_task(writer, 0, values("a"))
    writer.commit([message])
    assert sink.values() == ["a"]
    sink.collect(stream)
    assert (sink.uploads(), sink.values()) == (1, ["a"])


def test_a_replayed_micro_batch_with_other_placement_leaves_one_copy(sink: World) -> None:
    sink.stream(partitions=2)
    schema = values("a").schema
    first = sink.micro_batch(0, values("a", "b"), values("c"), run="run-1")
    sink.stream_writer(schema).commit(first, 0)
    again = sink.micro_batch(0, values("c", "a"), values("b"), run="run-2")
    sink.stream_writer(schema).commit(again, 0)
    assert (sink.values(0), sink.values(1)) == (["a", "b"], ["c"])
    assert sink.uploads() == 2
    sink.stream_writer(schema).commit(sink.micro_batch(1, values("d"), run="run-2"), 1)
    assert sink.values(0) == ["a", "b", "d"]


def test_a_query_that_moves_between_processes_leaves_one_copy_of_each_micro_batch(
    sink: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.stream(partitions=2)
    here: dict[Any, Any] = {}
    there: dict[Any, Any] = {}
    for number, process in enumerate((here, there, here, here, there, there, here)):
        monkeypatch.setattr(writers, "_open_appendings", process)
        messages = sink.micro_batch(number, values(f"{number}a"), values(f"{number}b"))
        sink.stream_writer(values("a").schema).commit(messages, number)
        sink.stream_writer(values("a").schema).commit(messages, number)
    assert sink.values(0) == [f"{number}a" for number in range(7)]
    assert sink.values(1) == [f"{number}b" for number in range(7)]


def test_a_commit_in_the_process_of_the_last_one_appends_with_one_request_a_partition(
    sink: World,
) -> None:
    sink.stream(partitions=4)
    tasks = [values(letter) for letter in "abcd"]
    spent = []
    for number in range(3):
        messages = sink.micro_batch(number, *tasks)
        before = sink.store.stats.requests
        sink.stream_writer(values("a").schema).commit(messages, number)
        spent.append(sink.store.stats.requests - before)
    # The stream, the record three times read and twice written, the hold twice read and once
    # written; and an append for each partition.
    assert spent[1:] == [1 + 5 + 3 + 4] * 2


def test_partitions_that_were_added_are_written_to(sink: World) -> None:
    stream = sink.stream(partitions=1)
    sink.stream_writer(values("a").schema).commit(sink.micro_batch(0, values("a")), 0)
    wait(alter_stream(sink.store, stream.name, partitions=2))
    messages = sink.micro_batch(1, values("b"), values("c"))
    sink.stream_writer(values("a").schema).commit(messages, 1)
    assert (sink.values(0), sink.values(1)) == (["a", "b"], ["c"])


def test_a_query_from_an_old_checkpoint_is_refused_and_not_passed_over(sink: World) -> None:
    sink.stream()
    schema = values("a").schema
    for number in range(3):
        messages = sink.micro_batch(number, values(str(number)))
        sink.stream_writer(schema).commit(messages, number)
    # Cut anew: under number 1 there are other rows than those that were written.
    messages = sink.micro_batch(1, values("1", "2", "3", "4"), run="run-2")
    with pytest.raises(OlderMicroBatch, match="new checkpointLocation"):
        sink.stream_writer(schema).commit(messages, 1)
    sink.stream_writer(schema).abort(messages, 1)
    assert sink.values() == ["0", "1", "2"]


def test_the_micro_batches_of_a_run_share_one_hold(sink: World) -> None:
    stream = sink.stream()
    for number in range(3):
        messages = sink.micro_batch(number, values("a"), values("b"))
        sink.stream_writer(values("a").schema).commit(messages, number)
    assert len(wait(read_holds(holds_register(stream))).holds) == 1


def test_messages_of_another_micro_batch_are_refused(sink: World) -> None:
    sink.stream()
    messages = sink.micro_batch(3, values("a"))
    with pytest.raises(Bug, match="micro-batch 4"):
        sink.stream_writer(values("a").schema).commit(messages, 4)
    assert sink.values() == []


def test_two_queries_into_one_stream_do_not_take_each_other_for_themselves(sink: World) -> None:
    sink.stream()
    for query in ("one", "two"):
        messages = sink.micro_batch(0, values(query), query=query)
        sink.stream_writer(values("a").schema).commit(messages, 0)
    assert sink.values() == ["one", "two"]


def test_one_query_into_two_streams(sink: World) -> None:
    sink.stream("one")
    sink.stream("two")
    for name in ("one", "two"):
        messages = sink.micro_batch(0, values(name), topic=name)
        sink.stream_writer(values("a").schema, topic=name).commit(messages, 0)
    assert (sink.values(name="one"), sink.values(name="two")) == (["one"], ["two"])


def test_an_abort_after_a_commit_whose_answer_was_lost_takes_nothing_back(sink: World) -> None:
    sink.stream()
    messages = sink.micro_batch(0, values("a"))
    sink.stream_writer(values("a").schema).commit(messages, 0)
    sink.stream_writer(values("a").schema).abort(messages, 0)
    writer = sink.batch_writer(values("a").schema)
    batch = [sink.run_task(writer, 0, values("b"))]
    writer.commit(batch)
    writer.abort(batch)
    assert sink.values() == ["a", "b"]


def test_an_abort_leaves_nothing(sink: World) -> None:
    stream = sink.stream(gc_grace_ms=0)
    messages = sink.micro_batch(0, values("a"))
    sink.stream_writer(values("a").schema).abort([*messages, None], 0)
    assert sink.uploads() == 0
    writer = sink.batch_writer(values("a").schema)
    sink.run_task(writer, 0, values("b"))
    writer.abort([None])
    sink.collect(stream)
    assert (sink.uploads(), sink.values()) == (0, [])


def test_a_commit_after_its_abort_is_refused(sink: World) -> None:
    sink.stream()
    writer = sink.batch_writer(values("a").schema)
    messages = [sink.run_task(writer, 0, values("b"))]
    writer.abort(messages)
    with pytest.raises(HoldLost, match="run it again"):
        writer.commit(messages)
    assert sink.values() == []


def test_an_abort_of_which_no_task_tells_anything_does_nothing(sink: World) -> None:
    sink.stream()
    sink.stream_writer(values("a").schema).abort([None, None], 3)
    sink.stream_writer(values("a").schema).commit([], 3)
    assert sink.values() == []


def test_a_micro_batch_without_rows_commits(sink: World) -> None:
    sink.stream()
    messages = sink.micro_batch(0, values(), values())
    sink.stream_writer(values("a").schema).commit(messages, 0)
    assert (sink.values(), sink.uploads()) == ([], 0)


def test_a_batch_job_run_again_under_its_version_writes_once(sink: World) -> None:
    sink.stream()
    for version in ("0", "1", "1", "0"):
        sink.write(values(version), txnAppId="nightly", txnVersion=version)
    sink.write(values("other"), txnAppId="hourly", txnVersion="0")
    assert sink.values() == ["0", "1", "other"]


def test_a_batch_job_without_a_version_writes_each_time(sink: World) -> None:
    sink.stream()
    sink.write(values("a"))
    sink.write(values("a"))
    assert sink.values() == ["a", "a"]


def test_a_job_longer_than_the_grace_commits(sink: World) -> None:
    stream = sink.stream(gc_grace_ms=0)
    writer = sink.batch_writer(values("a").schema)
    early = sink.run_task(writer, 0, values("early"))
    # To the collector days have gone by.
    with runtime.installed(Late(3 * 24 * 3600 * 1000)):
        sink.collect(stream)
    late = sink.run_task(writer, 1, values("late"))
    writer.commit([early, late])
    assert sink.values() == ["early", "late"]


def test_batches_are_as_large_and_as_compressed_as_asked_for(sink: World) -> None:
    sink.stream(compression="zstd")
    text = values(*["x" * 1000] * 100)
    sink.write(text, batchBytes="20KiB")
    assert len(sink.batches()) > 4
    sink.stream("plain")
    sink.write(text, topic="plain", compression="lz4")
    (batch,) = sink.batches(name="plain")
    assert batch.records.num_rows == 100


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sinkTimeout": "1s"}, "sinkTimeout is 1,000 ms"),
        ({"batchBytes": "1GiB"}, "batchBytes is 1,073,741,824"),
        ({"txnAppId": "a"}, "give both"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion"),
        ({"bathcBytes": "1"}, "did you mean batchBytes"),
    ],
)
def test_options_that_cannot_work_are_refused_before_any_task_runs(
    sink: World, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Refused, match=told):
        sink.batch_writer(values("a").schema, **options)


def test_a_stream_that_is_not_there_is_told_before_any_task_runs(sink: World) -> None:
    sink.stream("bills")
    told = r"no stream 'orders' at memory://.*there: bills\).*headwater stream create memory://.*"
    with pytest.raises(NotFound, match=told):
        sink.batch_writer(values("a").schema)
    with pytest.raises(NotFound, match=told):
        sink.stream_writer(values("a").schema)


def test_a_published_v1_stream_is_refused(sink: World) -> None:
    sink.stream(format="v1")
    with pytest.raises(Refused, match="native"):
        sink.write(values("a"))


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_stream_is_not_overwritten(sink: World, kind: str) -> None:
    source: Any = HeadwaterDataSource({"path": sink.url, "topic": "orders"})
    schema = from_arrow_schema(values("a").schema)
    with pytest.raises(Refused, match="append"):
        getattr(source, kind)(schema, overwrite=True)


def test_making_a_writer_records_once_what_the_stream_is_to_carry(sink: World) -> None:
    sink.stream()
    schema = pa.schema([("value", pa.binary())])
    before = sink.store.stats.requests
    sink.batch_writer(schema)
    assert sink.store.stats.requests - before == 3  # opened; read and written
    sink.batch_writer(schema)
    sink.stream_writer(schema)
    assert sink.store.stats.requests - before == 3
    assert sink.opened().config.shape == "opaque"


def test_what_a_job_brings_is_recorded_before_its_tasks_or_refused_before_them(
    sink: World,
) -> None:
    sink.stream()
    table = pa.table({"id": pa.array([1], pa.int32()), "nothing": pa.nulls(1)})
    writer = sink.batch_writer(table.schema)
    recorded = sink.opened().config
    assert [(c.name, c.type) for c in recorded.schemas[-1].columns] == [("id", "int32")]
    messages = [sink.run_task(writer, task, table) for task in range(3)]
    writer.commit(messages)
    assert sink.opened().config == recorded
    for wrong in (pa.table({"id": ["1"]}), pa.table({"id": [1.5], "more": [1]}), values("a")):
        with pytest.raises(Refused, match="orders"):
            sink.batch_writer(wrong.schema)
    assert sink.opened().config == recorded
    sink.write(pa.table({"id": [2**40], "more": ["x"]}))
    rows = [(row["id"], row.get("more")) for row in sink.rows()]
    assert rows == [(1, None)] * 3 + [(2**40, "x")]


def test_tasks_record_what_a_stream_that_was_made_again_is_to_carry(sink: World) -> None:
    sink.stream()
    table = pa.table({"id": [1]})
    sink.batch_writer(table.schema)
    wait(delete_stream(sink.store, "orders"))
    sink.stream()
    sink.write(table, table)
    assert sink.opened().config.is_inferred
    assert sink.rows() == [{"id": 1}] * 2


def test_messages_of_two_micro_batches_are_not_mixed(sink: World) -> None:
    sink.stream()
    messages = [*sink.micro_batch(0, values("a")), *sink.micro_batch(1, values("b"))]
    with pytest.raises(Bug, match="micro-batch 0"):
        sink.stream_writer(values("a").schema).commit(messages, 0)


def test_a_task_fails_as_its_query_does_and_nothing_of_it_goes_on(sink: World) -> None:
    sink.stream()
    writer = sink.batch_writer(values("a").schema, batchBytes="1")

    def breaks_half_way() -> Iterator[pa.RecordBatch]:
        yield from values("a").to_batches()
        raise ValueError("of the query itself")

    with pytest.raises(ValueError, match="of the query itself"):
        sink.run_task(writer, 0, breaks_half_way())

    async def beside() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks()]

    assert not [
        name for name in wait(beside()) if name.startswith(("sink-upload", "headwater-hold"))
    ]
