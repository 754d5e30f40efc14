"""`headwater stream …`: what it says, what it changes, and when it asks."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from headwater.buffer.consumer import BlockingConsumer
from headwater.buffer.stream import DeletedReport, Stream, open_stream
from headwater.buffer.v1_batch import encode_batch
from headwater.buffer.v1_manifest import Manifest, encode_manifest
from headwater.cli.advice import command
from headwater.cli.app import app
from headwater.store import Register, open_store
from tests.cli.conftest import Invoke

COLUMNS = {"id": "int64 not null", "name": "string"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(COLUMNS))
    return path


def opened(url: str, name: str = "orders") -> Stream:
    async def run() -> Stream:
        async with open_store(url) as store:
            return await open_stream(store, name)

    return asyncio.run(run())


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(result: Result, status: int = 2) -> str:
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def test_create_makes_a_stream_and_says_what_it_will_cost(invoke: Invoke, url: str) -> None:
    out = done(invoke("stream", "create", url, "orders"))
    stream = opened(url)
    assert "✓ created stream orders" in out
    assert stream.id in out
    assert "7 days, once they are acknowledged" in out
    assert "free of charge here; on S3 about $26 a month for a producer" in out
    assert "$0.52 for an idle reader; for one partition, at list prices" in out


def test_the_estimate_counts_partitions(invoke: Invoke, url: str) -> None:
    out = done(invoke("stream", "create", url, "orders", "--partitions", "4"))
    assert "For all 4: up to $105 for a producer with keys, $2.07 for an idle reader" in out


def test_create_takes_settings_in_kafkas_words_too(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    out = done(
        invoke(
            *("stream", "create", url, "orders", "--partitions", "3", "--retention", "2d"),
            *("--set", "compression.type=zstd", "--set", "segment.bytes=8MiB"),
            *("--schema", str(schema_file)),
        )
    )
    stream = opened(url)
    assert (stream.partitions, stream.config.retention_ms) == (3, 172_800_000)
    assert (stream.config.compression, stream.config.segment_bytes) == ("zstd", 8 * 2**20)
    assert stream.schema is not None
    assert stream.schema.names == ["id", "name"]
    assert "native, zstd" in out
    assert "version 1, 2 columns" in out


def test_create_in_the_published_format(invoke: Invoke, url: str) -> None:
    out = done(invoke("stream", "create", url, "orders", "--format", "v1"))
    assert "any columns" not in out
    assert "this format has no columns" in out
    assert opened(url).config.format == "v1"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_a_schema_is_taken_from_a_file_that_has_one(
    invoke: Invoke, url: str, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"rows.{kind}"
    table = pa.table({"id": pa.array([1], pa.uint8()), "at": pa.array([1], pa.timestamp("ms"))})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        write = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with write(path, table.schema) as writer:
            writer.write_table(table)
    done(invoke("stream", "create", url, "orders", "--schema", str(path)))
    assert opened(url).schema == pa.schema([("id", pa.int16()), ("at", pa.timestamp("us"))])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no schema"),
        (b"PAR1 not really", "holds no schema"),
        (b'{"id": ', "holds no schema"),
        (b'{"id": 1}', "the type of 'id' is not text"),
        (b'{"id": "int64", "id": "int32"}', "appears more than once"),
        (b'{"id": "intt"}', "'intt' is not known"),
        (b"{}", "at least one column"),
    ],
)
def test_a_file_without_a_schema_is_refused(
    invoke: Invoke, url: str, tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "schema"
    path.write_bytes(content)
    assert says in error_of(invoke("stream", "create", url, "orders", "--schema", str(path)))
    missing = invoke("stream", "create", url, "orders", "--schema", str(tmp_path / "nothing"))
    assert "cannot be read" in error_of(missing)


def test_creating_what_exists_is_refused_unless_it_is_welcome(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "'orders' exists" in error_of(invoke("stream", "create", url, "orders"))
    assert "✓ there already" in done(invoke("stream", "create", url, "orders", "--exists-ok"))
    other = invoke("stream", "create", url, "orders", "--exists-ok", "--partitions", "2")
    assert "partitions  is 1, and 2 was asked for" in error_of(other)


@pytest.mark.parametrize(
    "arguments", [["--retention", "5"], ["--set", "retention=5"], ["--set", "retention=1.5"]]
)
def test_a_retention_names_its_unit(invoke: Invoke, url: str, arguments: list[str]) -> None:
    assert "name a unit" in error_of(invoke("stream", "create", url, "orders", *arguments))
    assert "no stream" in error_of(invoke("stream", "describe", url, "orders"))


@pytest.mark.parametrize(
    ("setting", "kept_ms"),
    [
        ("retention=0", 0),
        ("retention=-1", -1),
        ("retention=5d", 432_000_000),
        ("retention.ms=5", 5),
        ("retention_ms=5", 5),
    ],
)
def test_a_retention_whose_unit_is_known(
    invoke: Invoke, url: str, setting: str, kept_ms: int
) -> None:
    done(invoke("stream", "create", url, "orders", "--set", setting))
    assert opened(url).config.retention_ms == kept_ms


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
    assert "nobody yet" in text


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "retention.msec=1"], "did you mean retention.ms?"),
        (["--set", "min.insync.replicas=2"], "there are no replicas"),
        (["--set", "retention"], "NAME=VALUE"),
        (["--set", "name=x"], "name is not a setting"),
        (["--set", "partitions=2", "--partitions", "2"], "partitions is given twice"),
        (["--set", "retention.ms=2d", "--retention", "2d"], "are the same setting"),
        (["--retention", "soon"], "expected 7d"),
        (["--partitions", "0"], "partitions"),
        (["--format", "v9"], "native or v1"),
    ],
)
def test_a_setting_that_cannot_be_is_explained(
    invoke: Invoke, url: str, arguments: list[str], says: str
) -> None:
    assert says in error_of(invoke("stream", "create", url, "orders", *arguments))
    assert "there are no streams" in error_of(invoke("stream", "list", url), 1)


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
            await (await open_stream(store, "orders")).taker(1).open("reports")

    asyncio.run(consume())
    out = done(invoke("stream", "describe", url, "orders"))
    rows = [line.split() for line in out.splitlines()]
    assert ["id", "int64", "not", "null", "version", "1"] in rows
    assert ["0", "0", "0", "0", "B", "0", "1", "0", "nobody", "yet"] in rows
    assert ["1", "0", "0", "0", "B", "0", "1", "1", "reports"] in rows
    found = json.loads(done(invoke("stream", "describe", url, "orders", "--json")))
    assert found["schemas"][0]["columns"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert [queue["group"] for queue in found["queues"]] == ["", "reports"]
    assert found["queues"][1]["epoch"] == 1


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


def test_alter_says_what_it_changed_and_what_more_partitions_mean(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    done(invoke("stream", "create", url, "orders", "--schema", str(schema_file)))
    schema_file.write_text(json.dumps({**COLUMNS, "note": "string"}))
    arguments = ("--partitions", "2", "--retention", "forever", "--schema", str(schema_file))
    out = done(invoke("stream", "alter", url, "orders", *arguments))
    assert "partitions: 1 → 2" in out
    assert "retention_ms: 7 days → for ever" in out
    assert "schema: version 2, 3 columns" in out
    assert "may land on another partition" in out
    assert opened(url).schema_version == 2
    again = done(invoke("stream", "alter", url, "orders", *arguments))
    assert "nothing to change" in again


def test_an_incompatible_schema_is_refused_with_the_difference(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    done(invoke("stream", "create", url, "orders", "--schema", str(schema_file)))
    schema_file.write_text(json.dumps({"id": "string"}))
    text = error_of(invoke("stream", "alter", url, "orders", "--schema", str(schema_file)))
    assert "id    int64 not null → string: not a wider type" in text
    assert "name  string → missing" in text
    assert opened(url).schema_version == 1


def test_delete_refuses_where_nobody_can_be_asked(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "say --yes" in error_of(invoke("stream", "delete", url, "orders"))
    assert opened(url).name == "orders"


def test_delete_asks_nobody_about_what_is_not_there(
    invoke: Invoke, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "there is no stream 'nope'" in error_of(invoke("stream", "delete", url, "nope"))
    monkeypatch.setattr("headwater.cli.stream_commands.is_terminal", lambda: True)
    result = CliRunner().invoke(app, ["stream", "delete", url, "nope"], input=b"y\n")
    assert (result.exit_code, "Delete" in result.output) == (2, False)
    (tmp_path / "store/streams/orders/stream.json").write_bytes(b"{")
    assert "--damaged" in error_of(invoke("stream", "delete", url, "orders"))


def test_a_schema_file_may_begin_with_a_byte_order_mark(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    schema_file.write_text(schema_file.read_text(), "utf-8-sig")
    done(invoke("stream", "create", url, "orders", "--schema", str(schema_file)))
    assert opened(url).schema_version == 1


@pytest.mark.parametrize(("answer", "status"), [(b"n\n", 1), (b"y\n", 0)])
def test_delete_asks_on_a_terminal(
    invoke: Invoke, url: str, answer: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(invoke("stream", "create", url, "orders"))
    monkeypatch.setattr("headwater.cli.stream_commands.is_terminal", lambda: True)
    result = CliRunner().invoke(app, ["stream", "delete", url, "orders"], input=answer)
    assert "Delete stream orders and all of its records" in result.output
    assert result.exit_code == status
    assert (invoke("stream", "list", url).exit_code == 0) == bool(status)


def test_delete_says_what_went(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    out = done(invoke("stream", "delete", url, "orders", "--yes"))
    assert "✓ deleted stream orders: 4 objects" in out
    assert "went on deleting" in done(invoke("stream", "delete", url, "orders", "-y"))
    text = error_of(invoke("stream", "describe", url, "orders"))
    assert "'orders' was deleted" in text
    assert "there is no stream" in error_of(invoke("stream", "delete", url, "other", "--yes"))


def test_delete_says_what_is_left(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def partly(*_: object, **more: object) -> DeletedReport:
        return DeletedReport("orders", "x", objects=5, failed=2, cause="500 InternalError")

    monkeypatch.setattr("headwater.cli.stream_deletion.delete_stream", partly)
    result = invoke("stream", "delete", url, "orders", "--yes")
    assert result.exit_code == 1
    assert "2 objects may still be there: delete it once more (500 InternalError)" in result.stdout


def foreign_queue(url: str, *, taken: int) -> None:
    """A published queue of three batches, of which another consumer took some."""
    folder = Path(url.removeprefix("file://")) / "streams/orders/0/ingest"
    folder.mkdir(parents=True)
    manifest = Manifest()
    for number in range(3):
        location = f"streams/orders/0/ingest/{number}.batch"
        (folder / f"{number}.batch").write_bytes(encode_batch([b"value %d" % number]))
        manifest = manifest.appended([(location, ())])
    left = manifest.dequeued(taken - 1) if taken else manifest
    (folder / "manifest").write_bytes(encode_manifest(left))


def test_a_queue_that_was_consumed_elsewhere_is_adopted_by_the_command_that_is_named(
    invoke: Invoke, url: str
) -> None:
    foreign_queue(url, taken=2)
    said = error_of(invoke("stream", "create", url, "orders", "--format=v1"))
    named = f"stream adopt {url} orders --partition 0"
    assert f"`{command()} {named}`" in said
    said = done(invoke(*named.split()))
    assert said == (
        "partition 0 begins at sequence 2; 2 batches that another consumer took: left out\n"
    )
    assert done(invoke("read", url, "orders")) == "value 2\n"
    # Nothing more to adopt: nothing changes, in any partition.
    assert done(invoke("stream", "adopt", url, "orders")) == "partition 0 begins at sequence 2\n"


def test_objects_that_other_software_named_are_counted_when_they_are_left(
    invoke: Invoke, url: str
) -> None:
    foreign_queue(url, taken=0)
    done(invoke("stream", "create", url, "orders", "--format=v1", "--set=retention_ms=0"))
    with BlockingConsumer.open(url, "orders", gc=False) as consumer:
        for _ in range(3):
            consumer.next_batch()
        consumer.ack_through(2)
    assert re.search(
        r"left +3  batches: .* named by other software", done(invoke("gc", url, "orders"))
    )
    assert "named by other software" not in done(invoke("gc", url, "orders"))


def test_only_a_published_stream_is_adopted(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "nothing to adopt" in error_of(invoke("stream", "adopt", url, "orders"))
    done(invoke("stream", "create", url, "old", "--format=v1"))
    assert "not 7" in error_of(invoke("stream", "adopt", url, "old", "--partition=7"))


@pytest.mark.parametrize("copied", [True, False])
def test_a_stream_whose_register_is_damaged_can_be_deleted_by_the_command_that_is_named(
    invoke: Invoke, url: str, tmp_path: Path, copied: bool
) -> None:
    for name in ("orders", "other"):
        done(invoke("stream", "create", url, name))
    (tmp_path / "lines").write_text("a\n")
    done(invoke("produce", url, "orders", str(tmp_path / "lines")))
    assert "can be read" in error_of(
        invoke("stream", "delete", url, "orders", "--yes", "--damaged")
    )
    folder = tmp_path / "store/streams/orders"
    others = (tmp_path / "store/streams/other/stream.json").read_bytes()
    (folder / "stream.json").write_bytes(others if copied else b"{")
    named = f"stream delete {url} orders --damaged"
    assert named in error_of(invoke("stream", "delete", url, "orders", "--yes"))
    assert "✓ deleted stream orders" in done(invoke(*named.split(), "--yes"))
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / "stream.json"]
    assert "was deleted" in error_of(invoke("read", url, "orders"))
    done(invoke("stream", "create", url, "orders"))
    done(invoke("stream", "delete", url, "orders", "--yes"))


def test_a_stream_in_memory_is_refused_since_it_would_be_gone(invoke: Invoke) -> None:
    assert "gone when this command ends" in error_of(invoke("stream", "create", "memory://", "a"))


def test_an_address_with_nothing_behind_it_is_told_from_an_empty_store(
    invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name, why in (("file", "is not a directory"), ("mistyped", "does not exist")):
        for words in (("stream", "list"), ("store", "ls")):
            said = error_of(invoke(*words, f"file://{tmp_path}/{name}"), 1)
            assert f"{tmp_path}/{name} {why}" in said
    said = error_of(invoke("stream", "list", f"file://{tmp_path}/folder"), 1)
    assert said == "there are no streams here\n"
