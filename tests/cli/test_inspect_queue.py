"""`headwater inspect queue`: chunks, registers, segments, and the queue of a partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.buffer.consumer import Consumer, Follower
from headwater.buffer.group import GroupRegister
from headwater.buffer.producer import Producer
from headwater.buffer.queue.native.chunk_log import ChunkLog, QueueFloors
from headwater.buffer.queue.v1.batch_format import encode_batch
from headwater.buffer.queue.v1.manifest_format import Manifest, encode_manifest
from headwater.buffer.stream import create_stream
from headwater.cli import inspect_partition as partition
from headwater.core import limits
from headwater.store import Register, Store, open_store
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member
from tests.cli.conftest import Invoke

Told = Callable[..., dict[str, Any]]


def with_store(root: Path, work: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_store(f"file://{root}") as store:
            await work(store)

    asyncio.run(run())


async def fill(store: Store, name: str, **settings: Any) -> None:
    """Three batches of two producers, one of them acknowledged, and a group that follows."""
    await create_stream(store, name, linger_ms=1, **settings)
    for number, producer_id in enumerate(("p1", "p2", "p1")):
        async with Producer(store, name, producer_id=producer_id) as producer:
            value = b"x" * (40_000 if number == 1 else 10)
            await (await producer.produce([value, b"b"], metadata=b"at %d" % number))
    async with await Consumer.open(store, name, group="owner", gc=False) as consumer:
        batch = await consumer.next_batch()
        assert batch is not None
        await consumer.ack(batch.sequence)
    async with await Follower.open(store, name, group="audit"):
        pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with_store(tmp_path / "store", lambda store: fill(store, "events"))
    return tmp_path / "store"


@pytest.fixture
def queue(root: Path) -> Path:
    [found] = root.glob("streams/events/0/ingest/*")
    return found


@pytest.fixture
def told(invoke: Invoke) -> Told:
    """What `headwater inspect queue … --json` says; its status agrees with its verdict."""

    def run(*arguments: object) -> dict[str, Any]:
        result = invoke("inspect", "queue", *map(str, arguments), "--json")
        assert result.stdout, result.stderr
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == (0 if found["good"] else 1)
        return found

    return run


def last_chunk(queue: Path) -> Path:
    return max((queue / "chunks").iterdir())


# Single objects


def test_a_chunk(told: Told, invoke: Invoke, queue: Path) -> None:
    found = told(last_chunk(queue))
    assert found["kind"] == "chunk of a native queue, HWC2"
    assert (found["first_sequence"], found["next_sequence"], found["next_lsn"]) == (0, 3, 7)
    partition = found["chunk_entries"]
    assert [entry["producer"] for entry in partition] == ["p1", "p2", "p1"]
    assert [entry["producer_sequence"] for entry in partition] == [1, 1, 2]
    assert [entry["metadata"] for entry in partition] == ["at 0", "at 1", "at 2"]
    assert [entry["stands_in"] for entry in partition] == ["this chunk", "an object", "this chunk"]
    assert [opening["producer"] for opening in found["recent_openings"]] == ["p1"]
    stamps = [(e["earliest_timestamp_us"], e["latest_timestamp_us"]) for e in partition]
    assert stamps == [(None, None)] * 3
    [block] = found["times_before"]
    assert block == {"chunks": "0 to 0", "latest_ingested_ms": None, "latest_timestamp_us": None}
    words = invoke("inspect", "queue", str(last_chunk(queue)), "--entries=1").stdout
    assert "chunk entries, 1 of 3" in words
    assert "open: it may grow" in words


def test_a_damaged_chunk_names_check_and_offset(told: Told, queue: Path, tmp_path: Path) -> None:
    data = last_chunk(queue).read_bytes()

    def problem(changed: bytes) -> dict[str, Any]:
        (tmp_path / "chunk").write_bytes(changed)
        [found] = told(tmp_path / "chunk")["problems"]
        return dict(found)

    flipped = bytearray(data)
    flipped[100] ^= 1
    assert (problem(bytes(flipped))["check"], problem(bytes(flipped))["offset"]) == (
        "checksum",
        len(data) - 8,
    )
    cut = problem(data[:-10])
    assert (cut["check"], cut["offset"]) == ("length", 4)
    assert "10 are missing" in cut["message"]
    assert problem(data[:7])["check"] == "length"
    assert "Upgrade" in problem(b"HWC3" + data[4:])["message"]
    older = problem(b"HWC1" + data[4:])
    assert (older["check"], older["error"]) == ("magic", "NotSupported")


def test_a_chunk_in_another_chunks_place(told: Told, queue: Path) -> None:
    data = last_chunk(queue).read_bytes()
    other = queue / "chunks" / f"{9:020d}"
    other.write_bytes(data)
    [problem] = told(other)["problems"]
    assert "not 9" in problem["message"]
    elsewhere = queue.with_name("0" * 8 + queue.name[8:]) / "chunks"
    elsewhere.mkdir(parents=True)
    (elsewhere / last_chunk(queue).name).write_bytes(data)
    [problem] = told(elsewhere / last_chunk(queue).name)["problems"]
    assert f"of queue {queue.name}" in problem["message"]


def test_the_registers_of_a_queue(told: Told, queue: Path) -> None:
    floors = told(queue / "queue.json")
    assert (floors["queue_id"], floors["floor_lsn"]) == (queue.name, 1)
    consumer = told(queue / "consumer.json")
    assert (consumer["owner"], consumer["epoch"]) == ("owner", 1)
    assert (consumer["acknowledged_below_sequence"], consumer["acknowledged_below_lsn"]) == (1, 3)
    marks = [mark for shard in (queue / "producers").iterdir() for mark in told(shard)["marks"]]
    assert sorted((mark["producer"], mark["sequence"], mark["metadata"]) for mark in marks) == [
        ("p1", 2, "at 2"),
        ("p2", 1, "at 1"),
    ]


def test_other_registers_of_a_stream(told: Told, root: Path) -> None:
    stream = told(root / "streams/events/stream.json")
    assert (stream["stream"], stream["records_stay"]) == ("events", "7 days")
    [position] = (root / "streams/events/0/groups").rglob("audit.json")
    assert told(position)["next_sequence"] == 0


def test_the_registers_of_a_group(told: Told, tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        stream = await create_stream(store, "orders")
        group = GroupRegister(stream, "billing")
        await group.begin("query", {0: 7})
        epoch = await group.start_query("4b1d", is_new=True)
        await group.take(0, epoch)
        await group.acknowledge(0, epoch, 12)
        other = GroupRegister(stream, "audit")
        await other.begin("consumers", {0: 7})
        member = Member(1, 60.0, 1, "host-a", 5)
        await other.share(lambda _: ClaimState(1, ClaimTable({"m": member}, {"0": Claim("m", 1)})))
        await other.delete()

    with_store(tmp_path / "groups", write)
    streams = tmp_path / "groups/streams/orders"
    [record] = (streams / "groups").rglob("billing.json")
    [position] = (streams / "0/groups").rglob("billing.json")
    [deleted] = (streams / "groups").rglob("audit.json")
    found = told(record)
    assert (found["read_by"], found["epoch"], found["resets"]) == ("a query", 1, 0)
    assert (found["query"], found["begins"]) == ("4b1d", [{"partition": "0", "lsn": 7}])
    found = told(position)
    assert (found["kind"], found["next_lsn"]) == ("group: its position in one partition", 12)
    assert "was deleted" in told(deleted)["notes"][-1]


def test_the_members_of_a_group(told: Told, tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        group = GroupRegister(await create_stream(store, "orders"), "audit")
        await group.begin("consumers", {0: 7})
        member = Member(1, 60.0, 1, "host-a", 5)
        await group.share(lambda _: ClaimState(1, ClaimTable({"m": member}, {"0": Claim("m", 1)})))

    with_store(tmp_path / "groups", write)
    [record] = (tmp_path / "groups/streams/orders/groups").rglob("audit.json")
    [row] = told(record)["members"]
    assert row == {"member": "m", "host": "host-a", "last_seen_ms": 5, "partitions": 1}


def test_a_register_is_known_by_its_fields_where_its_name_does_not_tell(
    told: Told, queue: Path, tmp_path: Path
) -> None:
    for name, kind in (("queue.json", "queue.json"), ("consumer.json", "consumer.json")):
        copy = tmp_path / "copy"
        copy.write_bytes((queue / name).read_bytes())
        assert told(copy)["kind"].startswith(kind)


def test_any_other_register_shows_its_value(told: Told, tmp_path: Path) -> None:
    from headwater.store import Register

    async def write(store: Store) -> None:
        await Register(store, "counter", dict[str, int]).update(lambda _: {"n": 7})

    with_store(tmp_path / "other", write)
    assert told(tmp_path / "other/counter")["value"] == {"n": 7}


def test_a_damaged_register_says_where(told: Told, queue: Path) -> None:
    path = queue / "consumer.json"
    text = path.read_text()
    path.write_text(text.replace('"epoch":1', '"epoch":2'))
    [edited] = told(path)["problems"]
    assert (edited["check"], "edited by hand" in edited["message"]) == ("checksum", True)
    path.write_text(text[:100])
    [cut] = told(path)["problems"]
    assert cut["check"] == "JSON"
    path.write_text(text.replace('"revision"', '"revision"]'))
    [broken] = told(path)["problems"]
    assert broken["offset"] is not None
    path.write_text(text.replace('{"register":1', '{"register":2'))
    [later] = told(path)["problems"]
    assert "Upgrade" in later["message"]


def test_a_producer_in_the_wrong_shard(told: Told, queue: Path) -> None:
    shard, *_ = (queue / "producers").iterdir()
    moved = shard.with_name("000.json")
    moved.write_bytes(shard.read_bytes())
    [problem] = told(moved)["problems"]
    assert f"belongs into {shard.name}" in problem["message"]


# The whole queue


def test_the_queue_of_a_partition(told: Told, invoke: Invoke, root: Path) -> None:
    found = told(f"file://{root}", "--stream=events")
    assert (found["owner"], found["epoch"], found["format"]) == ("owner", 1, "native")
    assert (found["pending_batches"], found["pending_records"]) == (2, 4)
    assert found["acknowledged_below_sequence"] == 1
    assert [chunk["entries"] for chunk in found["newest_chunks"]] == [0, 3]
    assert sorted(mark["producer"] for mark in found["producers_marks"]) == ["p1", "p2"]
    words = invoke("inspect", "queue", f"file://{root}", "--stream=events").stdout
    assert words.startswith("✓ queue of stream events, partition 0: good")
    assert "pending batches" in words


def test_looking_fences_nobody_and_changes_nothing(invoke: Invoke, root: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    before = contents()
    assert invoke("inspect", "queue", f"file://{root}", "--stream=events").exit_code == 0
    assert contents() == before


def test_one_damaged_part_does_not_hide_the_others(told: Told, root: Path, queue: Path) -> None:
    chunk = last_chunk(queue)
    data = bytearray(chunk.read_bytes())
    data[60] ^= 1
    chunk.write_bytes(bytes(data))
    found = told(f"file://{root}", "--stream=events")
    [problem] = found["problems"]
    assert chunk.name in problem["message"]
    assert "checksum" in problem["message"]
    assert len(found["producers_marks"]) == 2


def test_a_chunk_that_is_missing_is_named(told: Told, root: Path, queue: Path) -> None:
    (queue / "chunks" / f"{5:020d}").write_bytes(last_chunk(queue).read_bytes())
    messages = " ".join(
        problem["message"] for problem in told(f"file://{root}", "--stream=events")["problems"]
    )
    assert f"{2:020d} is missing, and 2 others" in messages


def problems_of(told: Told, root: Path, stream: str = "events") -> dict[str, str]:
    found = told(f"file://{root}", f"--stream={stream}")["problems"]
    return {problem["check"]: problem["message"] for problem in found}


def test_marks_beyond_the_end_are_noticed(told: Told, root: Path, queue: Path) -> None:
    """The last chunk is replaced by an older copy of itself, as a restored backup does it."""
    with_store(root, lambda store: produced(store, "events", "p1"))
    earlier = last_chunk(queue).read_bytes()
    with_store(root, lambda store: produced(store, "events", "p2"))
    assert problems_of(told, root) == {}
    last_chunk(queue).write_bytes(earlier)
    problems = problems_of(told, root)
    assert list(problems) == ["producers' marks"]
    assert "mark of producer 'p2' points beyond the end" in problems["producers' marks"]


def test_marks_of_batches_that_come_meanwhile_are_not_beyond_the_end(
    told: Told, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer appends, into further chunks, once the chunks were listed."""
    monkeypatch.setattr(limits, "CHUNK_MAX_ENTRIES", 1)
    listed = partition._chunk_numbers

    async def then_produced(chunks: ChunkLog) -> list[int]:
        numbers = await listed(chunks)
        for _ in range(3):
            await produced(chunks.store, "events", "p2")
        assert await listed(chunks) != numbers
        return numbers

    monkeypatch.setattr(partition, "_chunk_numbers", then_produced)
    assert problems_of(told, root) == {}


