"""Who wrote a snapshot: an application and its version, a streaming query and its batch.

A snapshot's summary names them. Snapshots expire, so the last version of each application is a
property of the table as well, changed by the same commit. Versions of one application only grow:
a version at or below the last one is there already.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyiceberg.table.metadata import TableMetadata

from headwater.core.errors import Refused

APP: Final = "headwater.query-id"
VERSION: Final = "headwater.batch-id"
WRITER: Final = "headwater.writer"
LAST: Final = "headwater.last-batch."
APPS_MAX: Final = 100
FORGET_AFTER_MS: Final = 30 * 24 * 3600 * 1000
"""Of more applications than APPS_MAX, those that have been silent for so long are forgotten."""


class Token(NamedTuple):
    """What is written once: version `version` of application `app`."""

    app: str
    version: int
    writer: str
    """This attempt alone: tells one's own commit from that of a twin."""
    is_repeatable: bool = True
    """Whether anybody may come back with the same version, and it is worth remembering."""
    is_query: bool = False
    """A streaming query repeats its last version and none before it."""

    def summary(self) -> dict[str, str]:
        """What the snapshot says."""
        return {APP: self.app, VERSION: str(self.version), WRITER: self.writer}


class Landed(NamedTuple):
    """The version is in the table already."""

    snapshot_id: int | None
    """None if that snapshot has expired."""
    is_ours: bool | None
    """Whether this very attempt made it; None if that can no longer be told."""


def find(metadata: TableMetadata, token: Token) -> Landed | None:
    """Whether a version is in the table, by its snapshots or the property that outlives them.

    `Refused` where a query comes with an older one than its last: its checkpoint went back, and its
    micro-batches are cut anew, so that there are other rows under the number than those stored.
    """
    kept = metadata.properties.get(f"{LAST}{token.app}")
    last = None if kept is None else _parsed(kept)
    if token.is_query and last is not None and token.version < last.version:
        raise Refused(
            f"micro-batch {token.version} of query {token.app}: the table has its micro-batch "
            f"{last.version} already. Its checkpoint is an older copy, or another run of it has "
            "come further. Nothing of this one is written: stop one of the two, or give the query "
            "a new checkpoint_location"
        )
    for snapshot in reversed(metadata.snapshots):
        said = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if said.get(APP) == token.app and said.get(VERSION) == str(token.version):
            return Landed(snapshot.snapshot_id, said.get(WRITER) == token.writer)
    if last is None or last.version < token.version:
        return None
    is_ours = last.writer == token.writer if last.version == token.version else None
    return Landed(None, is_ours)


class _Last(NamedTuple):
    version: int
    committed_ms: int
    writer: str


def _parsed(text: str) -> _Last:
    version, committed_ms, writer = text.split(" ", 2)
    return _Last(int(version), int(committed_ms), writer)


def remember(metadata: TableMetadata, token: Token, now_ms: int) -> tuple[dict[str, str], set[str]]:
    """The properties to set, and those to remove so that they stay few."""
    if not token.is_repeatable:
        return {}, set()
    name = f"{LAST}{token.app}"
    others = {
        key: _parsed(value).committed_ms
        for key, value in metadata.properties.items()
        if key.startswith(LAST) and key != name
    }
    surplus = sorted(others, key=others.__getitem__)[: max(0, len(others) + 1 - APPS_MAX)]
    silent = {key for key in surplus if others[key] < now_ms - FORGET_AFTER_MS}
    return {name: f"{token.version} {now_ms} {token.writer}"}, silent
