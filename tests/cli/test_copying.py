"""What `headwater read` writes, `headwater produce` takes: a stream is copied by a pipe."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.blocking import read
from headwater.buffer.producer import BlockingProducer
from headwater.buffer.stream import create_stream
from headwater.core.errors import Refused
from headwater.store import open_store
from tests.cli.conftest import Invoke

COLUMNS = ["_value", "_key", "_headers", "_timestamp", "_operation"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two streams, one of them with records of all kinds."""
    url = f"file://{tmp_path}/store"

    async def make() -> None:
        async with open_store(url) as store:
            for name in ("old", "new"):
                await create_stream(store, name, linger_ms=1)

    asyncio.run(make())
    with BlockingProducer(url, "old") as producer:
        producer.produce(
            [b"a", b"\xff\0", None],
            keys=[b"k", None, b"\xfe"],
            headers=[{"h": b"v"}, None, {"x": b"\xff"}],
            operations=["insert", "update", "delete"],
        )
    return url


def rows(url: str, name: str, columns: list[str] | None = COLUMNS) -> list[dict[str, Any]]:
    with read(url, name, columns=columns) as reader:
        found: list[dict[str, Any]] = reader.to_table().to_pylist()
        return found


def piped(url: str, format: str, *arguments: str) -> bytes:
    """What `read … | produce …` says on standard error; both are processes, as in a shell."""
    source = str(Path(headwater.__path__[0]).parent)
    command = [sys.executable, "-m", "headwater.cli"]
    env = {**os.environ, "PYTHONPATH": source}
    with subprocess.Popen(
        [*command, "read", url, "old", f"--format={format}"], stdout=subprocess.PIPE, env=env
    ) as reading:
        produced = subprocess.run(
            [*command, "produce", url, "new", *arguments],
            stdin=reading.stdout,
            capture_output=True,
            env=env,
            timeout=120,
        )
    return produced.stderr


@pytest.mark.parametrize(
    ("format", "arguments"), [("json", ("--json",)), ("arrow", ("--arrow", "-"))]
)
def test_a_stream_is_copied_by_a_pipe(url: str, format: str, arguments: tuple[str, ...]) -> None:
    assert piped(url, format, *arguments) == b""
    assert rows(url, "new") == rows(url, "old")


def test_a_stream_is_copied_by_a_parquet_file(invoke: Invoke, url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "copy")
    assert invoke("read", url, "old", "--format=parquet", "--output", file).exit_code == 0
    assert invoke("produce", url, "new", "--parquet", file).exit_code == 0
    assert rows(url, "new") == rows(url, "old")
    assert invoke("produce", url, "new", "--parquet", "-").exit_code == 2


def test_a_file_that_is_read_from_its_end_is_nothing_for_a_pipe(url: str, tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    with pa.OSFile(str(tmp_path / "file"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as to:
        to.write_table(table)
    source = str(Path(headwater.__path__[0]).parent)
    produced = subprocess.run(
        [sys.executable, "-m", "headwater.cli", "produce", url, "new", "--arrow"],
        input=(tmp_path / "file").read_bytes(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=120,
    )
    assert produced.returncode == 2
    assert b"name the file, or send an Arrow stream" in produced.stderr


def test_columns_that_say_where_a_record_stood_are_not_carried(url: str) -> None:
    kafka = {"_topic": "t", "_offset": 7, "_timestampType": 0}
    with BlockingProducer(url, "new") as producer:
        producer.produce_rows([{"id": 1, "_lsn": 5, "_partition": 0, "_sequence": 3, **kafka}])
        with pytest.raises(Refused, match="columns with positions of records"):
            producer.produce_rows([{"_lsn": 5}])
    (row,) = rows(url, "new", None)
    assert (row["id"], row["_lsn"], row["_sequence"]) == (1, 1, 0)
    assert not row.keys() & kafka.keys()


@pytest.mark.parametrize(
    ("schema", "line", "found"),
    [
        ({"b": "binary"}, '{"b":{"base64":"//4="}}', b"\xff\xfe"),
        ({"b": "list<binary>"}, '{"b":["text",{"base64":"//4="}]}', [b"text", b"\xff\xfe"]),
        (None, '{"b":{"base64":"//4="}}', b"\xff\xfe"),
        (None, '{"b":{"base64":"no digits"}}', {"base64": "no digits"}),
        ({"b": "struct<base64: string>"}, '{"b":{"base64":"//4="}}', {"base64": "//4="}),
    ],
)
def test_bytes_in_json_are_base64_unless_the_schema_says_otherwise(
    invoke: Invoke, url: str, tmp_path: Path, schema: Any, line: str, found: object
) -> None:
    async def make() -> None:
        async with open_store(url) as store:
            await create_stream(store, "typed", schema=schema)

    asyncio.run(make())
    (tmp_path / "rows").write_text(f"{line}\n")
    done = invoke("produce", url, "typed", "--json", str(tmp_path / "rows"))
    assert done.exit_code == 0, done.stderr
    assert rows(url, "typed", ["b"]) == [{"b": found}]


@pytest.mark.parametrize(
    "line", ['{"a":1,"a":2}', '{"s":{"x":"a:b","x":1}}', '{"a":1,"\\u0061":2}']
)
def test_a_key_that_stands_twice_in_an_object_is_refused(
    invoke: Invoke, url: str, tmp_path: Path, line: str
) -> None:
    good = '{"a":1,"t":"a:b\\\\","u":"\\"x\\": 1"}'
    (tmp_path / "rows").write_text(f"{good}\n{line}\n")
    done = invoke("produce", url, "new", "--json", str(tmp_path / "rows"))
    assert done.exit_code == 2
    assert "line 2 names a column, or a field of one, twice" in done.stderr
    assert len(rows(url, "new", ["a"])) == 1
