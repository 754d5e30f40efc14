"""`headwater stream delete` of a stream that has a tier."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headwater.buffer.stream import DeletedReport, delete_stream
from headwater.buffer.stream.delete import BeforeObjects
from headwater.cli import tier_partitions
from headwater.store import Store, open_store
from headwater.tier import PartitionDeleteState, TopicIdPartition, TopicMetadataManager, manager
from headwater.tier.eventlog import MetadataEventLog, StoredEventLog
from headwater.tier.jobs import TierManager
from headwater.tier.manager import publish_deletion
from tests.cli.conftest import Invoke
from tests.cli.test_tier_commands import led, partition


async def _copy(tier: TierManager) -> None:
    await tier.run_once()


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0
    led(address, _copy)
    return address


def objects(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("store/streams/orders/*/segments/*/*.parquet"))


def place_of(url: str) -> TopicIdPartition:
    async def run() -> TopicIdPartition:
        async with open_store(url) as store:
            return await partition(store)

    return asyncio.run(run())


def listed(url: str, place: TopicIdPartition) -> tuple[int, PartitionDeleteState | None]:
    """How many segments the events list, and how far the deletion has come by them."""

    async def run() -> tuple[int, PartitionDeleteState | None]:
        async with open_store(url) as store:
            log = await StoredEventLog.open(store, partition_count=3)
            manager = await TopicMetadataManager.start(log)
            await manager.reconcile_assignment({manager.metadata_partition(place)})
            await manager.wait_ready(manager.metadata_partition(place))
            found = len(manager.partition(place).segments()), manager.partition(place).delete_state
            await manager.close()
            await log.close()
            return found

    return asyncio.run(run())


def test_nothing_is_listed_of_a_stream_that_is_deleted(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    place = place_of(url)
    assert listed(url, place) == (2, None)

    assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 0
    assert (listed(url, place), objects(tmp_path)) == ((0, None), [])
    events = len(list(tmp_path.glob("store/metadata/*/0*")))
    again = invoke("stream", "delete", url, "orders", "--yes")
    assert (again.exit_code, "continued deleting" in again.stdout) == (0, True)
    assert len(list(tmp_path.glob("store/metadata/*/0*"))) == events


def test_what_is_listed_is_there_until_its_deletion_has_begun(
    invoke: Invoke, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[PartitionDeleteState, int]] = []

    async def look(
        log: MetadataEventLog, partitions: list[TopicIdPartition], through: PartitionDeleteState
    ) -> int:
        assert [one.partition for one in partitions] == [0, 1]
        found.append((through, len(objects(tmp_path))))
        assert json.loads((tmp_path / "store/streams/orders/stream.json").read_bytes())
        return await publish_deletion(log, partitions, through)

    monkeypatch.setattr(manager, "publish_deletion", look)
    assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 0
    assert found == [(PartitionDeleteState.STARTED, 2), (PartitionDeleteState.FINISHED, 0)]


def test_a_deletion_that_left_objects_has_not_finished(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(url)

    async def partly(
        store: Store, name: str, *, before_objects: BeforeObjects | None, stream_id: str | None
    ) -> DeletedReport:
        report = await delete_stream(store, name, before_objects=before_objects)
        report.failed = 1
        return report

    with monkeypatch.context() as patched:
        patched.setattr(tier_partitions, "delete_stream", partly)
        assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 1
    assert listed(url, place) == (2, PartitionDeleteState.STARTED)
    assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 0
    assert listed(url, place) == (0, None)


def test_damaged_events_are_told_and_keep_nothing_from_being_deleted(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    place = place_of(url)
    [*_, last] = sorted(tmp_path.glob("store/metadata/*/0*"))
    whole = last.read_bytes()
    last.write_bytes(b"not an event")

    result = invoke("stream", "delete", url, "orders", "--yes", COLUMNS="300")
    assert (result.exit_code, objects(tmp_path)) == (1, [])
    assert "repair them, and delete it again" in result.stdout
    last.write_bytes(whole)
    assert listed(url, place) == (2, None)

    assert invoke("stream", "delete", url, "orders", "--yes").exit_code == 0
    assert listed(url, place) == (0, None)


def test_a_log_of_events_that_is_named_and_not_there_deletes_nothing(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    result = invoke("stream", "delete", url, "orders", "--yes", "--prefix", "elsewhere")
    assert (result.exit_code, len(objects(tmp_path))) == (2, 2)
    assert "there is no event log of the tier under 'elsewhere'" in result.stderr
    assert invoke("stream", "describe", url, "orders").exit_code == 0