async def produced(store: Store, name: str, producer_id: str) -> None:
    async with Producer(store, name, producer_id=producer_id) as producer:
        await (await producer.produce([b"x"]))


def test_a_consumer_record_that_is_missing_is_noticed(told: Told, root: Path, queue: Path) -> None:
    (queue / "consumer.json").unlink()
    assert "consumer.json is gone" in problems_of(told, root)["state"]


def test_retention_may_pass_what_the_consumer_has_acknowledged(
    told: Told, root: Path, queue: Path
) -> None:
    raise_floor(root, queue, floor_sequence=2, floor_lsn=5)
    assert problems_of(told, root) == {}


def raise_floor(root: Path, queue: Path, **floors: int) -> None:
    key = str((queue / "queue.json").relative_to(root))

    async def write(store: Store) -> None:
        register = Register(store, key, QueueFloors)
        await register.update(
            lambda held: msgspec.structs.replace(held or QueueFloors(""), **floors)
        )

    with_store(root, write)


def test_positions_that_went_back_are_named_and_not_subtracted(
    told: Told, invoke: Invoke, root: Path, queue: Path
) -> None:
    """All is acknowledged, and the last chunk is replaced by an older copy of itself."""
    earlier = last_chunk(queue).read_bytes()
    with_store(root, lambda store: produced(store, "events", "p3"))
    with_store(root, lambda store: acknowledged(store, "events", 3))
    last_chunk(queue).write_bytes(earlier)
    found = told(f"file://{root}", "--stream=events")
    checks = [problem["check"] for problem in found["problems"]]
    assert "order of positions" in checks
    assert (found["pending_batches"], found["pending_records"]) == (None, None)
    described = invoke("stream", "describe", f"file://{root}", "events")
    assert described.exit_code == 1
    assert "one of them went back" in described.stdout
    assert " -1 " not in described.stdout
    collected = invoke("gc", f"file://{root}", "events")
    assert collected.exit_code == 2
    assert "-1" not in collected.stdout


