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
from headwater.core.errors import Contended, OutcomeUnknown, Refused
from headwater.core.retry import RetryPolicy
from headwater.table import metadata_sweep
from headwater.table.data_files import (
    FLOOR,
    WrittenFile,
    check_files_belong,
    to_data_files,
)

APP: Final = "headwater.query-id"
VERSION: Final = "headwater.batch-id"
WRITER: Final = "headwater.writer"
LAST: Final = "headwater.last-batch."
APPS_MAX: Final = 100
FORGET_AFTER_MS: Final = 30 * 24 * 3600 * 1000
"""If there are more than APPS_MAX, applications without a commit for so long are forgotten."""

COMMIT_ATTEMPTS: Final = 30
MERGE_MANIFESTS: Final = 20
"""At so many manifests they are merged: a commit reads and writes the list of all of them."""

WHILE_COMMITTING: Final = {
    TableProperties.COMMIT_NUM_RETRIES: "0",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.MANIFEST_MIN_MERGE_COUNT: str(MERGE_MANIFESTS),
}
"""Properties that apply to our commits, whatever the table's own properties are."""


class CommitToken(NamedTuple):
    """Identifies what is written at most once: version `version` of application `app`."""

    app: str
    version: int
    writer: str
    """Unique to this attempt: tells its commit from that of a duplicate."""
    is_repeatable: bool = True
    """Whether the same version may be written again, so that it has to be remembered."""
    is_query: bool = False
    """Whether a streaming query writes: it repeats its last version, never an earlier one."""

    def summary(self) -> dict[str, str]:
        return {APP: self.app, VERSION: str(self.version), WRITER: self.writer}


class CommittedVersion(NamedTuple):
    """A version that is in the table."""

    snapshot_id: int | None
    """None if the snapshot has expired."""
    is_ours: bool | None
    """Whether this attempt committed it; None if that is no longer known."""


class WriteResult(NamedTuple):
    """The result of a write."""

    snapshot_id: int | None
    """None if nothing was written, or if the snapshot has expired."""
    rows: int
    files: int
    already_committed: bool
    """Whether an earlier attempt had committed this version already."""


def find_commit(metadata: TableMetadata, token: CommitToken) -> CommittedVersion | None:
    """Look for a version in the table's snapshots and in the property that outlives them.

    `Refused` if a query comes with an older version than its last: its checkpoint is an old copy,
    and the micro-batch of that number may have other rows than those in the table.
    """
    stored = metadata.properties.get(f"{LAST}{token.app}")
    last = None if stored is None else _LastVersion.parse(stored)
    if token.is_query and last is not None and token.version < last.version:
        raise Refused(
            f"micro-batch {token.version} of query {token.app}: the table has its micro-batch "
            f"{last.version} already. Its checkpoint is an older copy, or another run of it has "
            "committed more. Nothing of this one is written: stop one of the two, or give the "
            "query a new checkpoint_location"
        )
    for snapshot in reversed(metadata.snapshots):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get(APP) == token.app and summary.get(VERSION) == str(token.version):
            return CommittedVersion(snapshot.snapshot_id, summary.get(WRITER) == token.writer)
    if last is None or last.version < token.version:
        return None
    is_ours = last.writer == token.writer if last.version == token.version else None
    return CommittedVersion(None, is_ours)


class _LastVersion(NamedTuple):
    version: int
    committed_ms: int
    writer: str

    @classmethod
    def parse(cls, text: str) -> _LastVersion:
        version, committed_ms, writer = text.split(" ", 2)
        return cls(int(version), int(committed_ms), writer)


def remember_version(
    metadata: TableMetadata, token: CommitToken, now_ms: int
) -> tuple[dict[str, str], set[str]]:
    """The properties to set, and those to remove to bound their number."""
    if not token.is_repeatable:
        return {}, set()
    name = f"{LAST}{token.app}"
    others = {
        key: _LastVersion.parse(value).committed_ms
        for key, value in metadata.properties.items()
        if key.startswith(LAST) and key != name
    }
    surplus = sorted(others, key=others.__getitem__)[: max(0, len(others) + 1 - APPS_MAX)]
    expired = {key for key in surplus if others[key] < now_ms - FORGET_AFTER_MS}
    return {name: f"{token.version} {now_ms} {token.writer}"}, expired


def commit_files(
    catalog: Catalog,
    name: str,
    files: list[WrittenFile],
    token: CommitToken,
    *,
    keep_snapshots: int,
) -> CommittedVersion:
    """Add a snapshot with these files, unless the table has the version already.

    `Contended`, `FilesRefused`: none of the files is in the table, and none ever will be.
    """
    budget = RetryPolicy().start(attempts=COMMIT_ATTEMPTS)
    failed_attempts = 0
    unknown: CommitStateUnknownException | None = None
    before_unknown: TableMetadata | None = None  # of the first attempt that may have landed
    while True:
        with keeping_unknown(name, unknown):
            table = catalog.load_table(name)
            committed = find_commit(table.metadata, token)
            if committed is not None:
                return committed
            if before_unknown is not None and not token.is_repeatable:
                _check_snapshot_kept(name, before_unknown, table.metadata, unknown)
            check_files_belong(table, files)
            loaded = table.metadata  # `_append` changes the table's
            try:
                return _append(table, files, token, keep_snapshots)
            except (CommitFailedException, FileNotFoundError) as error:
                # A missing file was swept after the table was loaded, so others have committed.
                failure: Exception = error
            except CommitStateUnknownException as error:
                failure = unknown = error
                before_unknown = loaded if before_unknown is None else before_unknown
        failed_attempts += 1
        # The first retry does not wait: mostly one other commit came first, and it is done by now.
        if failed_attempts > 1 and not portal.shared().call(budget.pause()):
            if unknown is not None:
                raise OutcomeUnknown(f"{name}: {unknown}") from unknown
            raise Contended(
                f"{name}: not written: other commits came first {failed_attempts} times"
            ) from failure


