"""`headwater tier …`: the tier of a stream, seen from outside."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.buffer.stream import open_stream
from headwater.cli import tier_commands
from headwater.core.errors import Refused
from headwater.store import Register, Store, open_store
from headwater.testing import MemoryWal
from headwater.tier import TopicIdPartition, TopicMetadataManager
from headwater.tier.eventlog import StoredEventLog
from headwater.tier.eventlog.stored_log import LogRecord
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.manager import ManagedPartition
from headwater.tier.segments import ParquetSegments
from headwater.tier.segments.object_storage import segment_key
from tests.cli.conftest import Invoke
from tests.tier.jobs.sealed_wal import SealedWal


@pytest.fixture
def url(tmp_path: Path, invoke: Invoke) -> str:
    """A stream of two partitions; of the first, two segments are in the tier."""
    address = f"file://{tmp_path}/store"
    assert invoke("stream", "create", address, "orders", "--partitions", "2").exit_code == 0

    async def copy(tier: TierManager) -> None:
        await tier.run_once()
        assert not tier.problems

    led(address, copy)
    return address


def led(
    url: str, work: Callable[[TierManager], Awaitable[None]], *, prefix: str = "metadata"
) -> None:
    """Let the leader of partition 0 do something."""

    async def run() -> None:
        async with open_store(url) as store:
            place = await partition(store)
            log = await StoredEventLog.open(store, partition_count=3, prefix=prefix)
            metadata = await TopicMetadataManager.start(log)
            await metadata.reconcile_assignment({metadata.metadata_partition(place)})
            await metadata.wait_ready(metadata.metadata_partition(place))
            wal = SealedWal()
            for _ in range(2):
                wal.append(50)
                wal.seal()
            await work(TierManager(made(store, place, metadata, wal)))
            await metadata.close()
            await log.close()

    asyncio.run(run())


def made(
    store: Store, place: TopicIdPartition, metadata: TopicMetadataManager, wal: MemoryWal
) -> LedPartition:
    assert isinstance(wal, SealedWal)
    leader = Leader(place, 4, 1, committed_lsn=wal.current_lsn, slot_floor_lsn=lambda: 0)
    return LedPartition(
        leader,
        metadata=ManagedPartition(metadata, place),
        storage=ParquetSegments(store, place),
        local=wal,
        log_start=LogStartRegister(store, place),
        config=TierConfig(merge_below_bytes=0),
    )


async def partition(store: Store) -> TopicIdPartition:
    return TopicIdPartition.of_stream((await open_stream(store, "orders")).id, "orders", 0)


async def _delete_first_object(tier: TierManager) -> None:
    await tier.led.storage.delete(tier.led.metadata.state().segments_in(1, 101)[0].segment_id)


async def _unlist_first(tier: TierManager) -> None:
    await tier.led.unlist(tier.led.metadata.state().segments_in(1, 101)[0])


def test_list_shows_what_is_read(invoke: Invoke, url: str) -> None:
    result = invoke("tier", "list", url, "orders", COLUMNS="200")

    assert result.exit_code == 0
    assert "the log begins at LSN 1; epoch 4 leads it" in result.stdout
    assert result.stdout.count("finished") == 2
    assert "partition 1: nothing is in the tier" in result.stdout


def test_list_for_machines(invoke: Invoke, url: str) -> None:
    [found] = json.loads(invoke("tier", "list", url, "orders", "--partition", "0", "--json").stdout)

    lsns = [(one["first_lsn"], one["last_lsn"]) for one in found["segments"]]
    assert lsns == [(1, 50), (51, 100)]
    assert (found["log_start"], found["leader_epoch"], found["gaps"]) == (1, 4, [])


def test_list_says_what_is_missing(invoke: Invoke, url: str) -> None:
    led(url, _unlist_first)
    result = invoke("tier", "list", url, "orders", COLUMNS="200")

    assert result.exit_code == 1
    assert "LSN 1 to 50 are in no segment" in result.stdout
    assert "unlisted" in result.stdout


def test_a_store_without_a_tier_says_so(invoke: Invoke, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/other"
    invoke("stream", "create", address, "orders")
    result = invoke("tier", "list", address, "orders")

    assert result.exit_code == 2
    assert "nothing was ever copied to the tier" in result.stderr


def test_scrub_finds_nothing_wrong(invoke: Invoke, url: str) -> None:
    result = invoke("tier", "scrub", url, "orders")

    assert result.exit_code == 0
    assert "partition 0: 2 segments" in result.stdout


def test_scrub_tells_what_is_missing(invoke: Invoke, url: str) -> None:
    led(url, _delete_first_object)
    result = invoke("tier", "scrub", url, "orders", COLUMNS="200")
    assert result.exit_code == 1
    assert "✗ missing: LSN 1 to 50" in result.stdout
    assert "TierManager.scrub(repair=True)" in result.stdout

    found = json.loads(invoke("tier", "scrub", url, "orders", "--json").stdout)
    [finding] = found[0]["findings"]
    assert (finding["kind"], finding["repaired"]) == ("missing", False)


def test_scrub_removes_objects_that_no_event_names(invoke: Invoke, url: str) -> None:
    async def leave_one_behind(tier: TierManager) -> None:
        storage = tier.led.storage
        await storage.copy(await storage.prepare(1, 50, tier.led.local_groups(1, 50)))

    led(url, leave_one_behind)
    young = invoke("tier", "scrub", url, "orders", "--repair")
    assert (young.exit_code, "orphan" in young.stdout) == (0, False)

    old = ("tier", "scrub", url, "orders", "--grace-hours", "0")
    seen = invoke(*old, COLUMNS="200")
    assert seen.exit_code == 1
    assert "--repair removes it" in seen.stdout
    mended = invoke(*old, "--repair")
    assert mended.exit_code == 0
    assert "✓ orphan" in mended.stdout
    assert ": removed" in mended.stdout
    assert "orphan" not in invoke(*old).stdout


def written(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, when it was written, and what it holds."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def _damage_first(tier: TierManager) -> None:
    [first, _] = tier.led.metadata.state().segments_in(1, 101)
    stray = await tier.led.storage.prepare(51, 100, tier.led.local_groups(51, 100))
    await tier.led.storage.copy(stray)
    store = open_store(tier.led.storage._store.url)
    key = segment_key(first.segment_id)
    data = bytearray((await store.get(key)).data)
    data[-3] ^= 1
    await store.put(key, bytes(data))


def test_scrub_says_why_below_each_finding(invoke: Invoke, url: str, tmp_path: Path) -> None:
    led(url, _damage_first)
    result = invoke("tier", "scrub", url, "orders", "--grace-hours", "0", COLUMNS="300")

    corrupt, why, orphan, where = result.stdout.splitlines()[1:5]
    assert corrupt.startswith("✗ corrupt: LSN 1 to 50, segment ")
    assert why.startswith("  Corrupt: streams/orders/0/segments/")
    assert "it ends with" in why
    assert "--repair removes it" in orphan
    assert where.startswith("  streams/orders/0/segments/")

    [stray] = tmp_path.glob(f"store/{where.strip()}")
    stray.write_bytes(b"")
    result = invoke("tier", "scrub", url, "orders", "--grace-hours", "0", COLUMNS="300")
    assert "unreadable" in result.stdout
    assert "it may be the last good copy" in result.stdout


def test_objects_of_no_segment_are_told_and_left_alone(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    [segment, _] = tmp_path.glob("store/streams/orders/0/segments/*/*.parquet")
    (segment.parent / "below").mkdir()
    put = [segment.parent / "notes.txt", segment.parent / "below" / segment.name]
    for path in put:
        path.write_bytes(b"mine")
    scrub = ("tier", "scrub", url, "orders", "--partition", "0", "--grace-hours", "0")
    result = invoke(*scrub, "--repair", COLUMNS="300")

    assert result.exit_code == 0
    assert "2 objects looked at" in result.stdout
    assert result.stdout.count("belongs to no segment, and stays: streams/orders/0/segments/") == 2
    assert [path.read_bytes() for path in put] == [b"mine", b"mine"]
    [told] = json.loads(invoke(*scrub, "--json").stdout)
    keys = {str(path.relative_to(tmp_path / "store")) for path in put}
    assert set(told["foreign"]) == keys

    for number in range(30):
        (segment.parent / f"{number}.txt").write_bytes(b"")
    assert "and 12 more that belong to no segment" in invoke(*scrub).stdout


def test_whoever_only_looks_writes_nothing(invoke: Invoke, url: str, tmp_path: Path) -> None:
    led(url, _damage_first)
    before = written(tmp_path)

    assert invoke("tier", "list", url, "orders").exit_code == 0
    found = invoke("tier", "scrub", url, "orders", "--grace-hours", "0")
    assert (found.exit_code, "orphan" in found.stdout) == (1, True)
    assert written(tmp_path) == before


def test_a_log_that_was_left_half_made_is_not_finished_by_looking(
    invoke: Invoke, tmp_path: Path
) -> None:
    address = f"file://{tmp_path}/half"
    invoke("stream", "create", address, "orders")

    async def begin() -> None:
        async with open_store(address) as store:
            record = LogRecord(1, uuid.UUID(int=1), 3, made=False)
            await Register(store, "metadata/log.json", LogRecord).update(lambda _: record)

    asyncio.run(begin())
    before = written(tmp_path)

    result = invoke("tier", "scrub", address, "orders")
    assert (result.exit_code, "nothing was ever copied" in result.stderr) == (2, True)
    assert written(tmp_path) == before


def test_a_log_start_that_is_gone_is_told_and_is_no_gap(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    [start] = tmp_path.glob("store/streams/orders/0/log/*/start.json")
    start.unlink()

    shown = invoke("tier", "list", url, "orders", COLUMNS="200")
    assert (shown.exit_code, "the log start is unknown" in shown.stdout) == (1, True)
    scrubbed = invoke("tier", "scrub", url, "orders", COLUMNS="200")
    assert (scrubbed.exit_code, "no log start" in scrubbed.stdout) == (1, True)
    assert str(start.relative_to(tmp_path / "store")) in scrubbed.stdout
    assert "gap" not in scrubbed.stdout

    led(url, lambda tier: tier.run_once())
    assert invoke("tier", "scrub", url, "orders").exit_code == 0


def test_events_may_stand_under_another_prefix(invoke: Invoke, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/elsewhere"
    invoke("stream", "create", address, "orders")
    led(address, lambda tier: tier.run_once(), prefix="other/events")
    assert "--prefix" in invoke("tier", "list", address, "orders").stderr

    found = json.loads(
        invoke("tier", "list", address, "orders", "--prefix", "other/events", "--json").stdout
    )
    assert len(found[0]["segments"]) == 2
    assert invoke("tier", "scrub", address, "orders", "--prefix", "other/events").exit_code == 0


def test_compact_turns_events_into_snapshots_and_reads_as_before(invoke: Invoke, url: str) -> None:
    before = invoke("tier", "list", url, "orders", "--json").stdout
    told = json.loads(invoke("tier", "compact", url, "--every-events", "1", "--json").stdout)
    assert [one["events"] for one in told["partitions"] if one["events"]] == [5]
    assert (len(told["partitions"]), told["failures"]) == (3, {})
    assert invoke("tier", "list", url, "orders", "--json").stdout == before

    again = invoke("tier", "compact", url)
    assert (again.exit_code, again.stdout) == (0, "nothing to compact\n")


def test_compact_goes_on_while_it_is_to_watch(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Refused("enough")

    monkeypatch.setattr(tier_commands, "runtime", SimpleNamespace(sleep=pause))
    result = invoke("tier", "compact", url, "--watch", "--every", "7", "--every-events", "1")
    assert pauses == [7.0] * 3
    assert result.stdout.count("5 events are in a snapshot now") == 1
    assert result.stdout.count("nothing to compact") == 2


def test_compact_tells_what_it_cannot_read(invoke: Invoke, url: str, tmp_path: Path) -> None:
    [*_, last] = sorted(tmp_path.glob("store/metadata/*/0*"))
    last.write_bytes(b"not an event")
    result = invoke("tier", "compact", url, "--every-events", "1", COLUMNS="200")
    assert result.exit_code == 1
    assert f"{last.parent.name}/{last.name} is not an event" in result.stdout


def test_an_event_is_looked_at_where_it_stands(invoke: Invoke, url: str, tmp_path: Path) -> None:
    [first, *_] = sorted(tmp_path.glob("store/metadata/*/0*"))
    where = ("--metadata-partition", first.parent.name, "--offset")
    in_log = json.loads(invoke("inspect", "event", url, *where, "1", "--json").stdout)
    assert in_log["state"] == "COPY_STARTED"
    assert (in_log["log_offset"], in_log["epoch_beside"]) == (1, 4)

    alone = json.loads(invoke("inspect", "event", str(first), "--json").stdout)
    assert alone["log_id"] == in_log["log_id"]
    assert (alone["log_offset"], alone["state"]) == (0, "DELETE_FINISHED")

    beyond = invoke("inspect", "event", url, *where, "5")
    assert (beyond.exit_code, "ends at 5: 5 is not there" in beyond.stderr) == (2, True)
    assert invoke("tier", "compact", url, "--every-events", "1").exit_code == 0
    gone = invoke("inspect", "event", url, *where, "1")
    assert (gone.exit_code, "it is compacted" in gone.stderr) == (2, True)


def test_a_log_in_kafka_needs_its_client(
    invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "confluent_kafka" else find_spec(name, *more),
    )
    result = invoke("tier", "list", url, "orders", "--bootstrap-servers", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "pip install 'confluent-kafka>=2.16'" in result.stderr


def test_settings_of_kafkas_client_stand_in_a_file_that_is_not_repeated(
    invoke: Invoke, url: str, tmp_path: Path
) -> None:
    settings = tmp_path / "kafka.properties"
    settings.write_text("# ours\n\nsasl.mechanism = PLAIN\nhunter2\n")
    kafka = ("--bootstrap-servers", "127.0.0.1:1", "--kafka-config", str(settings))
    refused = invoke("tier", "list", url, "orders", *kafka)
    assert "line 4: a setting is NAME=VALUE" in refused.stderr
    settings.write_text("security.protocol=hunter2\n")
    refused = invoke("tier", "list", url, "orders", *kafka)
    assert "Kafka's client refuses its settings" in refused.stderr
    assert "hunter2" not in refused.stderr


def test_renew_begins_a_log_that_reads_as_the_old_one(invoke: Invoke, url: str) -> None:
    old = invoke("tier", "list", url, "orders", "--json").stdout
    told = invoke("tier", "renew", url, "--to-prefix", "anew", "--epoch-max", "3")
    assert told.stdout.splitlines() == [
        "anew begins with the state after 5 events",
        "log starts lowered to epoch 3: 1",
    ]
    new = invoke("tier", "list", url, "orders", "--json", "--prefix", "anew").stdout
    assert new == old.replace('"leader_epoch": 4', '"leader_epoch": 3')
    assert invoke("tier", "renew", url, "--to-prefix", "anew").exit_code == 2
