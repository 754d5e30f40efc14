"""Metadata that no snapshot needs any more: removed beside the work, a while after it is obsolete.

Every commit leaves a metadata file, a list of manifests and a manifest behind it. Those that stay
obsolete for GRACE_MS go: a reader that has just loaded the table may still want them.

Always holds: a sweep comes after a commit of the sweeper's own, and the grace counts back from that
commit. A writer that stood still since before the grace with files written and not committed meets
that commit and is refused, so nothing that was swept is ever named by a snapshot. Counting from the
moment of the sweep is the obvious alternative: a sweeper that stands still between its commit and
its sweep then removes what was written and committed meanwhile, of which it does not know.

Data files are not swept: a long job writes them early (see `orphans.py`).
"""

from __future__ import annotations

import re
from typing import Final

from pyiceberg.table import Table

from headwater.core import portal
from headwater.spark.table.file_io import StoreFileIO

SWEEP_EVERY: Final = 50
"""Commits between sweeps of a table."""
GRACE_MS: Final = 3_600_000
SWEPT_MAX: Final = 1_000
"""Files that one sweep removes; the next goes on."""
_OURS: Final = re.compile(r"snap-[^/]+\.avro|[^/]+-m\d+\.avro|\d+-[^/]+\.metadata\.json")


def is_due(table: Table) -> bool:
    """Whether it is this commit's turn."""
    return table.metadata.next_sequence_number() % SWEEP_EVERY == 1


def sweep(table: Table, *, grace_ms: int = GRACE_MS) -> int:
    """Remove what has been obsolete for long; how many files went. After a commit of one's own."""
    files = table.io
    if not isinstance(files, StoreFileIO):
        return 0  # another catalog's table is for its own upkeep
    needed = _needed(table, files)
    folder = files.place.key(f"{table.location()}/metadata")
    before_ms = table.metadata.last_updated_ms - grace_ms

    async def remove() -> int:
        obsolete = []
        async for meta in files.store.list(folder):
            is_old = meta.modified_ms < before_ms
            is_ours = _OURS.fullmatch(meta.key[len(folder) + 1 :]) is not None
            if is_old and is_ours and files.place.location(meta.key) not in needed:
                obsolete.append(meta.key)
                if len(obsolete) == SWEPT_MAX:
                    break
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
