"""`headwater produce` of files whose names are not UTF-8: a name is bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Invoke, Run
from tests.cli.data.given import lines

TABLE = pa.table({"id": [1, 2]})


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "json", "lines"])
def test_a_file_is_read_whatever_bytes_its_name_has(
    invoke: Invoke, url: str, tmp_path: Path, kind: str
) -> None:
    path = os.fsencode(tmp_path) + b"/M\xfcller"
    with open(path, "wb") as file:
        if kind == "parquet":
            pq.write_table(TABLE, file)
        elif kind == "arrow":
            with pa.ipc.new_file(file, TABLE.schema) as writer:
                writer.write_table(TABLE)
        else:
            file.write(b'{"id":1}\n{"id":2}\n' if kind == "json" else b"id\n1\n2\n")
    flags = [] if kind == "lines" else [f"--{kind}"]
    done = invoke("produce", url, "events", os.fsdecode(path), *flags)
    assert done.exit_code == 0, done.output
    assert len(lines(url)) == (3 if kind == "lines" else 2)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "json"])
def test_an_error_shows_such_a_name(invoke: Invoke, url: str, tmp_path: Path, kind: str) -> None:
    done = invoke("produce", url, "events", _not_a_file_of_ours(tmp_path), f"--{kind}")
    assert done.exit_code == 2
    assert "M\\udcfcller" in done.stderr


def test_a_process_is_given_and_shows_such_a_name(
    headwater_command: Run, url: str, tmp_path: Path
) -> None:
    done = headwater_command("produce", url, "events", _not_a_file_of_ours(tmp_path), "--parquet")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"M?ller" in done.stderr


def _not_a_file_of_ours(folder: Path) -> str:
    path = os.fsencode(folder) + b"/M\xfcller"
    with open(path, "wb") as file:
        file.write(b"\xff\xff\n\xff")
    return os.fsdecode(path)


@pytest.mark.parametrize("kind", ["json", "parquet", "arrow"])
def test_a_schema_file_may_have_such_a_name(
    invoke: Invoke, url: str, tmp_path: Path, kind: str
) -> None:
    path = os.fsencode(tmp_path) + b"/schema\xff"
    with open(path, "wb") as file:
        if kind == "parquet":
            pq.write_table(TABLE, file)
        elif kind == "arrow":
            with pa.ipc.new_file(file, TABLE.schema) as writer:
                writer.write_table(TABLE)
        else:
            file.write(b'{"id": "int64"}')
    done = invoke("stream", "create", url, "typed", "--schema", os.fsdecode(path))
    assert done.exit_code == 0, done.output
