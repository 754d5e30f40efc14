"""Streams are changed through their register, and what later software wrote is left alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.buffer.stream import (
    Stream,
    alter_stream,
    create_stream,
    delete_damaged_stream,
    delete_stream,
    list_streams,
    open_stream,
    open_streams,
    stream_names,
)
from headwater.core.errors import Conflict, Corrupt, Damaged, LimitExceeded, NotSupported, Refused
from tests.buffer.stream.given import KEY, given, keys, rewritten, usable
from tests.store.scripted import after, virtual

Action = Callable[[], Awaitable[Any]]


# Changing


@virtual
async def test_settings_are_changed_and_the_others_stay() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders", compression="lz4", linger_ms=5)
    changed = await alter_stream(store, "orders", **{"retention.ms": "1d", "linger.ms": "default"})
    assert changed.config == msgspec.structs.replace(
        made.config, retention_ms=86_400_000, linger_ms=None, policy=1
    )
    assert (await open_stream(store, "orders")).config == changed.config


@virtual
async def test_partitions_are_added_and_never_removed() -> None:
    _, store, _ = given()
    await create_stream(store, "orders", partitions=2)
    more = await alter_stream(store, "orders", **{"num.partitions": "4"})
    assert more.partitions == 4
    assert await usable(more)
    with pytest.raises(Refused, match="added and never removed"):
        await alter_stream(store, "orders", partitions=3)


@virtual
async def test_a_stream_keeps_its_format() -> None:
    _, store, _ = given()
    await create_stream(store, "orders")
    with pytest.raises(Refused, match="which never changes"):
        await alter_stream(store, "orders", format="v1")
    await alter_stream(store, "orders", format="native", retention="1d")
    with pytest.raises(Refused, match="nothing to change"):
        await alter_stream(store, "orders")


@virtual
async def test_versions_of_a_schema_are_kept() -> None:
    backend, store, _ = given()
    await create_stream(store, "orders")
    first = await alter_stream(store, "orders", schema={"id": "int32"})
    second = await alter_stream(store, "orders", schema={"note": "string", "id": "int64"})
    assert (first.schema_version, second.schema_version) == (1, 2)
    assert second.schema == pa.schema([("id", pa.int64()), ("note", pa.string())])
    assert [version.version for version in second.config.schemas] == [1, 2]
    assert second.config.schemas[0] == first.config.schemas[0]
    written = backend.count("put_if_unchanged")
    same = await alter_stream(store, "orders", schema={"id": "int64", "note": "string"})
    assert same.config == second.config
    assert backend.count("put_if_unchanged") == written


@virtual
async def test_a_schema_that_does_not_follow_changes_nothing() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders", schema={"id": "int32"})
    with pytest.raises(Refused, match="id  int32 → string: not a wider type"):
        await alter_stream(store, "orders", schema={"id": "string"}, retention="1d")
    assert (await open_stream(store, "orders")).config == made.config


@virtual
async def test_two_changes_at_once_are_both_made() -> None:
    backend, store, plain = given()
    await create_stream(store, "orders")
    backend.next("put_if_unchanged", after(lambda: alter_stream(plain, "orders", partitions=3)))
    both = await alter_stream(store, "orders", retention="1d")
    assert (both.partitions, both.config.retention_ms) == (3, 86_400_000)
    assert await usable(both)


@virtual
async def test_a_change_is_never_made_to_a_later_stream_of_the_same_name() -> None:
    backend, store, plain = given()
    await create_stream(store, "orders")

    async def replaced() -> None:
        await delete_stream(plain, "orders")
        await create_stream(plain, "orders")

    backend.next("put_if_unchanged", after(replaced))
    with pytest.raises(Conflict, match="deleted and created again meanwhile"):
        await alter_stream(store, "orders", retention="1d")
    assert (await open_stream(plain, "orders")).config.retention_ms == 7 * 86_400_000


# Versions


@virtual
async def test_a_stream_that_takes_later_software_is_refused_with_what_to_upgrade_to() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    await rewritten(made, reader_version=4, writer_version=5, needs_release="0.7.0", consumer="?")
    with pytest.raises(NotSupported, match=r"read .* format 4.*upgrade to headwater 0\.7\.0"):
        await open_stream(store, "orders")


@virtual
async def test_what_later_software_wrote_is_read_and_not_written_over() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    await rewritten(made, writer_version=4, needs_release="0.5.0", a_later_field=[1, 2])
    before = bytes((await store.get(KEY)).data)
    found = await open_stream(store, "orders")
    assert (await found.queue_reader(0).state()).next_lsn == 1
    with pytest.raises(NotSupported, match=r"write .* format 4.*headwater 0\.5\.0"):
        await open_stream(store, "orders", writing=True)
    for door in (
        found.queue_consumer,
        found.collector,
        lambda partition: found.appender(partition, "p"),
    ):
        with pytest.raises(NotSupported, match="write"):
            door(0)
    calls: list[Action] = [
        lambda: alter_stream(store, "orders", retention="1d"),
        lambda: delete_stream(store, "orders"),
        lambda: create_stream(store, "orders", exists_ok=True),
    ]
    for call in calls:
        with pytest.raises(NotSupported, match="write"):
            await call()
    assert bytes((await store.get(KEY)).data) == before


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "../../x"},
        {"partitions": 0},
        {"format": "v7"},
        {"state": "?"},
        {"name": "x"},
        {"reader_version": "2"},
        {"shape": "round"},
        {"shape": "typed"},
    ],
)
@virtual
async def test_a_register_that_makes_no_sense_is_damage(change: dict[str, object]) -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    await rewritten(made, **change)
    with pytest.raises(Corrupt, match=r"stream\.json of 'orders'"):
        await open_stream(store, "orders")


@virtual
async def test_a_format_from_before_the_first_release_is_refused_with_the_cure() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    await rewritten(made, reader_version=1, writer_version=1)
    with pytest.raises(Corrupt, match=r"format 1, from before.*--damaged.*create it again"):
        await open_stream(store, "orders")
    await delete_damaged_stream(store, "orders")
    assert (await create_stream(store, "orders")).id != made.id


@virtual
async def test_more_columns_than_a_schema_may_have_are_refused() -> None:
    _, store, _ = given()
    wide = {f"column_{number}": "string" for number in range(10_001)}
    with pytest.raises(LimitExceeded, match="COLUMNS_MAX is 10,000"):
        await create_stream(store, "orders", schema=wide)
    assert await keys(store) == []


# Streams are listed by name, and those that cannot be opened say why.


@virtual
async def test_streams_are_listed_by_name_without_listing_their_objects() -> None:
    backend, store, _ = given()
    for name in ("b", "a-b", "a", "a.b", "a0", "gone"):
        await create_stream(store, name)
    await delete_stream(store, "gone")
    await store.put("other/stream.json", b"")
    await store.put("streams/=odd/x", b"")
    await store.put("streams/file", b"")
    for number in range(50):
        await store.put(f"streams/a/0/ingest/more/{number}", b"")
    assert [stream.name for stream in await list_streams(store)] == ["a", "a-b", "a.b", "a0", "b"]
    listed = backend.count("list")
    await stream_names(store)
    assert backend.count("list") - listed == 1


@virtual
async def test_what_listing_streams_costs_grows_with_them_and_not_with_what_they_hold() -> None:
    backend, store, _ = given()
    names = [f"s{number:03d}" for number in range(60)]
    for name in names:
        await create_stream(store, name)
        await store.put(f"streams/{name}/0/ingest/more", b"")
    backend.calls.clear()
    assert [stream.name for stream in await list_streams(store)] == names
    assert (backend.count("list"), backend.count("get")) == (1, len(names))
    assert len(backend.calls) == 1 + len(names)


@virtual
async def test_several_are_opened_and_those_that_cannot_be_say_why() -> None:
    _, store, _ = given()
    await create_stream(store, "good")
    await create_stream(store, "gone")
    await delete_stream(store, "gone")
    await store.put("streams/bad/stream.json", b"no register")
    found = await open_streams(store, ["bad", "gone", "good", "never"])
    assert list(found) == ["bad", "good"]
    assert isinstance(found["good"], Stream)
    assert isinstance(found["bad"], Damaged)


@virtual
async def test_an_empty_store_has_no_streams() -> None:
    _, store, _ = given()
    assert await list_streams(store) == []
