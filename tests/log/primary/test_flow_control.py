"""Writers that run ahead of their replicas are held up, a little."""

from __future__ import annotations

import pytest

from headwater.core import runtime
from headwater.log.primary.commits import throttle_delay_s
from tests.log.leaders import Leader, leader
from tests.store.scripted import virtual


@pytest.mark.parametrize(
    ("lag_lsn", "delay_s"), [(0, 0.0), (100, 0.0), (150, 0.25), (200, 0.5), (10_000, 0.5)]
)
def test_the_delay_grows_with_the_lag_and_has_an_end(lag_lsn: int, delay_s: float) -> None:
    assert throttle_delay_s(lag_lsn, soft_lag_lsn=100, max_delay_s=0.5) == delay_s


async def behind() -> Leader:
    """A leader 1,000 records ahead of its one replica, with a target of 100."""
    one = await leader(soft_lag_lsn=100, max_delay_s=0.5)
    one.wal.append(1)
    one.primary.register_replica("r1", position_lsn=0)
    one.acknowledge("r1", 1)
    one.wal.append(1000)
    return one


@virtual
async def test_a_writer_goes_on_after_the_longest_delay_whatever_the_lag() -> None:
    one = await behind()
    assert 0.5 <= await one.primary.admit() < 0.6
    assert one.primary.metrics.writers_delayed == 1


@virtual
async def test_a_writer_goes_on_at_once_when_the_replica_catches_up() -> None:
    one = await behind()
    waiting = runtime.spawn(one.primary.admit(), name="writer")
    await runtime.sleep(0.1)
    one.acknowledge("r1", 950)
    assert await waiting < 0.2


@virtual
async def test_a_writer_goes_on_at_once_when_the_slow_replica_leaves() -> None:
    one = await behind()
    waiting = runtime.spawn(one.primary.admit(), name="writer")
    await runtime.sleep(0.1)
    one.primary.unregister_replica("r1")
    assert await waiting < 0.2


@virtual
async def test_whoever_is_new_silent_or_being_made_anew_holds_nobody_up() -> None:
    one = await behind()
    one.acknowledge("r1", 1001)
    one.primary.register_replica("new")
    assert await one.primary.admit() == 0.0

    one.wal.append(1000)
    assert await one.primary.admit() > 0.0
    one.primary.set_replica_rebootstrapping("r1", True)
    assert await one.primary.admit() == 0.0
    one.primary.set_replica_rebootstrapping("r1", False)
    assert await one.primary.admit() > 0.0
    await runtime.sleep(60.0)
    one.primary.sweep()
    assert await one.primary.admit() == 0.0


@virtual
async def test_without_a_target_nobody_is_held_up() -> None:
    one = await leader(soft_lag_lsn=None)
    one.wal.append(1_000_000)
    assert await one.primary.admit() == 0.0


@virtual
async def test_a_copy_that_is_still_compared_holds_nobody_up() -> None:
    one = await leader(soft_lag_lsn=100, max_delay_s=0.5)
    one.wal.append(1000)
    one.primary.register_replica("r1", position_lsn=990)
    one.acknowledge("r1", 10)
    assert await one.primary.admit() == 0.0
    one.wal.append(1000)
    assert await one.primary.admit() > 0.0