async def acknowledged(store: Store, name: str, count: int) -> None:
    async with await Consumer.open(store, name, group="owner", gc=False) as consumer:
        for _ in range(count):
            batch = await consumer.next_batch()
            assert batch is not None
            await consumer.ack(batch.sequence)


@pytest.mark.parametrize("format", ["native", "v1"])
def test_an_object_of_a_retained_batch_that_is_missing_is_noticed(
    told: Told, tmp_path: Path, format: str
) -> None:
    root = tmp_path / "store"
    with_store(root, lambda store: fill(store, "more", format=format))
    assert problems_of(told, root, "more") == {}
    batches = [
        path
        for path in sorted(root.glob("streams/more/0/ingest/**/*"))
        if path.is_file()
        and path.stat().st_size > (30_000 if format == "native" else 0)
        and "headwater" not in path.parts
        and path.name != "manifest"
    ]
    batches[0].unlink()
    problems = problems_of(told, root, "more")
    assert batches[0].name in problems["batch objects"]


def test_objects_that_other_software_named_are_looked_for_under_their_names(
    told: Told, tmp_path: Path
) -> None:
    location = "streams/old/0/ingest/a%20b~#ü.batch"

    async def work(store: Store) -> None:
        await create_stream(store, "old", format="v1")
        appended = Manifest().appended([(location, ())])
        await store.put("streams/old/0/ingest/manifest", encode_manifest(appended))

    with_store(tmp_path, work)
    (tmp_path / location).write_bytes(encode_batch([b"a"]))
    found = told(f"file://{tmp_path}", "--stream=old")
    assert (found["good"], found["pending_batches"]) == (True, 1)


