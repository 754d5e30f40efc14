"""Removes metadata files of a table that no snapshot needs any more, after every fiftieth commit.

Every commit makes a metadata file, a manifest list and a manifest obsolete. They stay for a grace
period, because a reader that has just loaded the table may still need them. Data files are not
swept, because a long job writes them early (see `orphans.py`).

Always holds:

- only files that were listed *before* the sweeper's own commit and are not needed after it are
  removed. A later commit is based on the sweeper's, so its files are not in the list. The obvious
  alternative, to list after the commit and go by the age of files, is wrong: a sweeper that stalls
  in between, or a store whose clock is set back, would remove files that others committed
  meanwhile;
- the grace period is measured by the store's clock alone: the time of a file is compared with that
  of the sweeper's own metadata file;
- a write does not fail because of a sweep: the error is logged, and the next sweep tries again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

from pyiceberg.table import Table

from headwater.core import portal
from headwater.store import ObjectMeta
from headwater.table.data_files import manifests_of
from headwater.table.file_io import StoreFileIO

_log: Final = logging.getLogger("headwater")

SWEEP_EVERY: Final = 50
"""Commits between sweeps of a table."""
GRACE_MS: Final = 3_600_000
"""How long obsolete files stay."""
SWEPT_MAX: Final = 1_000
"""The most files that one sweep removes; the next one continues."""
_OURS: Final = re.compile(r"snap-[^/]+\.avro|[^/]+-m\d+\.avro|\d+-[^/]+\.metadata\.json")


def list_before_commit(table: Table) -> list[ObjectMeta]:
    """The metadata files, if the next commit sweeps; none if it does not."""
    listed: list[ObjectMeta] = []
    with _errors_logged(table):
        if is_sweep_due(table):
            listed = list_metadata_files(table)
    return listed


def sweep_after_commit(table: Table, listed: list[ObjectMeta]) -> None:
    """Remove what the commit made obsolete; `listed` is from before the commit."""
    with _errors_logged(table):
        if listed:
            sweep(table, listed)


@contextlib.contextmanager
def _errors_logged(table: Table) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        name = ".".join(table.name())
        _log.warning("%s: obsolete metadata stays until the next sweep: %s", name, error)


def is_sweep_due(table: Table) -> bool:
    """Whether the next commit sweeps. A table of format 1 has no sequence numbers."""
    number = table.metadata.next_sequence_number()
    return number > 0 and number % SWEEP_EVERY == 0


def list_metadata_files(table: Table) -> list[ObjectMeta]:
    """The metadata files of a table whose catalog is ours."""
    files = table.io
    if not isinstance(files, StoreFileIO):
        return []  # the owner of another catalog maintains its tables
    folder = files.root.key(f"{table.location()}/metadata")

    async def list_files() -> list[ObjectMeta]:
        return [
            meta
            async for meta in files.store.list(folder)
            if _OURS.fullmatch(meta.key[len(folder) + 1 :])
        ]

    return portal.shared().call(list_files())


def sweep(table: Table, before: list[ObjectMeta], *, grace_ms: int = GRACE_MS) -> int:
    """Remove obsolete metadata files; returns how many.

    `table` is the result of the sweeper's own commit, `before` was listed before that commit.
    """
    files = table.io
    assert isinstance(files, StoreFileIO)
    needed = _referenced(table)

    async def remove() -> int:
        own = await files.store.head(files.root.key(table.metadata_location))
        obsolete = [
            meta.key
            for meta in before
            if meta.modified_ms < own.modified_ms - grace_ms
            and files.root.location(meta.key) not in needed
        ][:SWEPT_MAX]
        for key in obsolete:
            await files.store.delete(key)
        return len(obsolete)

    return portal.shared().call(remove())


def _referenced(table: Table) -> set[str]:
    metadata = table.metadata
    return {
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *(manifest.manifest_path for manifest in manifests_of(table)),
    }
