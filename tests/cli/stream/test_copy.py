"""`headwater stream copy` copies a stream, goes on with a copy that was cut off, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.buffer import copying
from headwater.core.errors import Unavailable
from tests.cli.conftest import Invoke
from tests.cli.stream.given import done, error_of, opened


@pytest.fixture
def filled(invoke: Invoke, url: str, tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": {n}, "_key": "k{n % 7}"}}\n' for n in range(100)))
    done(invoke("stream", "create", url, "orders", "--partitions=3"))
    done(invoke("produce", url, "orders", str(rows), "--json"))
    return url


def shown(invoke: Invoke, url: str, name: str) -> str:
    columns = "id,_key,_timestamp,_lsn,_partition"
    return done(invoke("read", url, name, "--format=json", f"--columns={columns}"))


def test_a_copy_in_the_same_store_and_in_another(
    invoke: Invoke, filled: str, tmp_path: Path
) -> None:
    for there in (filled, f"file://{tmp_path}/elsewhere"):
        result = invoke("stream", "copy", filled, "orders", there, "backup")
        assert done(result) == "✓ copied 100 records of stream orders into backup\n"
        assert shown(invoke, there, "backup") == shown(invoke, filled, "orders")
        assert opened(there, "backup").schema == opened(filled).schema


def test_s3(invoke: Invoke, filled: str, fresh_s3_url: object, ministack: object) -> None:
    there = fresh_s3_url()  # type: ignore[operator]
    env = dict(ministack.env)  # type: ignore[attr-defined]
    done(invoke("stream", "copy", filled, "orders", there, "backup", **env))
    columns = ("--format=json", "--columns=id,_key,_timestamp,_lsn,_partition")
    copied = done(invoke("read", there, "backup", *columns, **env))
    assert copied == shown(invoke, filled, "orders")
    truncated = invoke("stream", "truncate", there, "backup", "--before=latest", "--yes", **env)
    assert done(truncated).count("✓") == 3


def test_a_copy_that_was_cut_off_goes_on(
    invoke: Invoke, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copying._PartitionRun.partition

    async def fails(self: copying._PartitionRun, number: int, *args: object) -> copying.CopyResult:
        if number == 2:
            raise Unavailable("no route to host")
        return await whole(self, number, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(copying._PartitionRun, "partition", fails)
    command = ("stream", "copy", filled, "orders", filled, "backup")
    said = error_of(invoke(*command))
    assert "no route to host" in said
    assert "interrupted: the same command with --resume continues" in said
    monkeypatch.undo()
    assert "exists" in error_of(invoke(*command))
    result = json.loads(done(invoke(*command, "--resume", "--json")))
    counts = [(one["records"] > 0, one["before"] > 0) for one in result["partitions"]]
    assert counts == [(False, True), (False, True), (True, False)]
    assert shown(invoke, filled, "backup") == shown(invoke, filled, "orders")
    again = done(invoke(*command, "--resume"))
    assert again == "✓ copied 0 records of stream orders into backup, after 100 of earlier runs\n"


def test_a_copy_of_a_damaged_stream_advises_what_a_copy_can_do(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("x" * 40_000 + "\n")
    done(invoke("stream", "create", url, "orders"))
    done(invoke("produce", url, "orders", str(lines)))
    root = Path(url.removeprefix("file://"))
    [batch] = root.glob("streams/orders/0/ingest/*/batches/*")
    kept = batch.read_bytes()
    batch.write_bytes(kept[:100] + bytes([kept[100] ^ 1]) + kept[101:])
    command = ("stream", "copy", url, "orders", url, "backup")
    said = error_of(invoke(*command))
    assert batch.name in said
    assert "a copy skips nothing: restore the object, and continue with --resume" in said
    assert "--skip-unreadable shows what follows" not in said
    assert "on_bad_batch" not in said
    assert "resume=True" not in said
    batch.write_bytes(kept)
    assert "copied 1 records" in done(invoke(*command, "--resume"))


def test_what_cannot_be_copied_is_refused(invoke: Invoke, filled: str) -> None:
    command = ("stream", "copy", filled)
    assert "'nowhere'" in error_of(invoke(*command, "nowhere", filled, "backup"))
    assert "memory://" in error_of(invoke(*command, "orders", "memory://", "backup"))
    assert "the source itself" in error_of(invoke(*command, "orders", filled, "orders", "--resume"))
