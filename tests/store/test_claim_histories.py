"""Members that share names under every fault, and proof that the histories can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.lease import Lease
from headwater.store import claims
from headwater.store.claimant import Claimant
from headwater.store.claims import BeatObserver, ClaimState, ClaimTable
from tests.planted import expect_noticed
from tests.torture.claims_scenarios import SCENARIOS, claims_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 400
SEE, DRAIN, REQUEST = Claimant._see, Claimant._drain, Claimant._request


def evict_unchecked(table: ClaimTable, dead: Mapping[str, int]) -> ClaimTable:
    """Evicts whom it observed, whatever the member wrote since."""
    for member in dead:
        table = claims.leave(table, member)
    return table


def see_from_the_answer(self: Claimant, state: ClaimState, _: Lease) -> None:
    """Relies on its claims from the time of the answer on."""
    SEE(self, state, Lease())


async def look_before_the_heartbeat(self: Claimant) -> None:
    """Relies on its claims as long as it can read, though its heartbeats do not land."""
    lease = Lease()
    self._see(await self._register.read(), lease)
    await REQUEST(self)


def claim_under_the_last_epoch(self: Claimant, state: ClaimState) -> ClaimState:
    """Claims without raising the epoch."""
    names = claims.claimable(state.table, self.member, self._names)
    return ClaimState(
        state.epoch, claims.claim(state.table, self.member, names, max(1, state.epoch))
    )


async def drain_in_the_background(self: Claimant, draining: Mapping[str, int]) -> None:
    """Releases at once what the user is still using."""
    runtime.spawn(DRAIN(self, draining), name="drain later")
    await asyncio.sleep(0)


def lose_nothing(self: Claimant, names: frozenset[str]) -> None:
    """Does not say that names are lost."""
    self.claims = {name: epoch for name, epoch in self.claims.items() if name not in names}


def dead_by_wall_clock(_: BeatObserver, table: ClaimTable) -> dict[str, int]:
    """Compares its own clock with the member's."""
    return {
        name: member.beats
        for name, member in table.members.items()
        if runtime.wall_ms() - member.seen_ms >= member.timeout_s * 1000
    }


def never_dead(_: BeatObserver, table: ClaimTable) -> dict[str, int]:
    """Waits without end for the dead."""
    return {}


def release_nothing(table: ClaimTable, member: str, names: Any) -> list[str]:
    """Keeps more than its share."""
    return []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_name_has_two_users_and_in_the_end_each_has_one(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((claims, "evict", evict_unchecked), id="evicts-without-checking-the-beat"),
        pytest.param((Claimant, "_see", see_from_the_answer), id="lease-from-the-answer"),
        pytest.param(
            (Claimant, "_request", look_before_the_heartbeat), id="lease-without-heartbeat"
        ),
        pytest.param(
            (Claimant, "_claim_free", claim_under_the_last_epoch), id="claim-without-epoch"
        ),
        pytest.param((Claimant, "_drain", drain_in_the_background), id="releases-undrained"),
        pytest.param((Claimant, "_lose", lose_nothing), id="losses-not-reported"),
        pytest.param((BeatObserver, "dead", dead_by_wall_clock), id="dead-by-wall-clock"),
        pytest.param((BeatObserver, "dead", never_dead), id="never-dead"),
        pytest.param((claims, "surplus", release_nothing), id="releases-nothing"),
    ],
)
def test_a_planted_bug_of_sharing_is_caught(bug: Replacement) -> None:
    expect_noticed(
        lambda seed: claims_history(seed, bug),
        within=HISTORIES_TO_CATCH_A_BUG,
        by=(AssertionError,),
    )


def test_the_same_seed_gives_the_same_history_of_claims() -> None:
    assert claims_history(5) == claims_history(5)
    assert claims_history(5) != claims_history(6)