def test_only_so_many_objects_are_looked_for_and_the_report_says_so(
    told: Told, root: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three retained batches the middle one is an object, and is gone."""
    [batch] = (queue / "batches").iterdir()
    batch.unlink()
    assert batch.name in problems_of(told, root)["batch objects"]
    monkeypatch.setattr(partition, "LOOKED_AT", 1)
    found = told(f"file://{root}", "--stream=events")
    assert found["problems"] == []
    assert any("the oldest 1 and the newest 1 of 3" in note for note in found["notes"])


def test_an_object_that_is_collected_meanwhile_is_not_missed(
    told: Told, root: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor passes the batches between the listing of entries and the look at objects."""
    [batch] = (queue / "batches").iterdir()
    with_store(root, lambda store: acknowledged(store, "events", 2))
    looked = partition._missing_objects

    async def late(stream: Any, wanted: Any) -> Any:
        batch.unlink()
        register = Register(
            stream.store, str((queue / "queue.json").relative_to(root)), QueueFloors
        )
        await register.update(
            lambda held: msgspec.structs.replace(
                held or QueueFloors(""), floor_sequence=2, floor_lsn=5
            )
        )
        return await looked(stream, wanted)

    monkeypatch.setattr(partition, "_missing_objects", late)
    assert problems_of(told, root) == {}


def test_a_partition_that_is_not_there(invoke: Invoke, root: Path) -> None:
    for arguments in (("--stream=events", "--partition=3"), ("--stream=nothing",)):
        assert invoke("inspect", "queue", f"file://{root}", *arguments).exit_code == 2


def test_a_published_queue(told: Told, tmp_path: Path) -> None:
    with_store(tmp_path / "store", lambda store: fill(store, "old", format="v1"))
    found = told(f"file://{tmp_path}/store", "--stream=old")
    assert (found["format"], found["owner"], found["pending_batches"]) == ("v1", "owner", 2)
    assert [row["sequence"] for row in found["pending_entries"]] == [1, 2]
    folder = tmp_path / "store/streams/old/0/ingest"
    side = told(folder / "headwater/side.json")
    assert (side["owner"], side["acknowledged_below_lsn"]) == ("owner", 3)
    [segment] = (folder / "headwater/acked").glob("*/*")
    assert told(segment)["acknowledged_entries"][0]["records"] == 2
    damaged = bytearray(segment.read_bytes())
    damaged[-30] ^= 1
    segment.write_bytes(bytes(damaged))
    assert told(segment)["problems"][0]["check"] == "checksum"
    (folder / "manifest").write_bytes(b"\0" * 22)
    assert not told(f"file://{tmp_path}/store", "--stream=old")["good"]
