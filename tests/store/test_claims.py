"""What each member should hold follows from the table alone; changes of a table are pure."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store import claims
from headwater.store.claims import BeatObserver, Claim, ClaimTable, Member
from headwater.testing import Simulation, simulate


def table_of(**held: str) -> ClaimTable:
    """Members in the order of their joining, each with the names it holds: a="012"."""
    table = ClaimTable()
    for epoch, (member, names) in enumerate(held.items(), start=1):
        table = claims.join(table, member, Member(1, 60.0, 0))
        table = claims.claim(table, member, names, epoch)
    return table


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def held(table: ClaimTable) -> dict[str, str]:
    return {
        member: "".join(sorted(table.held_by(member), key=claims.name_order))
        for member in table.members
    }


def test_the_only_member_claims_every_name() -> None:
    table = table_of(a="")
    assert claims.claimable(table, "a", names(12)) == names(12)


def test_names_that_are_left_over_go_to_those_that_joined_first() -> None:
    assert claims.quotas(table_of(a="", b="", c=""), names(5)) == {"a": 2, "b": 2, "c": 1}


def test_members_that_hold_most_keep_the_larger_shares() -> None:
    table = table_of(a="0", b="12", c="34")
    assert claims.quotas(table, names(5)) == {"b": 2, "c": 2, "a": 1}
    assert not claims.surplus(table, "b", names(5))


def test_a_member_beyond_the_number_of_names_stands_by() -> None:
    table = table_of(a="0", b="1", c="")
    assert claims.claimable(table, "c", names(2)) == []
    assert claims.missing(table, "c", names(2)) == 0


def test_a_member_above_its_quota_releases_its_highest_names() -> None:
    table = claims.claim(table_of(a="", b=""), "a", names(12), 1)
    assert claims.surplus(table, "a", names(12)) == ["6", "7", "8", "9", "10", "11"]
    assert claims.claimable(table, "b", names(12)) == []


def test_a_member_below_its_quota_claims_the_lowest_free_names() -> None:
    assert claims.claimable(table_of(a="1", b="2"), "a", names(4)) == ["0"]


def test_a_name_that_only_the_table_knows_counts_and_is_not_claimed() -> None:
    table = table_of(a="01", b="")
    assert claims.quotas(table, ["0"]) == {"a": 1, "b": 1}
    assert claims.claimable(claims.release(table, "a", {"1": 1}), "b", ["0"]) == []


def test_one_that_is_not_a_member_has_no_share() -> None:
    assert claims.claimable(table_of(a="0"), "x", names(2)) == []
    assert claims.surplus(table_of(a="0"), "x", names(2)) == []
    assert claims.quotas(ClaimTable(), names(2)) == {}


def test_a_claim_takes_nothing_that_is_held() -> None:
    table = claims.claim(table_of(a="0", b=""), "b", ["0", "1"], 7)
    assert table.claims == {"0": Claim("a", 1), "1": Claim("b", 7)}


def test_a_release_of_an_older_claim_frees_nothing() -> None:
    table = claims.release(table_of(a="01"), "a", {"0": 9, "1": 1})
    assert held(table) == {"a": "0"}


def test_a_release_frees_only_the_claims_of_its_member() -> None:
    assert held(claims.release(table_of(a="0", b="1"), "b", {"0": 1, "1": 2})) == {
        "a": "0",
        "b": "",
    }


def test_leaving_frees_what_was_held() -> None:
    assert held(claims.leave(table_of(a="0", b="1"), "a")) == {"b": "1"}
    assert claims.leave(table_of(a="0"), "x") == table_of(a="0")


def test_joining_again_frees_what_was_held_and_gives_a_later_number() -> None:
    table = claims.join(table_of(a="0", b="1"), "a", Member(5, 60.0, 0))
    assert held(table) == {"a": "", "b": "1"}
    assert table.members["a"].joined == 3


def test_a_member_that_beat_is_not_evicted() -> None:
    table = claims.beat(table_of(a="0", b="1"), "a", beats=2, seen_ms=5)
    assert claims.evict(table, {"a": 1, "gone": 1}) == table
    assert held(claims.evict(table, {"a": 2})) == {"b": "1"}


COUNTS = st.integers(1, 9)
MEMBERS = st.sampled_from("abcde")


@st.composite
def tables(draw: st.DrawFn) -> tuple[ClaimTable, list[str]]:
    """Some members that hold any of the names, and the names."""
    count = draw(COUNTS)
    table = table_of(**dict.fromkeys(draw(st.lists(MEMBERS, min_size=1, unique=True)), ""))
    for name in names(count):
        if holder := draw(st.sampled_from(["", *table.members])):
            table = claims.claim(table, holder, [name], 1)
    return table, names(count)


def settled(table: ClaimTable, shared: Iterable[str], order: list[str]) -> ClaimTable:
    """Members act in this order, again and again, until nothing changes."""
    for epoch in range(2, 50):
        before = table
        for member in order:
            released = dict.fromkeys(claims.surplus(table, member, shared), 0)
            epochs = {name: table.claims[name].epoch for name in released}
            table = claims.release(table, member, epochs)
            table = claims.claim(table, member, claims.claimable(table, member, shared), epoch)
        if table == before:
            return table
    pytest.fail("names move without end")


@given(tables(), st.randoms(use_true_random=False))
def test_members_that_act_in_any_order_agree_on_equal_shares(
    drawn: tuple[ClaimTable, list[str]], random: object
) -> None:
    table, shared = drawn
    order = sorted(table.members)
    random.shuffle(order)  # type: ignore[attr-defined]
    after = settled(table, shared, order)
    assert sorted(after.claims) == sorted(shared)
    shares = [len(after.held_by(member)) for member in after.members]
    assert max(shares) - min(shares) <= 1


@given(tables(), st.randoms(use_true_random=False))
def test_no_more_moves_than_balance_needs(
    drawn: tuple[ClaimTable, list[str]], random: object
) -> None:
    table, shared = drawn
    order = sorted(table.members)
    random.shuffle(order)  # type: ignore[attr-defined]
    after = settled(table, shared, order)
    quotas = claims.quotas(table, shared)
    over = sum(max(0, len(table.held_by(member)) - quotas[member]) for member in quotas)
    moved = [n for n, c in table.claims.items() if after.claims[n].member != c.member]
    assert len(moved) <= over
    for member in table.members:
        if len(table.held_by(member)) <= quotas[member]:
            assert set(table.held_by(member)) <= set(after.held_by(member))


@given(tables())
def test_quotas_divide_all_names(drawn: tuple[ClaimTable, list[str]]) -> None:
    table, shared = drawn
    quotas = claims.quotas(table, shared)
    assert sum(quotas.values()) == len(shared)
    assert max(quotas.values()) - min(quotas.values()) <= 1


def test_a_member_is_dead_after_its_own_timeout_without_a_beat() -> None:
    async def main(simulation: Simulation) -> None:
        table = claims.join(table_of(a=""), "slow", Member(1, 600.0, 0))
        observer = BeatObserver()
        assert observer.dead(table) == {}
        observer.observe(table)
        await simulation.runtime.sleep(59.0)
        assert observer.dead(table) == {}
        observer.observe(table)
        await simulation.runtime.sleep(1.0)
        assert observer.dead(table) == {"a": 1}
        observer.observe(claims.beat(table, "a", beats=2))
        assert observer.dead(table) == {}
        await simulation.runtime.sleep(540.0)
        assert observer.dead(table) == {"a": 2, "slow": 1}
        assert observer.dead(claims.leave(table, "slow")) == {"a": 2}

    simulate(main)


def test_a_clock_that_is_set_forward_kills_no_member() -> None:
    async def main(simulation: Simulation) -> None:
        observer, table = BeatObserver(), table_of(a="")
        observer.observe(table)
        simulation.runtime.jump(86_400_000)
        assert observer.dead(table) == {}

    simulate(main)
