"""Histories of transactions under every fault: a sample, and proof that they can fail.

Each planted bug is a mistake somebody would make. A history that does not notice it proves nothing
about the code that is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headwater.buffer import collection
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream
from headwater.buffer.transaction import holds as holds_module
from headwater.buffer.transaction.commit import (
    CommitResult,
    TaskUploads,
    TransactionCommitter,
    in_order,
)
from headwater.buffer.transaction.holds import Hold, Holds
from headwater.buffer.transaction.record import ApplicationRecord, CommitAppender, PartitionBatches
from headwater.buffer.transaction.upload import Uploader
from headwater.core import runtime
from tests.planted import NOTICED, expect_noticed
from tests.torture.buffer_world import Parts
from tests.torture.transaction_scenarios import SCENARIOS, transaction_history

HISTORIES_TO_CATCH_A_BUG = 200
FIRST_SEEDS = {"abort-without-asking": 41, "commit-without-a-hold": 7, "hold-dropped-at-once": 30}
"""Where not to begin at 0: what takes a driver to stand still at one moment is seldom seen."""
CAUGHT = (*NOTICED, LookupError)


async def appends_without_a_record(
    self: TransactionCommitter, tasks: Sequence[TaskUploads]
) -> CommitResult:
    """Every attempt appends what it uploaded."""
    uploads = in_order(tasks)
    first = await self._appending.next_sequences(uploads)
    for partition, batches in uploads.items():
        share = PartitionBatches(partition, first[partition], tuple(batches))
        await self._appending._opened[partition].appender.append(share.batches(after=0))
    await self._appending.close()
    return CommitResult(self._attempt.version or 0, True, 0)


_seal = Uploader._seal


async def seals_before_it_holds(self: Uploader, partition: int) -> None:
    """Uploads first, and takes the hold when the task is done."""
    if self._hold is None:
        above = "0" * 26
        self._hold = Hold(self._holder._attempt.application, "", above, self._holder._timeout_ms)
    await _seal(self, partition)


_finish = Uploader.finish


async def holds_in_the_end(self: Uploader) -> TaskUploads:
    """See above."""
    done = await _finish(self)
    if not done.uploads:
        return done
    return msgspec.structs.replace(done, hold_token=(await self._holder.take()).token)


async def looks_at_the_token_alone(self: TransactionCommitter, tasks: Any, uploads: Any) -> None:
    """Does not look whether uploads lie above the hold."""
    await self._holder.read()


async def ignores_holds(stream: Stream, partition: int) -> Retention:
    """How long batches stay, and nothing else."""
    return stream.retention()


async def aborts_without_asking(self: TransactionCommitter, tasks: Sequence[TaskUploads]) -> bool:
    """Whoever aborts has failed, hasn't it?"""
    await self._discard(in_order(tasks))
    await self._release(for_good=True)
    return True


async def drops_at_once(stream: Stream, register: Any, ending: dict[str, Hold]) -> Holds:
    """Ends holds without telling their applications."""

    def drop(now: Holds | None) -> Holds:
        now = now or Holds()
        for name in ending:
            now = now.with_hold(name, None)
        return now

    dropped: Holds = (await register.update(drop)).value
    return dropped


async def trusts_its_hold(self: TransactionCommitter, tasks: Any, uploads: Any) -> None:
    """Commits whether the hold stands or not."""


def expires_by_its_own_clock(hold: Hold, at_ms: int) -> Hold:
    """Compares what the store said then with what the clock here says now."""
    if hold.seen_renewals != hold.renewals:
        return msgspec.structs.replace(hold, seen_renewals=hold.renewals, seen_ms=at_ms)
    ending = runtime.wall_ms() - hold.seen_ms >= hold.timeout_ms
    return msgspec.structs.replace(hold, is_ending=ending)


def knows_nothing(self: ApplicationRecord, attempt: Any) -> bool:
    """Commits a version again that is committed."""
    return False


async def appends_from_the_start(self: CommitAppender, share: Any) -> None:
    """Gives the batches of a record the next numbers, whichever those are."""
    opened = self._opened[share.partition]
    batches = share.batches(after=0)
    renumbered = [
        msgspec.structs.replace(batch, producer_sequence=opened.landed + 1 + place)
        for place, batch in enumerate(batches)
    ]
    await opened.appender.append(renumbered)


def _replacing(*replaced: tuple[Any, str, Any]) -> Parts:
    return Parts(replaced=replaced)


PLANTED = {
    "append-without-the-record": _replacing(
        (TransactionCommitter, "commit", appends_without_a_record)
    ),
    "hold-taken-after-the-upload": _replacing(
        (Uploader, "_seal", seals_before_it_holds),
        (Uploader, "finish", holds_in_the_end),
        (TransactionCommitter, "_check_held", looks_at_the_token_alone),
    ),
    "collector-ignores-holds": _replacing((collection, "retention_of", ignores_holds)),
    "abort-without-asking": _replacing((TransactionCommitter, "abort", aborts_without_asking)),
    "hold-dropped-at-once": _replacing((holds_module, "_end_holds", drops_at_once)),
    "commit-without-a-hold": _replacing((TransactionCommitter, "_check_held", trusts_its_hold)),
    "expiry-by-the-wrong-clock": _replacing(
        (holds_module, "_note_renewals", expires_by_its_own_clock)
    ),
    "version-committed-again": _replacing((ApplicationRecord, "has", knows_nothing)),
    "record-appended-again": _replacing((CommitAppender, "_append", appends_from_the_start)),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 0)
    expect_noticed(
        lambda seed: transaction_history(seed, PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=first,
        by=CAUGHT,
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert transaction_history(5) == transaction_history(5)
    assert transaction_history(5) != transaction_history(6)
