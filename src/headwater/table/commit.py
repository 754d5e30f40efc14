"""Commits: one snapshot for each version of an application, and never a second one.

A snapshot's summary names who wrote it: an application and its version, or a streaming query and
its batch. Snapshots expire, so the last version of each application is also a property of the
table, changed by the same commit. Versions of one application only grow: a version at or below the
last one is in the table already.

A writer that is refused, or does not know whether it was, reads the table again and looks for its
token before it tries again. pyiceberg's own retry does not look: it puts a refused commit on top of
the winner's, and if the winner is a duplicate (a replayed batch, a query that runs twice) the rows
are in the table twice. So that retry is switched off, whatever the table's properties say.

Always holds:

- once an attempt may have landed, the answer is that it did, that another writer's did, or
  `OutcomeUnknown`: no later error replaces it;
- files are added only to the table that they were written for, known by its UUID, and never to a
  table whose orphans were removed after the files were written (`orphans.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    TableUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.table.update.snapshot import ExpireSnapshots

from headwater.core import portal, runtime
from headwater.core.errors import Contended, OutcomeUnknown, Refused, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import ObjectMeta
from headwater.table.data_files import FLOOR, WrittenFile, check_belong, to_data_files
from headwater.table.sweep import is_sweep_due, list_metadata_files, sweep

APP: Final = "headwater.query-id"
VERSION: Final = "headwater.batch-id"
WRITER: Final = "headwater.writer"
LAST: Final = "headwater.last-batch."
APPS_MAX: Final = 100
FORGET_AFTER_MS: Final = 30 * 24 * 3600 * 1000
"""Of more applications than APPS_MAX, those that have been silent for so long are forgotten."""


class CommitToken(NamedTuple):
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


def find_commit(metadata: TableMetadata, token: CommitToken) -> Landed | None:
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


class _LastVersion(NamedTuple):
    version: int
    committed_ms: int
    writer: str


def _parsed(text: str) -> _LastVersion:
    version, committed_ms, writer = text.split(" ", 2)
    return _LastVersion(int(version), int(committed_ms), writer)


def remember_version(
    metadata: TableMetadata, token: CommitToken, now_ms: int
) -> tuple[dict[str, str], set[str]]:
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


_log: Final = logging.getLogger("headwater")

COMMIT_ATTEMPTS: Final = 30
MERGE_MANIFESTS: Final = 20
"""So many manifests become one: a commit reads and writes the list of them all."""

WHILE_COMMITTING: Final = {
    TableProperties.COMMIT_NUM_RETRIES: "0",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.MANIFEST_MIN_MERGE_COUNT: str(MERGE_MANIFESTS),
}
"""What holds for our commits, whoever made the table."""


class Commit(NamedTuple):
    """How a write ended."""

    snapshot_id: int | None
    """None if nothing was written, or if the snapshot that has it has expired."""
    rows: int
    files: int
    was_there: bool
    """Whether an earlier attempt had written this version already."""


def commit(
    catalog: Catalog,
    name: str,
    files: list[WrittenFile],
    token: CommitToken,
    *,
    keep_snapshots: int,
) -> Commit | Landed:
    """Add a snapshot with these files; `Landed` if another attempt has put its own there.

    `Contended`, `FilesRefused`: nothing of it is in the table, and nothing will be.
    """
    budget = RetryPolicy().start(attempts=COMMIT_ATTEMPTS)
    lost = 0
    unknown: CommitStateUnknownException | None = None
    doubted: TableMetadata | None = None
    while True:
        with in_doubt(name, unknown):
            table = catalog.load_table(name)
            landed = find_commit(table.metadata, token)
            if landed is not None and landed.is_ours:
                return Commit(landed.snapshot_id, _rows(table, files), len(files), was_there=False)
            if landed is not None:
                return landed
            if not token.is_repeatable and doubted is not None:
                _refuse_forgotten(doubted, table.metadata)
            check_belong(table, files)
            before = table.metadata
            try:
                return _append(table, files, token, keep_snapshots)
            except (CommitFailedException, FileNotFoundError) as error:
                # A file that is gone was swept after the table was loaded: others have committed.
                refused: Exception = error
            except CommitStateUnknownException as error:
                refused = unknown = error
                doubted = before if doubted is None else doubted
        lost += 1
        if lost > 1 and not portal.shared().call(budget.pause()):
            if unknown is not None:
                raise OutcomeUnknown(f"{name}: {unknown}") from unknown
            raise Contended(f"{name}: not written: others won {lost} times") from refused


def _refuse_forgotten(doubted: TableMetadata, now: TableMetadata) -> None:
    """`Unavailable` if the snapshot that followed has expired, whoever made it.

    What only snapshots remember is then not known any more: the one in doubt may have been it.
    """
    if now.format_version == 1:
        before = doubted.current_snapshot_id
        has_moved = now.current_snapshot_id != before
        is_there = any(one.parent_snapshot_id == before for one in now.snapshots)
    else:
        number = doubted.next_sequence_number()
        has_moved = now.last_sequence_number >= number
        is_there = any(one.sequence_number == number for one in now.snapshots)
    if has_moved and not is_there:
        raise Unavailable("the snapshot that would tell has expired")


@contextlib.contextmanager
def in_doubt(name: str, unknown: CommitStateUnknownException | None) -> Iterator[None]:
    """Let no error hide that an earlier attempt may have landed: not even that the table is gone.

    A caller that gets `Unavailable`, or that the table does not exist, writes the rows again.
    """
    try:
        yield
    except (OutcomeUnknown, CommitFailedException, CommitStateUnknownException):
        raise  # for the loop around it
    except Exception as error:
        if unknown is None:
            raise
        raise OutcomeUnknown(f"{name}: {unknown}; then: {error}") from error


class _SameFloor(ValidatableTableRequirement):
    """Orphans were not removed since the floor was read.

    A commit goes on top of whatever is there by then, if its requirements still hold; that a
    property changed is no reason to refuse it, but for this.
    """

    type: Literal["headwater-same-floor"] = "headwater-same-floor"
    floor: str | None

    def validate(  # type: ignore[override]
        self, base_metadata: TableMetadata | None
    ) -> None:
        """Raise `CommitFailedException` if it is another one."""
        now = None if base_metadata is None else base_metadata.properties.get(FLOOR)
        if now != self.floor:
            raise CommitFailedException(f"orphans were removed meanwhile, up to {now}")


def require_same_floor(transaction: Transaction) -> None:
    """Let a commit land only on top of the floor that its table was loaded with.

    A REST server knows no requirement of ours: there the floor is what it was just before.
    """
    table = transaction._table
    if isinstance(table.catalog, MetastoreCatalog):
        same: Any = _SameFloor(floor=table.metadata.properties.get(FLOOR))
        transaction._requirements += (same,)


class _Transaction(Transaction):
    """Applies its updates once for each change of them, and not each time somebody asks.

    Every application copies the whole metadata, all snapshots among it: 18 times for a commit.
    """

    _applied: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table as this transaction would leave it."""
        if self._applied is None or self._applied[0] is not self._updates:
            self._applied = (self._updates, super().table_metadata)
        return self._applied[1]


