"""Which beginning a fresh copy takes, and that none of another log is ever built upon."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from headwater.core import runtime
from headwater.core.errors import Corrupt, Refused, Unavailable
from headwater.core.limits import KEYED_IMAGE_HASHES
from headwater.core.retry import RetryPolicy
from headwater.log import Group, Replica
from headwater.log.primary.service import PullResponse
from headwater.log.primary.slot import InvalidationCause
from headwater.store import Store
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import Away, Leader, leader, memory_store
from tests.log.replica.given import (
    Tampering,
    fails,
    imaged,
    keyed,
    keyed_states,
    reaches,
    rows,
    standby,
)
from tests.store.scripted import virtual


def changes(first_lsn: int, last_lsn: int, *, of: str = "log") -> list[Group]:
    """A record for each LSN, all of one key, which tells which log it is of."""
    lsns = range(first_lsn, last_lsn + 1)
    return [rows(lsn, (b"k%d" % lsn, 0, f"{of} {lsn}".encode())) for lsn in lsns]


async def leader_of(groups: list[Group], store: Store) -> Leader:
    """A leader whose log holds these."""
    wal = MemoryWal(first_lsn=groups[0].first_lsn)
    for group in groups:
        wal.append_group(group)
    return await leader(wal=wal, store=store)


def values(replica: Replica) -> list[bytes]:
    return [row["_value"] for row in keyed(replica).scan().to_pylist()]


async def lsns_of_images(store: Store) -> list[int]:
    return sorted(image.lsn for image in await keyed_states(store).images())


@virtual
async def test_a_copy_that_reaches_the_log_goes_on_though_an_image_is_newer() -> None:
    store = memory_store()
    one = await leader_of(changes(1, 3), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), wait_s=1.0)
    await reaches(replica, 3)
    await imaged(store, *changes(1, 3), *changes(4, 9, of="lost"))
    one.primary.retention._invalidate("r1", InvalidationCause.HORIZON)
    await runtime.sleep(60.0)
    assert replica.metrics.bootstraps == {"own": 1}
    assert one.slot("r1").is_valid
    await replica.close()


@virtual
async def test_a_log_that_begins_at_1_comes_before_an_image_beyond_its_end() -> None:
    store = memory_store()
    one = await leader_of(changes(1, 3), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    await imaged(store, *changes(1, 3), *changes(4, 9, of="lost"))
    await replica.rebootstrap()
    assert replica.metrics.bootstraps == {"log": 1}
    assert values(replica) == [b"log 1", b"log 2", b"log 3"]
    await replica.close()


@virtual
async def test_an_older_image_that_the_log_reaches_comes_before_one_that_is_beyond_it() -> None:
    store = memory_store()
    one = await leader_of(changes(4, 6), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    await imaged(store, *changes(1, 4))
    await imaged(store, *changes(1, 6), *changes(7, 9, of="lost"))
    await replica.rebootstrap()
    assert replica.metrics.bootstraps == {"image": 1}
    assert values(replica) == [b"log %d" % lsn for lsn in range(1, 7)]
    await replica.close()


@virtual
async def test_an_image_beyond_the_end_of_the_log_is_waited_for_if_nothing_else_is_there() -> None:
    store = memory_store()
    one = await leader_of(changes(4, 6), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    await imaged(store, *changes(1, 9))
    with pytest.raises(Refused, match="ends at LSN 6, and the image to begin from at 9"):
        await replica.rebootstrap()
    assert replica.metrics.bootstraps_refused == 1
    for group in changes(7, 9):
        one.wal.append_group(group)
    await replica.rebootstrap()
    assert values(replica) == [b"log %d" % lsn for lsn in range(1, 10)]
    await replica.close()


@virtual
async def test_images_of_another_log_are_passed_over_until_one_is_good() -> None:
    store = memory_store()
    one = await leader_of(changes(2, 12), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    await imaged(store, *changes(1, 2))
    await imaged(store, *changes(1, 2), *changes(3, 6, of="lost"))
    await imaged(store, *changes(1, 2), *changes(3, 10, of="lost"))
    await replica.rebootstrap()
    assert values(replica) == [b"log %d" % lsn for lsn in range(1, 13)]
    assert not replica.is_diverged
    assert await lsns_of_images(store) == [6, 10, 12], "whose they are is for people to say"
    await replica.close()


@virtual
async def test_nothing_is_put_on_top_of_an_image_before_that_was_compared() -> None:
    """Else the store had an image whose end is the log's and whose rest is not."""
    store = memory_store()
    one = await leader_of(changes(2, 200), store)
    states = keyed_states(store, image_records=1)
    replica = await standby(one.service, FaultyDisk(), targets=states, start=False, max_records=50)
    await imaged(store, *changes(1, 2))
    await imaged(store, *changes(1, 2), *changes(3, 70, of="lost"))
    await replica.rebootstrap()
    for image in await keyed_states(store).images():
        if image.lsn != 70:
            state = await keyed_states(store).begin("", image)
            found = state.scan().column("_value").to_pylist()
            assert found == [b"log %d" % lsn for lsn in range(1, image.lsn + 1)]
    await replica.close()


