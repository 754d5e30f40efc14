"""PostgreSQL beside the spool: rows come in by COPY, changes go out through a pgoutput slot."""

from __future__ import annotations

import getpass
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Final

import pyarrow as pa

from bench._report import Section
from headwater.core import portal
from headwater.log.spool import Spool, SpoolConfig

BINARIES: Final = "/usr/lib/postgresql/*/bin"
ACCOUNT: Final = "postgres"
"""Who runs the server where this is run by root, which PostgreSQL refuses to be run by."""
SLOT: Final = "bench"
PORT: Final = "5432"
"""Only the name of a socket in a folder of its own: the server listens on no network."""


class Missing(Exception):
    """There is no PostgreSQL to compare with."""


class Postgres:
    """A server of its own in a folder of its own, with one table, one publication and one slot."""

    def __init__(self, folder: Path) -> None:
        self._binaries = _binaries()
        self._account = ACCOUNT if getpass.getuser() == "root" else None
        self._folder = folder
        folder.mkdir()
        if self._account is not None:
            try:
                shutil.chown(folder, self._account)
            except LookupError as error:
                raise Missing(f"root cannot run it, and there is no account {ACCOUNT}") from error
        self.version = self._run("postgres", "--version").strip()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The server, until the block ends."""
        data, log = str(self._folder / "data"), str(self._folder / "log")
        self._run("initdb", "-D", data, "--no-sync", "--auth=trust", "-U", "bench")
        settings = f"-k {self._folder} -p {PORT} -c listen_addresses= -c wal_level=logical"
        settings += " -c max_wal_size=8GB"
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-o", settings, "start")
        try:
            yield
        finally:
            self._run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")

    def renew(self) -> None:
        """An empty table, and a slot that stands before everything to come."""
        self._sql(
            "set client_min_messages = warning; "
            f"select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            f"where slot_name = '{SLOT}'; "
            "drop publication if exists bench; drop table if exists log; "
            "create table log (lsn bigserial primary key, value bytea not null); "
            "create publication bench for table log; checkpoint;"
        )
        self._receive("--create-slot", "-P", "pgoutput")

    def copy_in(self, rows: Path, times: int) -> None:
        """The rows of a file, so many times: each is a transaction that is synced at its end."""
        script = f"\\copy log (value) from '{rows}' with (format binary)\n" * times
        self._run("psql", *self._where(), "-q", "-v", "ON_ERROR_STOP=1", text=script)

    def changes_out(self) -> int:
        """Everything that the slot has, to its end: how many bytes."""
        end = self._sql("select pg_current_wal_lsn()").strip()
        options = ("-o", "proto_version=1", "-o", "publication_names=bench")
        command = self._command("pg_recvlogical", *self._where())
        command += ["--slot", SLOT, "--start", *options, "--endpos", end, "-f", "-"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, user=self._account, cwd=self._folder
        ) as process:
            assert process.stdout is not None
            count = 0
            while piece := process.stdout.read(1 << 20):
                count += len(piece)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return count

    def _receive(self, *arguments: str) -> None:
        self._run("pg_recvlogical", *self._where(), "--slot", SLOT, *arguments)

    def _sql(self, text: str) -> str:
        return self._run("psql", *self._where(), "-q", "-A", "-t", "-c", text)

    def _where(self) -> list[str]:
        return ["-h", str(self._folder), "-p", PORT, "-U", "bench", "-d", "postgres"]

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._binaries / program), *arguments]

    def _run(self, program: str, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            self._command(program, *arguments),
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            user=self._account,
            cwd=self._folder,
        )
        return done.stdout


def _binaries() -> Path:
    found = sorted(glob(BINARIES), key=lambda path: int(path.split("/")[-2]))
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(str(Path(on_path).resolve().parent))
    whole = [path for path in found if (Path(path) / "pg_recvlogical").exists()]
    if not whole:
        raise Missing("no initdb and pg_recvlogical here")
    return Path(whole[-1])


def copied(batch: pa.RecordBatch) -> bytes:
    """Values as COPY reads them in its binary format."""
    rows = b"".join(
        struct.pack(">hi", 1, len(value)) + value for value in batch.column(0).to_pylist()
    )
    return b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0) + rows + struct.pack(">h", -1)


def postgres(root: Path, batch: pa.RecordBatch, times: int, rounds: int) -> Section:
    """The same rows into both and out of both, in turns."""
    size = len(batch.column(0)[0].as_buffer())
    section = Section(
        f"PostgreSQL, records of {size} bytes in groups of {batch.num_rows:,}, synced",
        ["way", "records/s in", "records/s out"],
    )
    try:
        server = Postgres(root / "postgres")
    except Missing as reason:
        section.notes.append(f"PostgreSQL: not compared: {reason}")
        return section
    rows = root / "rows"
    rows.write_bytes(copied(batch))
    ours, theirs = [], []
    with server.running():
        for number in range(rounds):
            ours.append(_ours(str(root / f"spool-{number}"), batch, times))
            theirs.append(_theirs(server, rows, batch, times))
    total = batch.num_rows * times
    for name, spent in (("spool", ours), (server.version, theirs)):
        ways = [sorted(way)[rounds // 2] for way in zip(*spent, strict=True)]
        section.rows.append([name, *(f"{total / seconds:,.0f}" for seconds in ways)])
    section.notes.append(
        "in: a group is a transaction (COPY, binary); out: pgoutput through pg_recvlogical, "
        "and reading the spool to Arrow; medians"
    )
    return section


def _ours(path: str, batch: pa.RecordBatch, times: int) -> tuple[float, float]:
    # Nothing of it is kept in memory: what is read comes from the files.
    spool = Spool.open(path, config=SpoolConfig(tail_bytes=1))
    started_s = time.perf_counter()
    for _ in range(times):
        portal.shared().call(spool.append(batch, term=1))
    written_s = time.perf_counter()
    found, lsn = 0, 0
    while groups := portal.shared().call(spool.read_since(lsn, max_records=100_000)):
        found, lsn = found + sum(map(len, groups)), groups[-1].last_lsn
    ended_s = time.perf_counter()
    portal.shared().call(spool.close())
    assert found == batch.num_rows * times
    return written_s - started_s, ended_s - written_s


def _theirs(server: Postgres, rows: Path, batch: pa.RecordBatch, times: int) -> tuple[float, float]:
    server.renew()
    started_s = time.perf_counter()
    server.copy_in(rows, times)
    written_s = time.perf_counter()
    count = server.changes_out()
    ended_s = time.perf_counter()
    assert count >= batch.num_rows * times * len(batch.column(0)[0].as_buffer())
    return written_s - started_s, ended_s - written_s