def _append(
    table: Table, files: list[WrittenFile], token: CommitToken, keep_snapshots: int
) -> Commit:
    stored = table.metadata
    kept = {**stored.properties, **WHILE_COMMITTING}
    table.metadata = stored.model_copy(update={"properties": kept})
    added = to_data_files(table, files)
    transaction = _Transaction(table)
    with transaction.update_snapshot(snapshot_properties=token.summary()).merge_append() as append:
        for file in added:
            append.append_data_file(file)
    remembered, forgotten = remember_version(stored, token, runtime.wall_ms())
    if remembered:
        transaction.set_properties(remembered)
    if forgotten:
        transaction.remove_properties(*forgotten)
    expired = _expired(stored, keep_snapshots)
    if expired:
        ExpireSnapshots(transaction).by_ids(expired).commit()
    require_same_floor(transaction)
    # The files were compared with this schema and these partitions, and with no later ones.
    transaction._requirements += (
        AssertCurrentSchemaId.model_validate({"current-schema-id": stored.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": stored.default_spec_id}),
    )
    before = _before(table)
    _tidy(transaction.commit_transaction(), before)
    rows = sum(file.record_count for file in added)
    return Commit(append.snapshot_id, rows, len(files), was_there=False)


def _before(table: Table) -> list[ObjectMeta]:
    """The metadata files that a sweep after this commit may look at."""
    try:
        return list_metadata_files(table) if is_sweep_due(table) else []
    except Exception as error:
        _log.warning(
            "%s: obsolete metadata stays until the next sweep: %s", ".".join(table.name()), error
        )
        return []


def _tidy(table: Table, before: list[ObjectMeta]) -> None:
    try:
        if before:
            sweep(table, before)
    except Exception as error:
        # The rows are in the table, and no error may say otherwise: what could not be removed is
        # found by the next sweep.
        _log.warning(
            "%s: obsolete metadata stays until the next sweep: %s", ".".join(table.name()), error
        )


def _expired(metadata: TableMetadata, keep_snapshots: int) -> list[int]:
    """All but the newest, and those that a branch or a tag holds."""
    held = {reference.snapshot_id for reference in metadata.refs.values()}
    newest_last = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    surplus = newest_last[: max(0, len(newest_last) + 1 - keep_snapshots)]
    return [one.snapshot_id for one in surplus if one.snapshot_id not in held]


def _rows(table: Table, files: list[WrittenFile]) -> int:
    return sum(file.record_count for file in to_data_files(table, files))
