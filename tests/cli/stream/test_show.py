"""`headwater stream list` and `describe`, also of what cannot be read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer.producer import Producer
from headwater.buffer.stream import open_stream
from headwater.store import Register, open_store
from tests.cli.conftest import Invoke
from tests.cli.stream.given import done


def test_a_stream_that_cannot_be_read_is_listed_and_tells_in_the_status(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        done(invoke("stream", "create", url, name))
    (tmp_path / "store/streams/bad/stream.json").write_bytes(b"{")
    for arguments in ((), ("--json",)):
        result = invoke("stream", "list", url, *arguments)
        assert result.exit_code == 1
        assert "good" in result.stdout
        assert "bad" in result.stdout


@pytest.mark.parametrize("columns", ["40", "80"])
def test_tables_are_readable_on_a_narrow_screen(invoke: Invoke, url: str, columns: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    listed = done(invoke("stream", "list", url, COLUMNS=columns))
    described = done(invoke("stream", "describe", url, "orders", COLUMNS=columns))
    assert "…" not in listed + described
    table = [line for line in listed.splitlines() if line.strip()]
    assert all(len(line) <= int(columns) for line in table)
    if columns == "80":
        assert [line.split()[0] for line in table] == ["stream", "orders"]
        assert table[1].endswith(" UTC")
    text = " ".join(described.split())
    for heading in ("partition", "pending", "records", "bytes", "retained", "next LSN", "epoch"):
        assert heading in text
    assert "none yet" in text


def test_lines_in_a_pipe_end_where_their_words_end(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    for arguments in (
        ("stream", "list", url),
        ("stream", "describe", url, "orders"),
        ("lag", url, "orders"),
        ("gc", url, "orders"),
        ("inspect", "queue", url, "--stream=orders"),
    ):
        lines = done(invoke(*arguments)).splitlines()
        assert [line for line in lines if line != line.rstrip()] == []


def test_list_has_a_line_for_each_stream(invoke: Invoke, url: str) -> None:
    for name in ("orders", "clicks", "gone"):
        done(invoke("stream", "create", url, name, "--partitions", "2"))
    done(invoke("stream", "delete", url, "gone", "--yes"))
    lines = done(invoke("stream", "list", url)).splitlines()
    assert [line.split()[0] for line in lines] == ["stream", "clicks", "orders"]
    assert "7 days" in lines[1]
    found = json.loads(done(invoke("stream", "list", url, "--json")))
    assert [stream["name"] for stream in found] == ["clicks", "orders"]


def test_list_shows_the_others_when_one_takes_later_software(invoke: Invoke, url: str) -> None:
    for name in ("orders", "clicks"):
        done(invoke("stream", "create", url, name))
    _rewrite(url, "clicks", reader_version=9, needs_release="3.0.0")
    listed = invoke("stream", "list", url)
    assert listed.exit_code == 1
    out = listed.stdout
    assert "orders" in out
    assert "clicks: to read stream 'clicks' takes stream format 9" in out
    assert "upgrade to headwater 3.0.0" in out


def _rewrite(url: str, name: str, **changes: Any) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            register = Register(store, f"streams/{name}/stream.json", dict[str, Any])
            await register.update(lambda now: {**(now or {}), **changes})

    asyncio.run(run())


def test_describe_says_what_a_stream_is_and_how_it_stands(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    create = ("stream", "create", url, "orders", "--partitions", "2")
    done(invoke(*create, "--schema", str(schema_file)))

    async def consume() -> None:
        async with open_store(url) as store:
            await (await open_stream(store, "orders")).queue_consumer(1).open("reports")

    asyncio.run(consume())
    out = done(invoke("stream", "describe", url, "orders"))
    rows = [line.split() for line in out.splitlines()]
    assert ["id", "int64", "not", "null", "declared", "version", "1"] in rows
    assert ["0", "0", "0", "0", "B", "0", "1", "0", "none", "yet"] in rows
    assert ["1", "0", "0", "0", "B", "0", "1", "1", "reports"] in rows
    found = json.loads(done(invoke("stream", "describe", url, "orders", "--json")))
    assert found["schemas"][0]["columns"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert [queue["group"] for queue in found["queues"]] == ["", "reports"]
    assert found["queues"][1]["epoch"] == 1


def test_describe_says_which_columns_were_inferred(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "none yet" in done(invoke("stream", "describe", url, "orders"))

    async def produce() -> None:
        async with open_store(url) as store, Producer(store, "orders") as producer:
            await producer.produce_rows([{"id": 1, "name": "n"}])

    asyncio.run(produce())
    rows = [line.split() for line in done(invoke("stream", "describe", url, "orders")).splitlines()]
    assert ["id", "int64", "inferred", "version", "1"] in rows
    assert ["name", "string", "inferred", "version", "1"] in rows


def test_describe_shows_a_partition_that_cannot_be_read(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    done(invoke("stream", "create", url, "orders", "--partitions", "2"))
    for path in sorted((tmp_path / "store" / "streams" / "orders" / "1").rglob("*")):
        if path.is_file():
            path.unlink()
    result = invoke("stream", "describe", url, "orders")
    assert result.exit_code == 1
    assert "see below" in result.stdout
    assert "partition 1: " in result.stdout
    found = invoke("stream", "describe", url, "orders", "--json")
    assert found.exit_code == 1
    assert "error" in json.loads(found.stdout)["queues"][1]


def test_describe_says_since_when_a_column_is_there_and_what_changed_it(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    def declare(columns: str) -> None:
        (tmp_path / "schema").write_text(columns)
        done(invoke("stream", "alter", url, "events", "--schema", str(tmp_path / "schema")))

    done(invoke("stream", "create", url, "events"))
    (tmp_path / "rows").write_text('{"id":1}\n')
    done(invoke("produce", url, "events", str(tmp_path / "rows"), "--json"))
    declare('{"id":"int64","n":"int32"}')
    declare('{"id":"int64","n":"int64","new":"string"}')
    shown = done(invoke("stream", "describe", url, "events"))
    assert "id      int64   declared  version 1, declared in version 2\n" in shown
    assert "n       int64   declared  version 2, int64 in version 3\n" in shown
    assert "new     string  declared  version 3\n" in shown
