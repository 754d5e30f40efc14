"""`headwater lag --prometheus` and `--textfile`: every group's lag in Prometheus' text format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater import metrics
from headwater.buffer.consumer import Consumer, Follower
from headwater.buffer.group import GroupRegister
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream, open_stream
from headwater.core.metrics import Sample
from headwater.store import Store
from tests.cli.conftest import Invoke
from tests.cli.data.given import on
from tests.project.test_metrics import Parsed, parsed


@pytest.fixture
def wide(url: str) -> str:
    """Two partitions with three batches each; an owner, a group with its own register, and one of
    the earlier form."""

    async def make(store: Store) -> None:
        stream = await create_stream(store, "wide", partitions=2)
        async with Producer(stream, linger_ms=0) as producer:
            for partition in range(2):
                for values in ([b"1", b"2"], [b"3"], [b"4"]):
                    await (await producer.produce(values, partition=partition))
        async with await Consumer.open(store, "wide", 1, "owner", gc=False) as consumer:
            batch = await consumer.next_batch()
            assert batch is not None
            await consumer.ack(batch.sequence)
        await GroupRegister(stream, "billing").begin("consumers", {0: 2, 1: 5})
        await (await Follower.open(store, "wide", group="audit")).close()

    on(url, make)
    return url


def lags(read: Parsed, what: str = "lag_records") -> dict[str, float]:
    """Values by group and partition, as in `billing/0`."""
    found = {}
    for (name, labels), value in read.values.items():
        of = dict(labels)
        if name == f"headwater_group_{what}":
            assert of["stream"] == "wide"
            found[f"{of.get('group', '')}/{of.get('partition', '')}"] = value
    return found


def test_all_groups_with_their_partitions(invoke: Invoke, wide: str) -> None:
    result = invoke("lag", wide, "wide", "--prometheus")
    assert (result.exit_code, result.stderr) == (0, "")
    read = parsed(result.stdout)
    assert lags(read) == {"billing/0": 3, "billing/1": 0, "owner/1": 2}
    assert lags(read, "lag_batches") == {"billing/0": 3, "billing/1": 0, "owner/1": 2}
    assert lags(read, "lost_records") == {"billing/0": 0, "billing/1": 0}
    assert lags(read, "unknown_partitions") == {"billing/": 0, "owner/": 0}
    assert set(lags(read, "lag_seconds")) == set(lags(read, "lag_bytes")) == set(lags(read))
    assert set(read.kinds.values()) == {"gauge"}


def test_one_group_or_one_partition(invoke: Invoke, wide: str) -> None:
    def of(*more: str) -> dict[str, float]:
        return lags(parsed(invoke("lag", wide, "wide", "--prometheus", *more).stdout))

    assert of("--group=billing") == {"billing/0": 3, "billing/1": 0}
    assert of("--group=billing", "--partition=1") == {"billing/1": 0}
    assert of("--partition=1") == {"billing/1": 0, "owner/1": 2}
    assert of("--group=audit", "--partition=0") == {"audit/0": 4}


def test_a_group_that_no_partition_knows_is_an_error(invoke: Invoke, wide: str) -> None:
    result = invoke("lag", wide, "wide", "--prometheus", "--group=typo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "group 'typo' is not known" in result.stderr


def test_an_unknown_lag_is_counted_and_is_the_status(invoke: Invoke, wide: str) -> None:
    result = invoke("lag", wide, "wide", "--prometheus", "--group=audit")
    assert result.exit_code == 1
    read = parsed(result.stdout)
    assert lags(read) == {"audit/0": 4}
    assert lags(read, "unknown_partitions") == {"audit/": 1}


def test_a_queue_that_cannot_be_read_is_unknown_for_all(invoke: Invoke, wide: str) -> None:
    async def damage(store: Store) -> None:
        stream = await open_stream(store, "wide")
        async for meta in store.list(f"streams/wide/1/ingest/{stream.id}"):
            if meta.key.endswith("queue.json"):
                await store.put(meta.key, b"damaged")

    on(wide, damage)
    result = invoke("lag", wide, "wide", "--prometheus", "--partition=1")
    assert result.exit_code == 1
    assert lags(parsed(result.stdout), "unknown_partitions") == {"billing/": 1, "/": 1}


def test_a_file_instead_of_a_table(invoke: Invoke, wide: str, tmp_path: Path) -> None:
    path = tmp_path / "lag.prom"
    result = invoke("lag", wide, "wide", f"--textfile={path}")
    assert (result.exit_code, result.stdout) == (0, "")
    assert lags(parsed(path.read_text())) == {"billing/0": 3, "billing/1": 0, "owner/1": 2}
    missing = tmp_path / "nowhere" / "lag.prom"
    result = invoke("lag", wide, "wide", f"--textfile={missing}")
    assert result.exit_code == 2
    assert "cannot be written: No such file" in result.stderr


def test_a_file_is_written_again_while_it_is_watched(
    invoke: Invoke, wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "lag.prom", metrics.write_textfile
    written: list[str] = []

    def write_twice(to: Path, samples: list[Sample]) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        write(to, samples)
        written.append(to.read_text())

    monkeypatch.setattr(metrics, "write_textfile", write_twice)
    result = invoke("lag", wide, "wide", f"--textfile={path}", "--watch", "--every=0.1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be written: No space left" in result.stderr
    assert [lags(parsed(text))["billing/0"] for text in written] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prometheus", "--watch"), "use --textfile with --watch"),
        (("--prometheus", "--json"), "not with --prometheus"),
        (("--textfile=x", "--json"), "not with --prometheus or --textfile"),
    ],
)
def test_what_does_not_go_together(
    invoke: Invoke, wide: str, arguments: tuple[str, ...], said: str
) -> None:
    result = invoke("lag", wide, "wide", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())


def test_the_table_is_as_it_was(invoke: Invoke, wide: str) -> None:
    found = json.loads(invoke("lag", wide, "wide", "--partition=1", "--json").stdout)
    assert found["total"]["records"] == 2
