"""Metadata that no snapshot needs any more: removed beside the work, a while after it is obsolete.

Every commit leaves a metadata file, a list of manifests and a manifest behind it. Those that stay
obsolete for GRACE_MS go: a reader that has just loaded the table may still want them.

Always holds: what a sweep removes was listed *before* the sweeper's own commit, and is not needed
after it. A commit that lands later was made on top of the sweeper's, so its files were written
after that, and are not in the list. No clock has a part in this. Listing after the commit and
going by the age of files is the obvious alternative: a sweeper that stalls in between, or
beside whose store the clock is set back, then removes what others committed meanwhile.

How old a file is, for the readers' sake, is told by the store's clock alone: the file's time is
compared with that of the sweeper's own metadata file.

Data files are not swept: a long job writes them early (see `orphans.py`).
"""

from __future__ import annotations

import re
from typing import Final

from pyiceberg.table import Table

from headwater.core import portal
from headwater.store import ObjectMeta
from headwater.table.file_io import StoreFileIO

SWEEP_EVERY: Final = 50
"""Commits between sweeps of a table."""
GRACE_MS: Final = 3_600_000
SWEPT_MAX: Final = 1_000
"""Files that one sweep removes; the next goes on."""
_OURS: Final = re.compile(r"snap-[^/]+\.avro|[^/]+-m\d+\.avro|\d+-[^/]+\.metadata\.json")


def is_sweep_due(table: Table) -> bool:
    """Whether it is the turn of the next commit. Commits of a table of format 1 have no numbers."""
    number = table.metadata.next_sequence_number()
    return number > 0 and number % SWEEP_EVERY == 0


def list_metadata_files(table: Table) -> list[ObjectMeta]:
    """The metadata files there are, for a sweep after the commit that follows."""
    files = table.io
    if not isinstance(files, StoreFileIO):
        return []  # another catalog's table is for its own upkeep
    folder = files.place.key(f"{table.location()}/metadata")

    async def found() -> list[ObjectMeta]:
        return [
            meta
            async for meta in files.store.list(folder)
            if _OURS.fullmatch(meta.key[len(folder) + 1 :])
        ]

    return portal.shared().call(found())


def sweep(table: Table, before: list[ObjectMeta], *, grace_ms: int = GRACE_MS) -> int:
    """Remove what has been obsolete for long; how many files went.

    `table` as the sweeper's own commit left it, `before` what was listed before that commit.
    """
    files = table.io
    assert isinstance(files, StoreFileIO)
    needed = _needed(table, files)

    async def remove() -> int:
        own = await files.store.head(files.place.key(table.metadata_location))
        obsolete = [
            meta.key
            for meta in before
            if meta.modified_ms < own.modified_ms - grace_ms
            and files.place.location(meta.key) not in needed
        ][:SWEPT_MAX]
        for key in obsolete:
            await files.store.delete(key)
        return len(obsolete)

    return portal.shared().call(remove())


def _needed(table: Table, files: StoreFileIO) -> set[str]:
    metadata = table.metadata
    needed = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        needed.add(snapshot.manifest_list)
        needed |= {manifest.manifest_path for manifest in snapshot.manifests(files)}
    return needed
