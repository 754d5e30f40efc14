"""Data files that no snapshot names, removed when somebody asks for it.

Killed tasks and jobs leave them behind, and twins of tasks that Spark ran for speed. Nothing
removes them by itself: whether a job is gone or only slow, no file tells.

Always holds: no file is removed that a snapshot names, or ever will.

- Before anything is removed, the table's *orphan floor* is raised to the highest id among what is
  to go, by a commit. Commits that land later refuse files at or below it (`data_files.py`), and
  what landed before is seen as named. So a job that took longer than `older_than_hours`, or one
  beside whose store the clock was set forward, is refused and loses nothing.
- The table is known by its UUID from the listing to the last look: by name, it may have become
  another one, which names none of these files.
- How old a file is, is told by the store's clock, and by the time in its id: both are long past.

Only files that `to_table` wrote are looked at, known by their ids, which no two share: by name,
because another engine may write down the same place under another scheme.
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
from headwater.table.commit import in_doubt, require_same_floor
from headwater.table.data_files import FLOOR
from headwater.table.reference import table_reference

OLDER_THAN_HOURS: Final = 72.0
OLDER_THAN_LEAST_HOURS: Final = 24.0
"""As in Iceberg's own procedure: below it, running jobs would lose what they have written."""
FLOOR_ATTEMPTS: Final = 30
CLOCK: Final = "headwater-clock"
"""Written below `metadata/` to learn what time the store has."""
_HOUR_MS: Final = 3_600_000
_OURS: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.parquet")


class OrphanFiles(NamedTuple):
    """Files that no snapshot names."""

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
    """Remove data files that `to_table` wrote so long ago and that are in no snapshot; which.

    Give more hours than the longest job takes from its first file to its commit: one that takes
    longer is refused when it commits. `dry_run` only looks, and goes by the clock of this machine.
    """
    if older_than_hours < OLDER_THAN_LEAST_HOURS:
        raise Refused(
            f"older_than_hours is {older_than_hours:g}: it is {OLDER_THAN_LEAST_HOURS:g} at least, "
            "because a job that is still running has files that no snapshot names yet"
        )
    target = table_reference(table, warehouse, catalog, store_options or {})
    first = target.load()
    return remove_orphan_files(
        target.load, first, target.place(first), older_than_hours, dry_run=dry_run
    )


def remove_orphan_files(
    loaded: Callable[[], Table], first: Table, place: FileRoot, hours: float, *, dry_run: bool
) -> OrphanFiles:
    """Remove the orphans of a table that was just loaded; which those are."""
    location = first.location().rstrip("/")
    now_ms = runtime.wall_ms() if dry_run else portal.shared().call(_store_ms(place, location))
    before_ms = now_ms - int(hours * _HOUR_MS)
    old = portal.shared().call(_files(place, f"{location}/data", before_ms))
    orphans = _unnamed(old, first)
    if orphans and not dry_run:
        orphans = _unnamed(old, _with_floor(loaded, first, max(map(_id, orphans))))
        portal.shared().call(_remove(place, orphans))
    locations = [place.location(meta.key) for meta in orphans]
    return OrphanFiles(locations, sum(meta.size_bytes for meta in orphans))


def _with_floor(loaded: Callable[[], Table], first: Table, floor: str) -> Table:
    """The table once its orphan floor is that at least: no file up to it is committed any more."""
    unknown: CommitStateUnknownException | None = None
    for _ in range(FLOOR_ATTEMPTS):
        with in_doubt(".".join(first.name()), unknown):
            table = loaded()
            if table.metadata.table_uuid != first.metadata.table_uuid:
                raise Refused(
                    f"{'.'.join(first.name())} is another table by now: it was renamed or dropped, "
                    "and created again. Nothing was removed; ask for each of the two"
                )
            if table.properties.get(FLOOR, "") >= floor:
                return table
            try:
                transaction = table.transaction().set_properties({FLOOR: floor})
                # Another removal may have raised it further, and must not find it lower again.
                require_same_floor(transaction)
                transaction.commit_transaction()
            except CommitFailedException:
                continue  # others committed meanwhile
            except CommitStateUnknownException as error:
                unknown = error
    if unknown is not None:
        raise OutcomeUnknown(f"the floor may be raised, and nothing was removed: {unknown}")
    raise Contended("nothing was removed: others kept committing")


async def _store_ms(place: FileRoot, location: str) -> int:
    """What time it is by the store's clock, of which an object that it just wrote tells."""
    store, key = place.store(), place.key(f"{location}/metadata/{CLOCK}")
    with contextlib.suppress(OutcomeUnknown):  # an older time is a time as well
        await store.put(key, runtime.new_token())
    return await store.now_ms(key)


async def _files(place: FileRoot, folder: str, before_ms: int) -> list[ObjectMeta]:
    """The data files of ours that are older than that by the store's clock and by their ids."""
    newest = encode_ulid(max(0, before_ms) << 80)
    return [
        meta
        async for meta in place.store().list(place.key(folder))
        if meta.modified_ms < before_ms and _OURS.fullmatch(_name(meta.key)) and _id(meta) < newest
    ]


async def _remove(place: FileRoot, orphans: list[ObjectMeta]) -> None:
    for meta in orphans:
        await place.store().delete(meta.key)


def _unnamed(files: list[ObjectMeta], table: Table) -> list[ObjectMeta]:
    try:
        named = _named(table) if files else set()
    except FileNotFoundError as error:
        # Swept since the table was loaded, as obsolete metadata is: others committed meanwhile.
        raise Unavailable(f"nothing was removed: the table has changed since: {error}") from error
    return [meta for meta in files if _name(meta.key) not in named]


def _named(table: Table) -> set[str]:
    """The names of all files that any snapshot has, also those of branches and tags."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        _name(entry.data_file.file_path)
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _id(meta: ObjectMeta) -> str:
    return _name(meta.key).partition(".")[0]
