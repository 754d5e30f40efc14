"""Commit policies: when a record counts as replicated, and what a time-out means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from headwater.log import (
    AckN,
    CommitUnknown,
    Local,
    Quorum,
    Regions,
    ReplicationConfig,
    parse_policy,
)
from headwater.log.primary.commits import CommitPolicy
from headwater.log.primary.registry import ReplicaState
from tests.log.leaders import leader, slot_register
from tests.store.scripted import virtual


def replicas(*durable: int) -> list[ReplicaState]:
    return [ReplicaState(f"r{n}", last_durable_lsn=lsn) for n, lsn in enumerate(durable)]


@pytest.mark.parametrize(
    ("policy", "durable", "replicated"),
    [
        (Local(), (), 100),
        (AckN(1), (), 0),
        (AckN(1), (5, 9, 7), 9),
        (AckN(2), (5, 9, 7), 7),
        (AckN(3), (5, 9, 7), 5),
        (AckN(4), (5, 9, 7), 0),
        (Quorum(2), (5,), 5),
        (Quorum(3), (5, 9), 9),
        (Quorum(3), (), 0),
        (Quorum(4), (5, 9, 7), 7),
        (Quorum(5), (5, 9, 7, 1), 7),
        (Quorum(5), (9,), 0),
    ],
)
def test_what_each_policy_asks_for(
    policy: CommitPolicy, durable: tuple[int, ...], replicated: int
) -> None:
    assert policy.replicated_lsn(replicas(*durable), 100) == replicated


def test_regions_must_each_have_enough() -> None:
    known = [
        ReplicaState("a", last_durable_lsn=9, region="eu"),
        ReplicaState("b", last_durable_lsn=4, region="eu"),
        ReplicaState("c", last_durable_lsn=7, region="us"),
        ReplicaState("d", last_durable_lsn=99),
    ]
    assert Regions.of({"eu": 1, "us": 1}).replicated_lsn(known, 100) == 7
    assert Regions.of({"eu": 2}).replicated_lsn(known, 100) == 4
    assert Regions.of({"eu": 1, "ap": 1}).replicated_lsn(known, 100) == 0


def test_a_copy_that_is_being_replaced_counts_for_nothing() -> None:
    loading = ReplicaState("a", last_durable_lsn=9, rebootstrapping=True)
    assert AckN(1).replicated_lsn([loading], 100) == 0


@pytest.mark.parametrize("text", ["local", "ack_n:2", "quorum:3", "regions:eu=1,us=2"])
def test_policies_have_words(text: str) -> None:
    assert str(parse_policy(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "local:1",
        "quorum",
        "quorum:1",
        "ack_n:0",
        "regions:",
        "regions:eu",
        "regions:eu=0",
        "regions:=1",
        "regions:eu=1,eu=2",
        "ack_n:many",
    ],
)
def test_a_policy_that_waits_for_nobody_or_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_policy(text)
    assert "invalid literal" not in str(refused.value)


@pytest.mark.parametrize("count", [1.5, 2.0, "2", True, None])
def test_a_policy_counts_in_whole_numbers(count: Any) -> None:
    for policy in (AckN, Quorum, lambda one: Regions.of({"eu": one})):
        with pytest.raises(Refused, match="must be a whole number"):
            policy(count)


@virtual
async def test_what_is_no_record_is_not_waited_for() -> None:
    one = await leader()
    one.wal.append(1)
    for lsn in (0, -1, 1.0, "1"):
        with pytest.raises(Refused):
            await one.primary.wait_committed(lsn)  # type: ignore[arg-type]


@virtual
async def test_a_quorum_does_not_shrink_to_the_leader_when_replicas_leave() -> None:
    one = await leader(commit_policy=Quorum(3), commit_timeout_s=5.0)
    one.wal.append(1)
    with pytest.raises(CommitUnknown):
        await one.primary.wait_committed(1)
    one.primary.register_replica("r1")
    one.acknowledge("r1", 1)
    assert (await one.primary.wait_committed(1)).is_replicated
    one.primary.unregister_replica("r1")
    one.wal.append(1)
    with pytest.raises(CommitUnknown):
        await one.primary.wait_committed(2)


@virtual
async def test_a_writer_goes_on_when_enough_replicas_have_it_and_not_before() -> None:
    one = await leader(commit_policy=AckN(2))
    one.wal.append(5)
    for name in ("r1", "r2"):
        one.primary.register_replica(name, position_lsn=0)
    waiting = runtime.spawn(one.primary.wait_committed(5), name="writer")
    one.acknowledge("r1", 5)
    one.acknowledge("r2", 5, 4)
    await runtime.sleep(1.0)
    assert not waiting.done(), "applied is not durable"
    one.acknowledge("r2", 5, 5)
    committed = await waiting
    assert (committed.is_replicated, committed.acknowledged_by) == (True, ["r1", "r2"])
    assert len(one.primary.commit_waiter) == 0


@virtual
async def test_a_time_out_is_an_unknown_outcome_that_says_who_has_it() -> None:
    one = await leader(commit_policy=AckN(2), commit_timeout_s=3.0)
    one.wal.append(1)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 1)
    began_s = runtime.monotonic_s()
    with pytest.raises(CommitUnknown, match="is in the log") as told:
        await one.primary.wait_committed(1)
    assert isinstance(told.value, OutcomeUnknown)
    assert not isinstance(told.value, Unavailable)
    assert (told.value.lsn, told.value.policy) == (1, "ack_n:2")
    assert told.value.acknowledged_by == ("r1",)
    assert 3.0 <= runtime.monotonic_s() - began_s < 3.5
    assert one.wal.current_lsn() == 1
    assert one.primary.metrics.commit_timeouts == {"ack_n:2": 1}
    assert len(one.primary.commit_waiter) == 0

    one.primary.register_replica("r2", position_lsn=0)
    one.acknowledge("r2", 1)
    assert (await one.primary.wait_committed(1)).is_replicated, "it came to be, later"


@virtual
async def test_a_leader_may_be_told_to_go_on_after_a_time_out() -> None:
    one = await leader(commit_policy=AckN(1), commit_timeout_s=3.0, on_commit_timeout="continue")
    one.wal.append(1)
    committed = await one.primary.wait_committed(1)
    assert not committed.is_replicated
    assert one.primary.metrics.commit_timeouts == {"ack_n:1": 1}


@virtual
async def test_an_acknowledgement_of_a_replica_that_left_counts_no_more() -> None:
    one = await leader(commit_policy=AckN(2), commit_timeout_s=5.0)
    one.wal.append(5)
    for name in ("r1", "r2"):
        one.primary.register_replica(name, position_lsn=0)
    one.acknowledge("r1", 5)
    waiting = runtime.spawn(one.primary.wait_committed(5), name="writer")
    await runtime.sleep(1.0)
    one.primary.unregister_replica("r1")
    one.acknowledge("r2", 5)
    with pytest.raises(CommitUnknown) as told:
        await waiting
    assert told.value.acknowledged_by == ("r2",)


@virtual
async def test_each_write_may_have_its_own_policy_and_time() -> None:
    one = await leader(commit_policy=AckN(2))
    one.wal.append(1)
    assert (await one.primary.wait_committed(1, policy=Local())).is_replicated
    with pytest.raises(CommitUnknown, match=r"within 0\.5 s"):
        await one.primary.wait_committed(1, timeout_s=0.5)


@virtual
async def test_many_writers_are_released_in_the_order_of_their_records() -> None:
    one = await leader(commit_policy=AckN(1))
    one.wal.append(50)
    one.primary.register_replica("r1", position_lsn=0)
    done: list[int] = []

    async def write(lsn: int) -> None:
        await one.primary.wait_committed(lsn)
        done.append(lsn)

    writers = [runtime.spawn(write(lsn), name=f"w{lsn}") for lsn in reversed(range(1, 51))]
    await runtime.sleep(0.1)
    for lsn in range(10, 51, 10):
        one.acknowledge("r1", lsn)
        await runtime.sleep(0.1)
        assert sorted(done) == list(range(1, lsn + 1))
    await asyncio.gather(*writers)


@virtual
async def test_a_writer_that_gives_up_leaves_nothing_behind() -> None:
    one = await leader(commit_policy=AckN(1))
    one.wal.append(1)
    waiting = runtime.spawn(one.primary.wait_committed(1), name="writer")
    await runtime.sleep(0.1)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert len(one.primary.commit_waiter) == 0


@virtual
async def test_writers_that_give_up_by_the_thousand_do_not_pile_up() -> None:
    one = await leader(commit_policy=AckN(1), commit_timeout_s=1.0)
    await one.service.register("standby", 0)
    one.wal.append(1001)
    last = runtime.spawn(one.primary.wait_committed(1001, timeout_s=60.0), name="writer")
    early = [
        runtime.spawn(one.primary.wait_committed(lsn), name="writer") for lsn in range(1, 1001)
    ]
    await asyncio.wait(early)
    assert all(isinstance(task.exception(), CommitUnknown) for task in early)
    assert len(one.primary.commit_waiter) == 1
    (line,) = one.primary.commit_waiter._waiting.values()
    assert len(line._heap) <= 3
    one.acknowledge("standby", 1001)
    assert (await last).acknowledged_by == ["standby"]
    assert one.primary.commit_waiter._waiting == {}


@virtual
async def test_a_writer_is_not_forgotten_when_others_give_up_together() -> None:
    one = await leader(commit_policy=AckN(1), commit_timeout_s=60.0)
    await one.service.register("standby", 0)
    one.wal.append(7)
    *early, first, last = [
        runtime.spawn(one.primary.wait_committed(lsn), name="writer") for lsn in range(1, 8)
    ]
    await runtime.sleep(0.1)
    for writer in early:
        writer.cancel()
    await asyncio.wait(early)
    one.acknowledge("standby", 6)
    await first
    one.acknowledge("standby", 7)
    began_s = runtime.monotonic_s()
    await last
    assert runtime.monotonic_s() - began_s < 1.0


@virtual
async def test_everybody_who_waits_is_told_when_the_leader_ends() -> None:
    one = await leader(commit_policy=AckN(1))
    one.wal.append(1)
    waiting = runtime.spawn(one.primary.wait_committed(1), name="writer")
    await runtime.sleep(0.1)
    await one.primary.close()
    with pytest.raises(CommitUnknown, match="stops"):
        await waiting
    with pytest.raises(CommitUnknown, match="stops"):
        await one.primary.wait_committed(1)


@virtual
async def test_everybody_who_waits_is_told_when_another_leader_took_over() -> None:
    one = await leader(commit_policy=AckN(1), epoch=1)
    one.wal.append(1)
    one.primary.register_replica("r1", position_lsn=0)
    waiting = runtime.spawn(one.primary.wait_committed(1), name="writer")
    await slot_register(one.store).stamp(2)
    one.primary.start()
    with pytest.raises(CommitUnknown, match="epoch 2"):
        await waiting
    await one.primary.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit_timeout_s": 0},
        {"health_timeout_s": -1},
        {"sweep_interval_s": 0.9},
        {"soft_lag_lsn": 0},
        {"on_commit_timeout": "shrug"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=next(iter(wrong))):
        ReplicationConfig(**wrong)


@virtual
async def test_an_overtaken_leader_lets_nobody_on_and_calls_nothing_replicated() -> None:
    old = await leader(epoch=1)
    old.wal.append(7)
    assert (await old.primary.wait_committed(7)).is_replicated
    await leader(wal=old.wal, store=old.store, epoch=2)
    old.primary.register_replica("r1", position_lsn=7)
    with pytest.raises(Fenced):
        await old.primary.slot_writer.wait_stored()
    with pytest.raises(CommitUnknown, match="stop serving"):
        await old.primary.wait_committed(7)
    with pytest.raises(Fenced, match="stop serving"):
        await old.primary.admit()


@virtual
async def test_a_wait_that_cannot_be_meant_is_refused() -> None:
    one = await leader()
    one.wal.append(5)
    with pytest.raises(Refused, match="LSN 99 is not in the log, which ends at 5"):
        await one.primary.wait_committed(99)
    with pytest.raises(Refused, match="timeout_s is nan"):
        await one.primary.wait_committed(5, policy=AckN(1), timeout_s=float("nan"))
    with pytest.raises(Refused, match="parse_policy"):
        await one.primary.wait_committed(5, policy="quorum:3")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="parse_policy"):
        ReplicationConfig(commit_policy="quorum:3")  # type: ignore[arg-type]
