"""A manager over the log in object storage, whose past is compacted while it is away."""

from __future__ import annotations

from headwater.core import runtime
from headwater.testing import FaultyDisk
from headwater.tier import TopicMetadataManager
from headwater.tier.eventlog import Compactor
from tests.store.scripted import Scripted, virtual
from tests.tier.eventlog.stored_given import GRACE_S, opened
from tests.tier.given import ORDERS
from tests.tier.manager.given import HOME, PARTITIONS, copy_segment, numbers, start


async def following(backend: Scripted, disk: FaultyDisk | None = None) -> TopicMetadataManager:
    """A manager that has caught up, on a handle of its own."""
    manager = await start(await opened(backend, PARTITIONS), {HOME}, disk=disk)
    await manager.wait_ready(HOME)
    return manager


async def compact_and_delete(backend: Scripted) -> None:
    """All events go into a snapshot, and a grace later they are gone."""
    compactor = Compactor(await opened(backend, PARTITIONS))
    await compactor.compact(HOME, every_events=1)
    await runtime.sleep(GRACE_S)
    assert (await compactor.compact(HOME)).deleted > 0


@virtual
async def test_a_manager_that_comes_after_compaction_knows_what_the_first_one_knows() -> None:
    backend = Scripted()
    leader = await following(backend)
    for number in range(1, 6):
        await copy_segment(leader, number, 10 * number, 10 * number + 9, publisher=3)
    await compact_and_delete(backend)
    await copy_segment(leader, 6, 60, 69, publisher=3)
    newcomer = await following(backend)
    assert numbers(newcomer) == numbers(leader) == [1, 2, 3, 4, 5, 6]
    found = newcomer.partition(ORDERS).segment_at(0, 42)
    assert found is not None
    assert found == leader.partition(ORDERS).segment_at(0, 42)
    await newcomer.close()
    await leader.close()


@virtual
async def test_a_manager_whose_own_snapshot_is_older_than_the_floor_goes_on_with_the_log_s() -> (
    None
):
    backend, disk = Scripted(), FaultyDisk()
    leader = await following(backend)
    await copy_segment(leader, 1, 10, 19)
    away = await following(backend, disk)
    assert numbers(away) == [1]
    await away.close()
    for number in (2, 3):
        await copy_segment(leader, number, 10 * number, 10 * number + 9)
    await compact_and_delete(backend)
    back = await following(backend, disk)
    assert numbers(back) == [1, 2, 3]
    await copy_segment(back, 4, 40, 49)
    await leader.refresh(HOME)
    assert numbers(leader) == [1, 2, 3, 4]
    await back.close()
    await leader.close()
