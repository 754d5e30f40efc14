"""Data files that no snapshot names, removed when somebody asks for it.

Killed tasks and jobs leave them behind, and twins of tasks that Spark ran for speed. Nothing
removes them by itself: whether a job is gone or only slow, no file tells.

Always holds: files are listed before the table is loaded, so one that was committed in between is
seen as named. Only files that `to_table` wrote are looked at, known by their ids, which no two
share: by name, because another engine may write down the same place under another scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyiceberg.table import Table

from headwater.core import portal, runtime
from headwater.core.errors import Refused
from headwater.spark.files import Place
from headwater.spark.table.reading import load
from headwater.spark.table.target import checked_target
from headwater.store import ObjectMeta

OLDER_THAN_HOURS: Final = 72.0
OLDER_THAN_LEAST_HOURS: Final = 24.0
"""As in Iceberg's own procedure: below it, running jobs would lose what they have written."""
_HOUR_MS: Final = 3_600_000
_OURS: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.parquet")


class Orphans(NamedTuple):
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
) -> Orphans:
    """Remove data files that `to_table` wrote so long ago and that are in no snapshot; which.

    Give more hours than the longest job takes from its first file to its commit. `dry_run` only
    looks.
    """
    if older_than_hours < OLDER_THAN_LEAST_HOURS:
        raise Refused(
            f"older_than_hours is {older_than_hours:g}: it is {OLDER_THAN_LEAST_HOURS:g} at least, "
            "because a job that is still running has files that no snapshot names yet"
        )
    target = checked_target(table, warehouse, catalog, store_options or {})

    def loaded() -> Table:
        return load(table, warehouse=warehouse, catalog=catalog, store_options=store_options)

    first = loaded()
    place = target.place(first)
    before_ms = runtime.wall_ms() - int(older_than_hours * _HOUR_MS)
    old = portal.shared().call(_files(place, f"{first.location().rstrip('/')}/data", before_ms))
    named = _named(loaded()) if old else set()
    orphans = [meta for meta in old if _name(meta.key) not in named]
    if not dry_run:
        portal.shared().call(_remove(place, orphans))
    locations = [place.location(meta.key) for meta in orphans]
    return Orphans(locations, sum(meta.size_bytes for meta in orphans))


async def _files(place: Place, folder: str, before_ms: int) -> list[ObjectMeta]:
    return [
        meta
        async for meta in place.store().list(place.key(folder))
        if meta.modified_ms < before_ms and _OURS.fullmatch(_name(meta.key))
    ]


async def _remove(place: Place, orphans: list[ObjectMeta]) -> None:
    for meta in orphans:
        await place.store().delete(meta.key)


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
