"""`headwater stream create`: what it makes, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Invoke
from tests.cli.stream.given import done, error_of, opened


def test_create_makes_a_stream_and_says_what_it_will_cost(invoke: Invoke, url: str) -> None:
    out = done(invoke("stream", "create", url, "orders"))
    stream = opened(url)
    assert "✓ created stream orders" in out
    assert stream.id in out
    assert re.search(r"records stay +7 days$", out, re.MULTILINE)
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
    refused = error_of(invoke("stream", "create", url, "orders"))
    assert "'orders' exists" in refused
    assert "--exists-ok" in refused
    assert "✓ exists already" in done(invoke("stream", "create", url, "orders", "--exists-ok"))
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


def test_a_schema_file_may_begin_with_a_byte_order_mark(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    schema_file.write_text(schema_file.read_text(), "utf-8-sig")
    done(invoke("stream", "create", url, "orders", "--schema", str(schema_file)))
    assert opened(url).schema_version == 1


def test_a_stream_in_memory_is_refused_since_it_would_be_gone(invoke: Invoke) -> None:
    assert "lost when this command ends" in error_of(invoke("stream", "create", "memory://", "a"))


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


def test_a_required_group_is_set_and_taken_away(invoke: Invoke, url: str) -> None:
    made = invoke("stream", "create", url, "orders", "--required-group=billing")
    assert "7 days, and until group billing has processed them" in made.stdout
    changed = invoke("stream", "alter", url, "orders", "--required-group=none")
    assert "required_group: billing → none" in changed.stdout
    assert opened(url).config.required_group is None
    wrong = invoke("stream", "alter", url, "orders", "--required-group=a/b")
    assert (wrong.exit_code, "'a/b' is not a valid group name" in wrong.stderr) == (
        2,
        True,
    )
