"""deltalake: appends of Arrow tables to a Delta table in a folder."""

from __future__ import annotations

import importlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.peers._peer import (
    ARROW,
    ARROW_RECORDS,
    LIST_RECORDS,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consume,
    Peer,
    Produce,
    Records,
)
from tests.interop.cache import Unavailable

SCHEMA = pa.schema([("payload", pa.binary())])


class Deltalake(Peer):
    """It has no call for one record, and a commit for a short list is far from what it is for."""

    name = "deltalake"
    promise = "process crash only: no fsync at all, so a power loss may take acknowledged records"
    is_ordered = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folders = itertools.count()
        self._path = folder / "none"
        self._library: Any = None

    def start(self) -> None:
        try:
            self._library = importlib.import_module("deltalake")
        except ImportError as error:
            raise Unavailable(f"{error}: install requirements/peers.txt") from error

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        self._path = self.folder / f"records-{next(self._folders)}"

    def producing(self) -> dict[str, Produce]:
        return {ARROW: self._arrow, LISTS: self._lists}

    def consuming(self) -> dict[str, Consume]:
        return {TO_BYTES: self._to_bytes, TO_ARROW: self._to_arrow}

    def _append(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        self._library.write_deltalake(str(self._path), table, mode="append")

    def _arrow(self, records: Records) -> Callable[[], None]:
        group = max(1, records.group // ARROW_RECORDS)

        def run() -> None:
            for at in range(0, len(records.batches), group):
                self._append(records.batches[at : at + group])

        return run

    def _lists(self, records: Records) -> Callable[[], None]:
        group = max(1, records.group // LIST_RECORDS)

        def run() -> None:
            for at in range(0, len(records.lists), group):
                lists = records.lists[at : at + group]
                self._append(
                    [pa.record_batch([pa.array(one, pa.binary())], schema=SCHEMA) for one in lists]
                )

        return run

    def _read(self, count: int) -> pa.Table:
        return self._library.DeltaTable(str(self._path)).to_pyarrow_table().slice(0, count)

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        def run() -> list[bytes]:
            values: list[bytes] = self._read(count)["payload"].to_pylist()
            return values

        return run

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        return lambda: self._read(count)
