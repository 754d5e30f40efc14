"""Members of a group under every fault, and proof that the histories can fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.group.partition import ClaimedPartition
from headwater.buffer.group.record import GroupEpoch, GroupPosition
from headwater.buffer.group.register import GroupRegister
from headwater.core import runtime
from headwater.store.claimant import Claimant
from tests.planted import expect_noticed
from tests.torture.group_consumer_scenarios import SCENARIOS, group_consumer_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 600
TAKE, START = GroupRegister.take, Claimant.start


async def take_what_was_read_before(
    self: GroupRegister, partition: int, epoch: GroupEpoch
) -> GroupPosition:
    """Decides where to begin before the write that fences the predecessor."""
    before = await self._read_position(partition)
    await runtime.sleep(1.0)
    taken = await TAKE(self, partition, epoch)
    if before is None or before.resets != taken.resets:
        return taken
    return msgspec.structs.replace(taken, lsn=before.lsn)


async def never_look(self: Claimant) -> None:
    """Relies on a claim for as long as it lives."""
    await START(self)


async def acknowledge_unchecked(
    self: GroupRegister, partition: int, epoch: GroupEpoch, lsn: int
) -> GroupPosition:
    """Moves the position of whichever epoch holds it."""

    def moved(now: GroupPosition | None) -> GroupPosition:
        assert now is not None
        return msgspec.structs.replace(now, lsn=max(now.lsn, lsn), committed_ms=runtime.wall_ms())

    return (await self._position(partition).update(moved)).value


def ack_everything(self: ClaimedPartition, batch: ConsumedBatch) -> int:
    """Acknowledges what was read, and not what was processed."""
    last = batch if self._ready is None else self._ready
    self._delivered.clear()
    self.acked_lsn = last.last_lsn + 1
    return 1


async def skip_to_the_end(self: ClaimedPartition, lsn: int) -> None:
    """Begins at the end of the queue, whatever the position."""
    reader = self._stream.queue_reader(self.number)
    state = await reader.state()
    self._start_delivery(reader, state.next_sequence - 1)


async def write_nothing(self: ClaimedPartition) -> None:
    """Says that acknowledgements are stored, and stores none."""
    self.committed_lsn = self.acked_lsn


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_record_is_skipped_or_acknowledged_twice(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((GroupRegister, "take", take_what_was_read_before), id="position-read-before"),
        pytest.param((Claimant, "ensure_current", never_look), id="claim-outlives-its-fence"),
        pytest.param((GroupRegister, "acknowledge", acknowledge_unchecked), id="ack-without-epoch"),
        pytest.param((ClaimedPartition, "ack", ack_everything), id="ack-of-what-was-only-read"),
        pytest.param((ClaimedPartition, "_locate", skip_to_the_end), id="begins-at-the-end"),
        pytest.param((ClaimedPartition, "write", write_nothing), id="acks-not-stored"),
    ],
)
def test_a_bug_planted_in_a_group_is_caught(bug: Replacement) -> None:
    expect_noticed(
        lambda seed: group_consumer_history(seed, bug),
        within=HISTORIES_TO_CATCH_A_BUG,
        by=(AssertionError,),
    )


def test_the_same_seed_gives_the_same_history_of_a_group() -> None:
    assert group_consumer_history(5) == group_consumer_history(5)
    assert group_consumer_history(5) != group_consumer_history(6)