async def diverged(one: Leader, source: Tampering, disk: FaultyDisk) -> None:
    """A keyed replica that found another record under LSN 2, and was closed."""
    source.on_pull = lambda pulled: replace(pulled, groups=_other_second(pulled))
    states = keyed_states(one.store)
    replica = await standby(source, disk, targets=states, wait_s=1.0, max_records=1)
    await reaches(replica, 2)
    source.on_pull = lambda pulled: pulled
    one.primary.unregister_replica("r1")
    await fails(replica, "another record under LSN 2")
    await replica.close()


def _other_second(pulled: PullResponse) -> list[Group]:
    return [changes(2, 2, of="wrong")[0] if g.first_lsn == 2 else g for g in pulled.groups]


@virtual
async def test_images_that_others_count_on_stay_until_the_fresh_copys_own_is_safe() -> None:
    store, disk = memory_store(), FaultyDisk()
    one = await leader_of(changes(1, 4), store)
    source = Tampering(one.service)
    await diverged(one, source, disk)
    await imaged(store, *changes(1, 4))  # another replica's

    def away(pulled: PullResponse) -> PullResponse:
        raise Refused("not now")

    source.on_pull = away
    replica = await standby(source, disk, targets=keyed_states(store), start=False)
    with pytest.raises(Refused, match="not now"):
        await replica.rebootstrap()
    assert await lsns_of_images(store) == [4], "no copy was made: nothing takes its place"
    source.on_pull = lambda pulled: pulled
    await replica.rebootstrap()
    assert await lsns_of_images(store) == [4]
    assert values(replica) == [b"log %d" % lsn for lsn in range(1, 5)]
    await replica.close()


@virtual
async def test_a_bootstrap_is_completed_with_what_is_on_disk_and_not_with_what_is_applied() -> None:
    backend = Away()
    one = await leader_of(changes(1, 3), memory_store())
    states = keyed_states(Store(backend, policy=RetryPolicy(attempts=1)))
    replica = await standby(
        one.service, FaultyDisk(), targets=states, wait_s=1.0, compare_records=1
    )
    await reaches(replica, 3)
    await replica.target.sync()
    for group in changes(4, 9):
        one.wal.append_group(group)
    await reaches(replica, 9)
    await runtime.sleep(10.0)
    backend.is_away = True
    one.primary.retention._invalidate("r1", InvalidationCause.HORIZON)
    await runtime.sleep(60.0)
    assert replica.metrics.bootstraps == {"own": 1}
    assert (replica.target.applied_lsn, replica.target.durable_lsn) == (9, 3)
    assert one.slot("r1").restart_lsn == 3, "the log is kept for what would be lost"
    assert await one.primary.prune_retained_wal_through(9) == 3
    await replica.close()


@virtual
async def test_the_log_is_kept_no_further_back_than_an_image_can_be_compared() -> None:
    store = memory_store()
    one = await leader_of(changes(1, 200), store)
    replica = await standby(one.service, FaultyDisk(), targets=keyed_states(store), start=False)
    await imaged(store, *changes(1, 190))
    deaf = mock.patch.object(one.service, "complete_bootstrap", side_effect=Refused("not now"))
    with deaf, pytest.raises(Refused, match="not now"):
        await replica.rebootstrap()
    assert one.slot("r1").restart_lsn == 190 - KEYED_IMAGE_HASHES
    assert replica.metrics.records_compared == KEYED_IMAGE_HASHES
    await replica.close()


@virtual
async def test_an_empty_copy_that_cannot_be_opened_is_tried_once_and_told() -> None:
    one = await leader_of(changes(1, 2), memory_store())
    states = keyed_states(one.store)
    replica = await standby(one.service, FaultyDisk(), targets=states, start=False)
    failing = mock.AsyncMock(side_effect=Corrupt("a bad disk"))
    with mock.patch.object(states, "begin", failing), pytest.raises(Unavailable, match="bad disk"):
        await replica.rebootstrap()
    assert failing.call_count == 1
    await replica.close()


@virtual
async def test_an_image_that_is_named_again_though_it_is_unusable_is_not_loaded_again() -> None:
    store = memory_store()
    one = await leader_of(changes(1, 12), store)
    states = keyed_states(store)
    replica = await standby(one.service, FaultyDisk(), targets=states, start=False)
    await imaged(store, *changes(1, 10, of="lost"))
    with (
        mock.patch.object(states, "distrust", mock.AsyncMock()),
        mock.patch.object(states, "begin", wraps=states.begin) as loading,
        pytest.raises(Unavailable, match="another record under LSN 1"),
    ):
        await replica.rebootstrap()
    assert loading.call_count == 1
    await replica.close()
