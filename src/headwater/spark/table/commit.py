"""One snapshot for each micro-batch, and never a second one.

A writer that is refused, or does not know whether it was, reads the table again and looks for its
token before it tries once more. pyiceberg's own retry does not look: it puts a refused commit on
top of the winner's, and where the winner is a twin (a replayed batch, a query that runs twice) the
rows are there twice. So it is off, whatever the table's properties say.

Always holds:

- once an attempt may have landed, the answer is that it did, that another's did, or
  `OutcomeUnknown`: no later error replaces it;
- files go into the table that they were written for, known by its UUID, and no file goes into a
  table whose orphans were removed after it was written (`orphans.py`).
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
from headwater.core.errors import Contended, OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.spark.files import Written
from headwater.spark.table import token as tokens
from headwater.spark.table.data_files import FLOOR, Written, check_belong, described
from headwater.spark.table.sweep import is_due, listed, sweep
from headwater.spark.table.token import Landed, Token
from headwater.store import ObjectMeta

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
    files: list[Written],
    token: Token,
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
            landed = tokens.find(table.metadata, token)
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


def _append(table: Table, files: list[Written], token: Token, keep_snapshots: int) -> Commit:
    stored = table.metadata
    kept = {**stored.properties, **WHILE_COMMITTING}
    table.metadata = stored.model_copy(update={"properties": kept})
    added = described(table, files)
    transaction = _Transaction(table)
    with transaction.update_snapshot(snapshot_properties=token.summary()).merge_append() as append:
        for file in added:
            append.append_data_file(file)
    remembered, forgotten = tokens.remember(stored, token, runtime.wall_ms())
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
        return listed(table) if is_due(table) else []
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


def _rows(table: Table, files: list[Written]) -> int:
    return sum(file.record_count for file in described(table, files))