def _check_snapshot_kept(
    name: str, before: TableMetadata, now: TableMetadata, unknown: Exception | None
) -> None:
    """Raise `OutcomeUnknown` if the snapshot that followed `before` has expired.

    A token that is not repeatable is only in snapshots, and the expired one may have been ours.
    """
    if now.format_version == 1:
        parent = before.current_snapshot_id
        has_moved = now.current_snapshot_id != parent
        is_kept = any(one.parent_snapshot_id == parent for one in now.snapshots)
    else:
        number = before.next_sequence_number()
        has_moved = now.last_sequence_number >= number
        is_kept = any(one.sequence_number == number for one in now.snapshots)
    if has_moved and not is_kept:
        raise OutcomeUnknown(
            f"{name}: {unknown}; then: the snapshot that shows whether the commit landed has "
            "expired"
        ) from unknown


@contextlib.contextmanager
def keeping_unknown(name: str, unknown: CommitStateUnknownException | None) -> Iterator[None]:
    """Turn errors into `OutcomeUnknown` if an earlier attempt may have landed.

    A caller that gets `Unavailable`, or an error that the table does not exist, would write the
    rows again.
    """
    try:
        yield
    except (OutcomeUnknown, CommitFailedException, CommitStateUnknownException):
        raise  # the caller's loop handles these
    except Exception as error:
        if unknown is None:
            raise
        raise OutcomeUnknown(f"{name}: {unknown}; then: {error}") from error


class _SameFloor(ValidatableTableRequirement):
    """Requires that no orphans were removed since the floor was read.

    pyiceberg checks only a commit's requirements against the current metadata, and a changed
    property is otherwise no reason to refuse a commit.
    """

    type: Literal["headwater-same-floor"] = "headwater-same-floor"
    floor: str | None

    def validate(  # type: ignore[override]
        self, base_metadata: TableMetadata | None
    ) -> None:
        now = None if base_metadata is None else base_metadata.properties.get(FLOOR)
        if now != self.floor:
            raise CommitFailedException(f"orphans were removed meanwhile, up to {now}")


def require_same_floor(transaction: Transaction) -> None:
    """Let a commit land only if the table still has the orphan floor that was loaded.

    A REST catalog rejects a requirement that it does not know; there the floor is only compared
    before the commit.
    """
    table = transaction._table
    if isinstance(table.catalog, MetastoreCatalog):
        same: Any = _SameFloor(floor=table.metadata.properties.get(FLOOR))
        transaction._requirements += (same,)


class _Transaction(Transaction):
    """Caches the metadata with its updates applied.

    Applying them copies the whole metadata with all snapshots, and one commit asks 18 times.
    """

    _applied: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the updates of this transaction applied."""
        if self._applied is None or self._applied[0] is not self._updates:
            self._applied = (self._updates, super().table_metadata)
        return self._applied[1]


def _append(
    table: Table, files: list[WrittenFile], token: CommitToken, keep_snapshots: int
) -> CommittedVersion:
    stored = table.metadata
    properties = {**stored.properties, **WHILE_COMMITTING}
    table.metadata = stored.model_copy(update={"properties": properties})
    transaction = _Transaction(table)
    with transaction.update_snapshot(snapshot_properties=token.summary()).merge_append() as append:
        for file in to_data_files(table, files):
            append.append_data_file(file)
    remembered, forgotten = remember_version(stored, token, runtime.wall_ms())
    if remembered:
        transaction.set_properties(remembered)
    if forgotten:
        transaction.remove_properties(*forgotten)
    expired = _expired_snapshots(stored, keep_snapshots)
    if expired:
        ExpireSnapshots(transaction).by_ids(expired).commit()
    require_same_floor(transaction)
    # The files were checked against this schema and this partition spec only.
    transaction._requirements += (
        AssertCurrentSchemaId.model_validate({"current-schema-id": stored.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": stored.default_spec_id}),
    )
    listed = metadata_sweep.list_before_commit(table)
    committed = transaction.commit_transaction()
    metadata_sweep.sweep_after_commit(committed, listed)
    return CommittedVersion(append.snapshot_id, is_ours=True)


def _expired_snapshots(metadata: TableMetadata, keep_snapshots: int) -> list[int]:
    """All snapshots but the newest ones and those that a branch or a tag refers to."""
    referenced = {reference.snapshot_id for reference in metadata.refs.values()}
    newest_last = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    surplus = newest_last[: max(0, len(newest_last) + 1 - keep_snapshots)]
    return [one.snapshot_id for one in surplus if one.snapshot_id not in referenced]
