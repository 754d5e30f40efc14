"""`headwater dead-letter`: what could not be read is listed, read, replayed once and dropped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headwater.buffer.consumer import Consumer
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.cli import terminal
from headwater.store import open_store
from tests.cli.conftest import Invoke
from tests.cli.stream.given import done, error_of

VALUES = [b"%06d" % number * 2_000 for number in range(40)]
"""Too large to be stored inside the queue."""


class Lost:
    """A stream with two partitions, and a batch in the second one that was lost."""

    def __init__(self, path: Path) -> None:
        self.url = f"file://{path}"
        self._path = path
        asyncio.run(self._make())
        (self.object,) = [one for one in path.rglob("*") if one.is_file() and self.is_batch(one)]
        self._data = self.object.read_bytes()
        self.object.unlink()
        asyncio.run(self._consume())

    @staticmethod
    def is_batch(path: Path) -> bool:
        return path.read_bytes()[:4] == b"HWB1"

    def restore(self) -> None:
        self.object.write_bytes(self._data)

    async def _make(self) -> None:
        async with open_store(self.url) as store:
            await create_stream(store, "orders", partitions=2)
            async with Producer(store, "orders", linger_ms=0) as producer:
                await (await producer.produce([b"before"], partition=1))
                await (await producer.produce(VALUES, partition=1))
                await (await producer.produce([b"after"], partition=1))

    async def _consume(self) -> None:
        async with (
            open_store(self.url) as store,
            await Consumer.open(
                store, "orders", partition=1, gc=False, on_bad_batch="dead_letter"
            ) as consumer,
        ):
            for _ in range(3):
                await consumer.next_batch()


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    return Lost(tmp_path / "store")


def values(invoke: Invoke, url: str, name: str = "orders") -> list[str]:
    arguments = ("read", url, name, "--skip-unreadable", "--partition=1")
    return [line[:12] for line in invoke(*arguments).stdout.splitlines()]


AGAIN = [value.decode()[:12] for value in VALUES]


def test_list(invoke: Invoke, lost: Lost) -> None:
    shown = done(invoke("dead-letter", "list", lost.url, "orders"))
    assert "partition" in shown
    assert "NotFound" in shown
    assert done(invoke("dead-letter", "list", lost.url, "orders", "--partition=0")) == (
        "there are no dead letters\n"
    )
    (letter,) = json.loads(done(invoke("dead-letter", "list", lost.url, "orders", "--json")))
    assert (letter["partition"], letter["sequence"], letter["rows"]) == (1, 1, 40)


def test_read(invoke: Invoke, lost: Lost) -> None:
    command = ("dead-letter", "read", lost.url, "orders", "--sequence=1")
    result = invoke(*command)
    assert result.exit_code == 1
    assert "✗ partition 1, batch 1, LSNs 2 to 41: cannot be read" in result.stdout
    assert "still cannot be read. NotFound" in result.stdout
    lost.restore()
    shown = done(invoke(*command, "--records=2"))
    assert "✓ partition 1, batch 1, LSNs 2 to 41: can be read by now, 40 records" in shown
    assert "000001" in shown
    (one,) = json.loads(done(invoke(*command, "--json", "--records=1")))
    assert (one["is_readable"], one["rows"], len(one["first_records"])) == (True, 40, 1)


def test_replay_says_that_offsets_are_new_and_appends_once(invoke: Invoke, lost: Lost) -> None:
    command = ("dead-letter", "replay", lost.url, "orders")
    failed = invoke(*command)
    assert failed.exit_code == 1
    assert "✗ partition 1, batch 1, LSNs 2 to 41: still cannot be read" in failed.stdout
    lost.restore()
    assert done(invoke(*command)) == (
        "✓ partition 1, batch 1, LSNs 2 to 41: 40 records appended to orders\n"
        "the records have new offsets, after all others of their partitions of orders; their "
        "former offsets stay lost\n"
    )
    again = done(invoke(*command))
    assert again.startswith(
        "– partition 1, batch 1, LSNs 2 to 41: appended to orders by an earlier"
    )
    assert values(invoke, lost.url) == ["before", *AGAIN, "after", *AGAIN]


def test_replay_into_another_stream(invoke: Invoke, lost: Lost) -> None:
    lost.restore()
    done(invoke("stream", "create", lost.url, "again", "--partitions=2"))
    command = ("dead-letter", "replay", lost.url, "orders", "--into=again", "--json")
    first, second = (json.loads(done(invoke(*command))) for _ in range(2))
    assert first == {
        "stream": "orders",
        "into": "again",
        "batches": [{"partition": 1, "sequence": 1, "records": 40, "is_repeated": False}],
    }
    assert second["batches"][0]["is_repeated"]
    assert values(invoke, lost.url, "again") == AGAIN
    assert values(invoke, lost.url) == ["before", *AGAIN, "after"]


def test_drop_asks_and_a_dry_run_deletes_nothing(
    invoke: Invoke, lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("dead-letter", "drop", lost.url, "orders")
    assert "NotFound" in done(invoke(*command, "--dry-run"))
    assert "use --yes" in error_of(invoke(*command))
    monkeypatch.setattr(terminal, "is_interactive", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _: False)
    assert invoke(*command).exit_code == 1
    assert len(json.loads(done(invoke("dead-letter", "list", lost.url, "orders", "--json")))) == 1
    asked: list[str] = []

    def agree(question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr("typer.confirm", agree)
    assert done(invoke(*command)) == "✓ dropped 1 dead letter of stream orders\n"
    assert asked == ["Permanently delete 1 dead letter of stream orders?"]
    assert json.loads(done(invoke("dead-letter", "list", lost.url, "orders", "--json"))) == []
    assert done(invoke(*command, "--yes")) == "there are no dead letters\n"


def test_drop_with_json_says_which(invoke: Invoke, lost: Lost) -> None:
    result = invoke("dead-letter", "drop", lost.url, "orders", "--sequence=1", "--yes", "--json")
    assert json.loads(done(result)) == {
        "stream": "orders",
        "dropped": [{"partition": 1, "sequence": 1}],
        "failed": [],
    }


@pytest.mark.parametrize("command", ["read", "replay", "drop"])
def test_a_letter_that_is_not_there_is_an_error(invoke: Invoke, lost: Lost, command: str) -> None:
    result = invoke("dead-letter", command, lost.url, "orders", "--sequence=7")
    assert "has no dead letter of batch 7" in error_of(result)
