"""`headwater lag` and `headwater gc`."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, Follower, Lag
from headwater.buffer.group import GroupRegister
from headwater.buffer.queue.contract import Collected
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.stream import open_stream
from headwater.cli.read_command import total_lag
from headwater.core import limits
from headwater.store import Store
from tests.cli.conftest import Invoke
from tests.cli.data.given import File, Make, on, start, values


def acknowledge(url: str, batches: int, stream: str = "events") -> None:
    async def work(store: Store) -> None:
        async with await Consumer.open(store, stream, gc=False) as consumer:
            for _ in range(batches):
                batch = await consumer.next_batch()
                assert batch is not None
                await consumer.ack(batch.sequence)

    on(url, work)


def test_lag_by_partition_and_in_total(invoke: Invoke, url: str, make: Make, file: File) -> None:
    make("wide", partitions=2)
    for partition in (0, 1, 1):
        invoke("produce", url, "wide", file("a\nb\n"), f"--partition={partition}")
    text = invoke("lag", url, "wide").stdout
    assert re.search(r"^ +0 +1 +2 +", text, re.MULTILINE)
    assert re.search(r"^ +1 +2 +4 +", text, re.MULTILINE)
    assert re.search(r"^ +total +3 +6 +", text, re.MULTILINE)
    found = json.loads(invoke("lag", url, "wide", "--json").stdout)
    assert [one["batches"] for one in found["partitions"]] == [1, 2]
    assert (found["total"]["records"], found["total"]["seconds"] >= 0) == (6, True)
    acknowledge(url, 1, "wide")
    one = json.loads(invoke("lag", url, "wide", "--json", "--partition=0").stdout)
    assert one["total"] == {"batches": 0, "records": 0, "size_bytes": 0, "seconds": 0.0}
    refused = invoke("lag", url, "wide", "--group=audit", "--partition=1")
    assert "group 'audit' has no position" in refused.stderr


def test_lag_is_watched_until_a_signal(url: str) -> None:
    process = start("lag", url, "events", "--watch", "--json", "--every=0.1")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["stream"] == "events"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGTERM, b"")


def test_there_is_a_total_only_where_the_lag_of_all_partitions_can_be_told() -> None:
    lag = Lag(1, 2, 3, 4.0)
    assert total_lag({0: lag, 1: Lag(1, 1, 1, 9.0)}) == Lag(2, 3, 4, 9.0)
    assert total_lag({0: lag, 1: Lag(1, 1, None, 9.0)}) == Lag(2, 3, None, 9.0)
    assert total_lag({0: lag, 1: "gone"}) is None


def test_the_lag_of_a_group_that_is_not_known_is_an_error(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("wide", partitions=2)
    invoke("produce", url, "wide", file("a\nb\n"), "--partition=0")
    for more in ((), ("--json",), ("--partition=0",), ("--watch",)):
        found = invoke("lag", url, "wide", "--group=typo", *more)
        assert (found.exit_code, found.stdout) == (2, ""), more
        assert "group 'typo'" in found.stderr
    on(url, _followed)
    found = invoke("lag", url, "wide", "--group=audit", "--json")
    told = json.loads(found.stdout)
    assert (found.exit_code, told["total"]) == (1, None)
    assert told["partitions"][0]["records"] == 2
    assert "group 'audit' has no position" in told["partitions"][1]["error"]
    text = invoke("lag", url, "wide", "--group=audit").stdout
    assert re.search(r"^ +total +\? +\? +\? +\?", text, re.MULTILINE)


def test_the_lag_of_a_group_with_positions_in_lsns_is_within_batches(
    invoke: Invoke, url: str, make: Make, file: File
) -> None:
    make("wide", partitions=2)
    for partition in (0, 1):
        invoke("produce", url, "wide", file("a\nb\nc\n"), f"--partition={partition}")

    async def begin(store: Store) -> None:
        await GroupRegister(await open_stream(store, "wide"), "etl").begin("query", {0: 3, 1: 1})

    on(url, begin)
    found = json.loads(invoke("lag", url, "wide", "--group=etl", "--json").stdout)
    assert [one["records"] for one in found["partitions"]] == [1, 3]
    one = json.loads(invoke("lag", url, "wide", "--group=etl", "--json", "--partition=1").stdout)
    assert one["total"]["records"] == 3


async def _followed(store: Store) -> None:
    await (await Follower.open(store, "wide", group="audit")).close()


def test_gc_says_what_went_and_what_stays_and_why(
    invoke: Invoke, url: str, make: Make, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FLOOR_SETTLE_S", 0.0)
    make("brief", retention_ms=0)
    for text in ("a\n", "x" * 40_000 + "\n", "b\n"):
        invoke("produce", url, "brief", file(text))
    invoke("stream", "alter", url, "brief", "--required-group=billing")
    kept = invoke("gc", url, "brief").stdout
    assert re.search(r"kept +3 +batches: kept for 0 ms, and until group billing has", kept)
    invoke("stream", "alter", url, "brief", "--required-group=none")
    done = invoke("gc", url, "brief", "--full")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"deleted +3 +batches, .* KiB: past their 0 ms", done.stdout)
    assert re.search(r"kept +0 +batches: kept for 0 ms", done.stdout)
    assert re.search(r"oldest now +3 ", done.stdout)
    again = json.loads(invoke("gc", url, "brief", "--json").stdout)
    assert again["partitions"][0]["batches_expired"] == 0
    assert again["partitions"][0]["floor_lsn"] == 4


def test_gc_goes_on_until_nothing_is_left_to_do(
    invoke: Invoke, url: str, make: Make, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_MAX_ENTRIES", 1)
    monkeypatch.setattr(limits, "GC_CHUNKS", 2)
    monkeypatch.setattr(limits, "GC_PARALLEL", 1)
    make("brief", retention_ms=0)
    for text in ("a\n", "b\n", "c\n"):
        invoke("produce", url, "brief", file(text))
    acknowledge(url, 3, "brief")
    report = json.loads(invoke("gc", url, "brief", "--json").stdout)["partitions"][0]
    assert (report["batches_expired"], report["floor_sequence"]) == (3, 3)


def test_gc_counts_what_is_kept_at_one_moment(
    invoke: Invoke, url: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer acknowledges, and its own collector raises the floor, while this one works."""
    invoke("produce", url, "events", file("a\n"))
    collect = NativeCollector.collect

    async def late(*arguments: Any, **options: Any) -> Collected:
        report = await collect(*arguments, **options)
        report.kept_retained = -512
        return report

    monkeypatch.setattr(NativeCollector, "collect", late)
    [found] = json.loads(invoke("gc", url, "events", "--json").stdout)["partitions"]
    assert (found["kept_pending"], found["kept_retained"], found["floor_sequence"]) == (0, 1, 0)


def test_gc_keeps_what_the_retention_keeps(invoke: Invoke, url: str, file: File) -> None:
    invoke("produce", url, "events", file("a\n"))
    acknowledge(url, 1)
    done = invoke("gc", url, "events", "--partition=0")
    assert re.search(r"1 +batches: kept for 7 days", done.stdout)
    assert values(url) == [b"a"]
