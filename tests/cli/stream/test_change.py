"""`headwater stream alter`, `delete` and `adopt`: what they change, and when they ask."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.blocking import create_stream, delete_stream
from headwater.buffer.consumer import BlockingConsumer
from headwater.buffer.queue.v1.batch_format import encode_batch
from headwater.buffer.queue.v1.manifest_format import Manifest, encode_manifest
from headwater.buffer.stream import DeletedReport
from headwater.cli.advice import command
from headwater.cli.app import app
from tests.cli.conftest import Invoke
from tests.cli.stream.given import COLUMNS, done, error_of, opened


def test_alter_says_what_it_changed_and_what_more_partitions_mean(
    invoke: Invoke, url: str, schema_file: Path
) -> None:
    done(invoke("stream", "create", url, "orders", "--schema", str(schema_file)))
    schema_file.write_text(json.dumps({**COLUMNS, "note": "string"}))
    arguments = ("--partitions", "2", "--retention", "forever", "--schema", str(schema_file))
    out = done(invoke("stream", "alter", url, "orders", *arguments))
    assert "partitions: 1 → 2" in out
    assert "retention_ms: 7 days → forever" in out
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
    assert "use --yes" in error_of(invoke("stream", "delete", url, "orders"))
    assert opened(url).name == "orders"


def test_delete_asks_nobody_about_what_is_not_there(
    invoke: Invoke, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(invoke("stream", "create", url, "orders"))
    assert "there is no stream 'nope'" in error_of(invoke("stream", "delete", url, "nope"))
    monkeypatch.setattr("headwater.cli.terminal.is_interactive", lambda: True)
    result = CliRunner().invoke(app, ["stream", "delete", url, "nope"], input=b"y\n")
    assert (result.exit_code, "Delete" in result.output) == (2, False)
    (tmp_path / "store/streams/orders/stream.json").write_bytes(b"{")
    assert "--damaged" in error_of(invoke("stream", "delete", url, "orders"))


@pytest.mark.parametrize(("answer", "status"), [(b"n\n", 1), (b"y\n", 0)])
def test_delete_asks_on_a_terminal(
    invoke: Invoke, url: str, answer: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(invoke("stream", "create", url, "orders"))
    monkeypatch.setattr("headwater.cli.terminal.is_interactive", lambda: True)
    result = CliRunner().invoke(app, ["stream", "delete", url, "orders"], input=answer)
    assert "Permanently delete stream orders and all of its records" in result.output
    assert result.exit_code == status
    assert (invoke("stream", "list", url).exit_code == 0) == bool(status)


def test_delete_of_another_stream_than_the_one_confirmed_is_refused(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(invoke("stream", "create", url, "orders"))

    def confirm(question: str, *, unasked: str) -> None:
        delete_stream(url, "orders")
        create_stream(url, "orders")

    monkeypatch.setattr("headwater.cli.terminal.is_interactive", lambda: True)
    monkeypatch.setattr("headwater.cli.stream_commands.confirm", confirm)
    said = error_of(invoke("stream", "delete", url, "orders"))
    assert "was deleted and created again" in said
    assert opened(url).name == "orders"


def test_delete_says_what_went(invoke: Invoke, url: str) -> None:
    done(invoke("stream", "create", url, "orders"))
    out = done(invoke("stream", "delete", url, "orders", "--yes"))
    assert "✓ deleted stream orders: 4 objects" in out
    assert "continued deleting" in done(invoke("stream", "delete", url, "orders", "-y"))
    text = error_of(invoke("stream", "describe", url, "orders"))
    assert "'orders' was deleted" in text
    assert "there is no stream" in error_of(invoke("stream", "delete", url, "other", "--yes"))


def test_delete_says_what_is_left(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def partly(*_: object, **more: object) -> DeletedReport:
        return DeletedReport("orders", "x", objects=5, failed=2, cause="500 InternalError")

    monkeypatch.setattr("headwater.cli.tier_partitions.delete_stream", partly)
    result = invoke("stream", "delete", url, "orders", "--yes")
    assert result.exit_code == 1
    assert "2 objects may still be there: delete it again (500 InternalError)" in result.stdout


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
        "partition 0 begins at sequence 2, LSN 1; 2 batches that another consumer took: left out\n"
    )
    assert done(invoke("read", url, "orders")) == "value 2\n"
    # Nothing more to adopt: nothing changes, in any partition.
    assert (
        done(invoke("stream", "adopt", url, "orders"))
        == "partition 0 begins at sequence 2, LSN 1\n"
    )


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
