"""SQLite: a table in one file, in WAL mode, every commit synced."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from bench.peers._peer import (
    EACH,
    LIST_RECORDS,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consume,
    Peer,
    Produce,
    Records,
    joined,
    tabled,
)

INSERT = "INSERT INTO records (value) VALUES (?)"
FETCH_ROWS = 10_000


class Sqlite(Peer):
    """The standard library's module; the caller groups inserts into transactions."""

    name = "SQLite WAL"
    promise = "power loss: synchronous=FULL, an fsync for every commit (8 MiB each)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._files = itertools.count()
        self._path = folder / "none"

    def empty(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self._path = self.folder / f"records-{next(self._files)}.db"
        database = self._open()
        database.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        database.close()

    def producing(self) -> dict[str, Produce]:
        return {EACH: self._each, LISTS: self._lists}

    def consuming(self) -> dict[str, Consume]:
        return {TO_BYTES: self._to_bytes, TO_ARROW: self._to_arrow}

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        return database

    def _each(self, records: Records) -> Callable[[], None]:
        database, group, values = self._open(), records.group, records.values

        def run() -> None:
            for at in range(0, len(values), group):
                database.execute("BEGIN")
                for value in values[at : at + group]:
                    database.execute(INSERT, (value,))
                database.execute("COMMIT")
            database.close()

        return run

    def _lists(self, records: Records) -> Callable[[], None]:
        database, group = self._open(), max(1, records.group // LIST_RECORDS)

        def run() -> None:
            for at in range(0, len(records.lists), group):
                database.execute("BEGIN")
                for values in records.lists[at : at + group]:
                    database.executemany(INSERT, zip(values))
                database.execute("COMMIT")
            database.close()

        return run

    def _pages(self, database: sqlite3.Connection, count: int) -> Iterator[list[bytes]]:
        cursor = database.execute("SELECT value FROM records ORDER BY id LIMIT ?", (count,))
        while rows := cursor.fetchmany(FETCH_ROWS):
            yield [value for (value,) in rows]
        database.close()

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        database = self._open()
        return lambda: joined(self._pages(database, count))

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        database = self._open()
        return lambda: tabled(self._pages(database, count))
