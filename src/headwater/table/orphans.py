"""Removes data files that are in no snapshot, on request.

Killed tasks and jobs leave such files behind, and so do Spark's speculative tasks. They are not
removed automatically, because a file does not show whether its job is dead or only slow.

Always holds: no file is removed that is in a snapshot or ever will be.

- Before any file is removed, a commit raises the table's *orphan floor* to the highest id among the
  files to remove. Later commits refuse files up to the floor (`data_files.py`), and files that were
  committed before it are found in their snapshots. So a job that took longer than
  `older_than_hours`, or one whose store's clock was set forward, is refused and loses nothing.
- The table is identified by its UUID from the listing to the last check: another table may get its
  name meanwhile, and that table's snapshots have none of these files.
- A file's age is measured by the store's clock and by the time in the file's id; both must be past.

Only files that `to_table` wrote are removed. They are compared by file name, which contains a
unique id, because another engine may write the same location with another scheme.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from headwater.core import portal, runtime
from headwater.core.errors import Contended, OutcomeUnknown, Refused, Unavailable
from headwater.core.runtime import encode_ulid
from headwater.store import ObjectMeta
from headwater.store.locations import FileRoot
from headwater.table.commit import keeping_unknown, require_same_floor
from headwater.table.data_files import FLOOR, manifests_of
from headwater.table.reference import table_reference

OLDER_THAN_HOURS: Final = 72.0
OLDER_THAN_LEAST_HOURS: Final = 24.0
"""As in Iceberg's own procedure: less would remove files of running jobs."""
FLOOR_ATTEMPTS: Final = 30
CLOCK: Final = "headwater-clock"
"""Object below `metadata/` that is written to read the store's clock."""
_HOUR_MS: Final = 3_600_000
_FILE_NAME: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.parquet")


class OrphanFiles(NamedTuple):
    """Files that are in no snapshot."""

    locations: list[str]
    size_bytes: int


def remove_orphans(
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | str | None = None,
    store_options: Mapping[str, str] | None = None,
    older_than_hours: float = OLDER_THAN_HOURS,
    dry_run: bool = False,
) -> OrphanFiles:
    """Remove old data files of `to_table` that are in no snapshot; returns which.

    `older_than_hours`: more than the longest job takes from its first file to its commit. A job
    that takes longer is refused when it commits.
    `dry_run`: remove nothing and write nothing; ages are then measured by this machine's clock.
    """
    if older_than_hours < OLDER_THAN_LEAST_HOURS:
        raise Refused(
            f"older_than_hours is {older_than_hours:g}: it must be at least "
            f"{OLDER_THAN_LEAST_HOURS:g}, because the files of a running job are in no snapshot yet"
        )
    target = table_reference(table, warehouse, catalog, store_options or {})
    first = target.load()
    return remove_orphan_files(
        target.load, first, target.file_root(first), older_than_hours, dry_run=dry_run
    )


def remove_orphan_files(
    loaded: Callable[[], Table], first: Table, root: FileRoot, hours: float, *, dry_run: bool
) -> OrphanFiles:
    """Remove the orphans of a table that was just loaded."""
    location = first.location().rstrip("/")
    now_ms = runtime.wall_ms() if dry_run else portal.shared().call(_store_ms(root, location))
    before_ms = now_ms - int(hours * _HOUR_MS)
    old = portal.shared().call(_old_files(root, f"{location}/data", before_ms))
    orphans = _unreferenced(old, first)
    if orphans and not dry_run:
        orphans = _unreferenced(old, _raise_floor(loaded, first, max(map(_file_id, orphans))))
        portal.shared().call(_delete(root, orphans))
    locations = [root.location(meta.key) for meta in orphans]
    return OrphanFiles(locations, sum(meta.size_bytes for meta in orphans))


def _raise_floor(loaded: Callable[[], Table], first: Table, floor: str) -> Table:
    """Raise the orphan floor, so that no file up to it can be committed any more."""
    unknown: CommitStateUnknownException | None = None
    for _ in range(FLOOR_ATTEMPTS):
        with keeping_unknown(".".join(first.name()), unknown):
            table = loaded()
            if table.metadata.table_uuid != first.metadata.table_uuid:
                raise Refused(
                    f"{'.'.join(first.name())} is another table by now: it was renamed or dropped, "
                    "and created again. Nothing was removed; call this for each of the two tables"
                )
            if table.properties.get(FLOOR, "") >= floor:
                return table
            try:
                transaction = table.transaction().set_properties({FLOOR: floor})
                # Another removal may have raised it further; it must not be lowered.
                require_same_floor(transaction)
                transaction.commit_transaction()
            except CommitFailedException:
                continue  # others committed meanwhile
            except CommitStateUnknownException as error:
                unknown = error
    if unknown is not None:
        raise OutcomeUnknown(
            f"the orphan floor may have been raised, and nothing was removed: {unknown}"
        )
    raise Contended("nothing was removed: other commits came first every time")


async def _store_ms(root: FileRoot, location: str) -> int:
    """The time by the store's clock, from an object that is written for it."""
    store, key = root.store(), root.key(f"{location}/metadata/{CLOCK}")
    with contextlib.suppress(OutcomeUnknown):  # an earlier time is fine, too
        await store.put(key, runtime.new_token())
    return await store.now_ms(key)


async def _old_files(root: FileRoot, folder: str, before_ms: int) -> list[ObjectMeta]:
    """Our data files that are older by the store's clock and by the time in their ids."""
    newest = encode_ulid(max(0, before_ms) << 80)
    return [
        meta
        async for meta in root.store().list(root.key(folder))
        if meta.modified_ms < before_ms
        and _FILE_NAME.fullmatch(_file_name(meta.key))
        and _file_id(meta) < newest
    ]


async def _delete(root: FileRoot, orphans: list[ObjectMeta]) -> None:
    for meta in orphans:
        await root.store().delete(meta.key)


def _unreferenced(files: list[ObjectMeta], table: Table) -> list[ObjectMeta]:
    try:
        named = {
            _file_name(entry.data_file.file_path)
            for manifest in (manifests_of(table) if files else ())
            for entry in manifest.fetch_manifest_entry(table.io)
        }
    except FileNotFoundError as error:
        # Others committed and swept obsolete metadata after the table was loaded.
        raise Unavailable(
            f"nothing was removed: the table has changed meanwhile: {error}"
        ) from error
    return [meta for meta in files if _file_name(meta.key) not in named]


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _file_id(meta: ObjectMeta) -> str:
    return _file_name(meta.key).partition(".")[0]
