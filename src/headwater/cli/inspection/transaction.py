"""The registers of sink transactions in plain words: commit records, and holds."""

from __future__ import annotations

from typing import Any, Final

from headwater.buffer.transaction.holds import Hold, Holds
from headwater.buffer.transaction.record import (
    NO_VERSION,
    ApplicationRecord,
    CommitAttempt,
    producer_id,
)
from headwater.cli.inspection.report import Report, Rows

_WRITERS: Final = {
    "query": ("streaming query {}", "micro-batch {}"),
    "app": ("batch jobs of txnAppId {}", "txnVersion {}"),
    "jobs": ("batch jobs that name nothing, slot {}", "the job counted {}"),
}
_SHARES: Final = (
    "partition",
    "batches",
    "rows",
    "size_bytes",
    "first_producer_sequence",
    "last_producer_sequence",
)
_HOLDS: Final = ("whose", "attempt", "holds_uploads_above", "ends_unrenewed_after", "state")


def describe_record(report: Report, record: ApplicationRecord, entries: int) -> None:
    """What an application committed last, and whether all of it is in the queues."""
    whose, numbered = _WRITERS.get(record.kind, ("{}", "{}"))
    report.facts |= {
        "written_by": whose.format(record.name) if record.kind else "nobody who has committed yet",
        "last_committed": "nothing yet"
        if record.version == NO_VERSION
        else numbered.format(record.version),
        "committed_by_attempt": record.attempt or None,
        "state": "committed, and being appended" if record.is_appending else "all of it appended",
        "ended_before_they_committed": record.revocations,
    }
    if record.kind:
        application = CommitAttempt(record.kind, record.name, None, "").application
        report.facts["appends_as_producer"] = producer_id(application)
    if any(record.recent):
        report.facts["jobs_remembered_before_it"] = sum(map(bool, record.recent))
    if record.is_appending:
        _describe_shares(report, record, entries)
    report.notes.append(
        "a version at or below the last committed one is not written again, whoever repeats it"
    )


def _describe_shares(report: Report, record: ApplicationRecord, entries: int) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            share.partition,
            len(share.uploads),
            sum(upload.rows for upload in share.uploads),
            sum(upload.size_bytes for upload in share.uploads),
            share.first_producer_sequence,
            share.last_producer_sequence,
        )
        for share in record.shares
    ]
    total = len(rows) if len(rows) > entries else None
    report.tables.append(Rows("to_append", _SHARES, rows[:entries], total))
    report.notes.append(
        "some of it may be appended already: the writer's next run finishes it, or the collector "
        "once nobody has renewed its hold"
    )


def describe_holds(report: Report, holds: Holds, entries: int) -> None:
    """What open transactions keep from the collector."""
    report.facts |= {
        "open_transactions": len(holds.holds),
        "collected_at_most_through": holds.floor,
    }
    rows = [(*_named(name, hold), *_shown(hold)) for name, hold in sorted(holds.holds.items())]
    total = len(rows) if len(rows) > entries else None
    report.tables.append(Rows("holds", _HOLDS, rows[:entries], total))
    report.notes.append("what is uploaded above a hold stays until it is moved, dropped or ended")


def _named(name: str, hold: Hold) -> tuple[str, str]:
    return hold.application, name.removeprefix(f"{hold.application}.")


def _shown(hold: Hold) -> tuple[str, str, str]:
    renewed = f"renewed {hold.renewals:,} times"
    state = "being ended: nothing is committed under it" if hold.is_ending else renewed
    return hold.above, f"{hold.timeout_ms / 3_600_000:g} h", state
