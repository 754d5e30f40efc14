"""Histories of a group's positions under every fault: a sample, and proof that they can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headwater.buffer.group.record import (
    GroupEpoch,
    GroupPosition,
    GroupRecord,
    begin_of,
)
from headwater.buffer.group.register import GroupRegister
from headwater.core import runtime
from headwater.store.claims import ClaimTable
from tests.planted import NOTICED, expect_noticed
from tests.torture.group_scenarios import SCENARIOS, group_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 300
RARE = {"reset-beside-readers": 500}
"""Bugs that take a rare order of events, and a seed after which it comes soon."""
CAUGHT = (*NOTICED, LookupError)


async def takes_from_a_higher_epoch(
    self: GroupRegister, partition: int, epoch: GroupEpoch
) -> GroupPosition:
    """Writes its epoch, whichever is there."""

    def taken(now: GroupPosition | None) -> GroupPosition:
        if now is None or now.resets != epoch.resets:
            lsn = begin_of(partition, epoch.begins)
        else:
            lsn = now.lsn
        return GroupPosition(epoch.number, epoch.resets, lsn, runtime.wall_ms())

    return (await self._position(partition).update(taken)).value


_take = GroupRegister.take


async def reads_before_it_takes(
    self: GroupRegister, partition: int, epoch: GroupEpoch
) -> GroupPosition:
    """Continues at the position that it read, not at the one that its write found."""
    read = await self._read_position(partition)
    taken = await _take(self, partition, epoch)
    if read is None or read.resets != epoch.resets:
        return msgspec.structs.replace(taken, lsn=begin_of(partition, epoch.begins))
    return msgspec.structs.replace(taken, lsn=read.lsn)


async def writes_what_it_read(
    self: GroupRegister, partition: int, epoch: GroupEpoch
) -> GroupPosition:
    """Writes the position that it read before."""
    read = await reads_before_it_takes(self, partition, epoch)
    return await self.seek(partition, epoch, read.lsn)


_reset = GroupRegister.reset


async def resets_without_counting(
    self: GroupRegister, begins: Mapping[int, int], **_: Any
) -> GroupRecord:
    """Sets where the group begins, and leaves the number of resets."""

    def reset(now: GroupRecord) -> GroupRecord:
        moved = {**now.begins, **{str(one): lsn for one, lsn in begins.items()}}
        return msgspec.structs.replace(
            now, epoch=now.epoch + 1, begins=moved, table=ClaimTable(), query=""
        )

    return await self._update(reset)


async def resets_beside_readers(
    self: GroupRegister, begins: Mapping[int, int], **_: Any
) -> GroupRecord:
    """Reads where the other partitions are, and does not stop their readers first."""
    found = (await self.positions())[1]
    return await _reset(self, {**found, **begins})


async def forgets_the_epoch(self: GroupRegister, **_: Any) -> GroupRecord:
    """A deleted group gives its epochs again."""

    def delete(now: GroupRecord) -> GroupRecord:
        return GroupRecord(now.kind, 0, now.resets, {}, runtime.wall_ms(), deleted=True)

    return await self._update(delete)


async def begins_without_counting(
    self: GroupRegister, kind: Any, begins: Mapping[int, int]
) -> GroupRecord:
    """A group that begins again keeps the number of resets, and so its old positions."""
    stored = {str(one): lsn for one, lsn in begins.items()}

    def begun(now: GroupRecord | None) -> GroupRecord:
        if now is not None and not now.deleted:
            return now
        epoch, resets = (0, 0) if now is None else (now.epoch, now.resets)
        return GroupRecord(kind, epoch, resets, stored, runtime.wall_ms())

    return (await self._record.update(begun)).value


async def moves_for_any_epoch(
    self: GroupRegister, partition: int, epoch: GroupEpoch, to: Any
) -> GroupPosition:
    """Acknowledges whichever epoch has the partition, and under its own."""

    def moved(now: GroupPosition | None) -> GroupPosition:
        assert now is not None
        return msgspec.structs.replace(now, epoch=epoch.number, lsn=to(now))

    return (await self._position(partition).update(moved)).value


async def moves_under_the_epoch_it_finds(
    self: GroupRegister, partition: int, epoch: GroupEpoch, to: Any
) -> GroupPosition:
    """Acknowledges for its successor."""

    def moved(now: GroupPosition | None) -> GroupPosition:
        assert now is not None
        return msgspec.structs.replace(now, lsn=to(now))

    return (await self._position(partition).update(moved)).value


async def starts_without_raising(self: GroupRegister, query: str, **_: Any) -> GroupEpoch:
    """A restart of the same query continues under its epoch."""

    def started(now: GroupRecord) -> GroupRecord:
        number = max(1, now.epoch + (now.query != query))
        return msgspec.structs.replace(now, query=query, epoch=number)

    return GroupEpoch.of(await self._update(started))


def holds_what_it_held(self: GroupRecord, partition: int, epoch: GroupEpoch) -> bool:
    """A check that looks at nothing."""
    return True


PLANTED: dict[str, tuple[Replacement, ...]] = {
    "lower-epoch-replaces-higher": ((GroupRegister, "take", takes_from_a_higher_epoch),),
    "position-read-before-take": ((GroupRegister, "take", reads_before_it_takes),),
    "position-written-as-read": ((GroupRegister, "take", writes_what_it_read),),
    "reset-without-resets": ((GroupRegister, "reset", resets_without_counting),),
    "reset-beside-readers": ((GroupRegister, "reset", resets_beside_readers),),
    "delete-forgets-the-epoch": ((GroupRegister, "delete", forgets_the_epoch),),
    "begins-again-with-old-positions": ((GroupRegister, "begin", begins_without_counting),),
    "acknowledgement-of-any-epoch": ((GroupRegister, "_move", moves_for_any_epoch),),
    "acknowledgement-for-a-successor": ((GroupRegister, "_move", moves_under_the_epoch_it_finds),),
    "start-without-an-epoch": ((GroupRegister, "start_query", starts_without_raising),),
    "check-that-looks-at-nothing": ((GroupRecord, "is_held", holds_what_it_held),),
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: group_history(seed, *PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=RARE.get(bug, 0),
        by=CAUGHT,
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert group_history(5) == group_history(5)
    assert group_history(5) != group_history(6)
