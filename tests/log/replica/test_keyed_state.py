"""A keyed state: the latest record of each key."""

from __future__ import annotations

import random
from unittest import mock

import pyarrow as pa
import pytest

from headwater.buffer.records import Operation
from headwater.core import runtime
from headwater.core.errors import Corrupt, NotFound, NotSupported, Refused
from headwater.log import ChangeRecord, Group, KeyedState, group_of, record_hashes
from headwater.log.record.group import GroupRing
from headwater.log.replica import image as image_module
from headwater.log.replica import keyed_table
from headwater.log.replica.contract import Image
from headwater.log.replica.image import decode_image, encode_image
from headwater.store import Store
from tests.log.edges import EDGES
from tests.log.leaders import Away, memory_store
from tests.log.replica.given import keyed_states, rows
from tests.store.scripted import virtual

INSERT, UPDATE, DELETE, REFRESH = map(int, Operation)


def state() -> KeyedState:
    return KeyedState(keyed_states(memory_store()), {}, 0)


def values(found: KeyedState, collection: str = "") -> dict[object, object]:
    return {row.get("_key"): row["_value"] for row in found.scan(collection).to_pylist()}


@virtual
async def test_the_latest_record_of_each_key_is_there_and_deleted_ones_are_not() -> None:
    one = state()
    changes = [
        (b"a", INSERT, b"1"),
        (b"b", INSERT, b"1"),
        (b"a", UPDATE, b"2"),
        (b"b", DELETE, None),
    ]
    await one.apply([rows(1, *changes)], 4)
    await one.apply([rows(5, (b"c", INSERT, b"1"))], 5)
    assert values(one) == {b"a": b"2", b"c": b"1"}
    found = one.get(b"a")
    assert found is not None
    assert (found["_value"], found["_lsn"]) == (b"2", 3)
    assert one.get(b"b") is None
    assert one.get(b"z") is None
    assert one.get(b"a", "elsewhere") is None
    await one.apply([rows(6, (b"b", INSERT, b"again"))], 6)
    assert values(one)[b"b"] == b"again"
    assert (one.applied_lsn, one.durable_lsn) == (6, 0)


@virtual
async def test_collections_keep_apart_and_row_ids_stand_in_for_keys() -> None:
    one = state()
    changes = [
        ChangeRecord(1, collection="x", key=b"k", entity_bytes=b"1"),
        ChangeRecord(2, collection="y", key=b"k", entity_bytes=b"2"),
        ChangeRecord(3, collection="x", rid=7, entity_bytes=b"3"),
        ChangeRecord(4, collection="x", rid=7, operation=Operation.UPDATE, entity_bytes=b"4"),
        ChangeRecord(5, collection="x", entity_bytes=b"nobody can find this"),
    ]
    await one.apply([group_of(changes)], 5)
    assert one.collections() == ["x", "y"]
    assert [row["_lsn"] for row in one.scan("x").to_pylist()] == [1, 4]
    assert [row["_lsn"] for row in one.scan("y").to_pylist()] == [2]
    found = one.get(7, "x")
    assert found is not None
    assert found["_value"] == b"4"
    assert one.records_without_key == 1


@virtual
async def test_a_refresh_is_all_that_its_collection_holds() -> None:
    one = state()
    refresh = Operation.REFRESH
    changes = [
        ChangeRecord(1, collection="x", key=b"k", entity_bytes=b"1"),
        ChangeRecord(2, collection="y", key=b"k", entity_bytes=b"2"),
        ChangeRecord(3, collection="x", operation=refresh, refresh_records=(b"r1", b"r2")),
        ChangeRecord(4, collection="x", key=b"l", entity_bytes=b"4"),
    ]
    await one.apply([group_of(changes)], 4)
    assert [row["_value"] for row in one.scan("x").to_pylist()] == [b"r1", b"r2", b"4"]
    assert [row["_value"] for row in one.scan("y").to_pylist()] == [b"2"]
    emptied = ChangeRecord(5, collection="x", operation=refresh, refresh_records=())
    await one.apply([group_of([emptied])], 5)
    assert one.scan("x").num_rows == 0
    again = ChangeRecord(6, collection="x", operation=refresh, key=b"k", entity_bytes=b"6")
    await one.apply([group_of([again])], 6)
    assert values(one, "x") == {b"k": b"6"}, "a row that was read again is its latest"


@virtual
async def test_typed_columns_stay_typed_also_when_columns_are_added() -> None:
    one = state()
    first = pa.record_batch({"_key": pa.array([b"a"]), "price": pa.array([9.5])})
    second = pa.record_batch(
        {"_key": pa.array([b"b"]), "price": pa.array([2.0]), "note": pa.array(["new"])}
    )
    await one.apply([Group(1, 1, 1, first), Group(1, 2, 2, second)], 2)
    table = one.scan()
    assert table.schema.field("price").type == pa.float64()
    assert table.column("note").to_pylist() == [None, "new"]


@virtual
async def test_a_lost_range_is_passed_over() -> None:
    one = state()
    lost = Group(1, 1, 5, pa.record_batch({"_value": pa.array([], pa.binary())}), lost="gone")
    await one.apply([lost, rows(6, (b"a", 0, b"1"))], 6)
    assert (one.applied_lsn, values(one)) == (6, {b"a": b"1"})


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_a_dictionary_would_be(seed: int) -> None:
    @virtual
    async def run() -> None:
        chance = random.Random(seed)
        one, expected, lsn = state(), dict[bytes, bytes](), 0
        for _ in range(60):
            changes = []
            for _ in range(chance.randint(1, 40)):
                key, operation = b"%d" % chance.randrange(50), chance.choice((0, 1, 1, 2))
                value = None if operation == DELETE else b"%d" % chance.random().__hash__()
                changes.append((key, operation, value))
                if value is None:
                    expected.pop(key, None)
                else:
                    expected[key] = value
            await one.apply([rows(lsn + 1, *changes)], lsn + len(changes))
            lsn += len(changes)
            assert values(one) == expected
        for key, value in expected.items():
            found = one.get(key)
            assert found is not None
            assert found["_value"] == value
        store = memory_store()
        image = await keyed_states(store).write_image(lsn, one._encoded(lsn, []))
        loaded = await keyed_states(store).begin("", image)
        assert isinstance(loaded, KeyedState)
        assert values(loaded) == expected
        assert (loaded.applied_lsn, loaded.durable_lsn) == (lsn, lsn)

    # So that rows are dropped, and chunks put together, many times over.
    with mock.patch.object(keyed_table, "KEYED_CHUNK_ROWS", 16):
        run()


@virtual
async def test_what_is_no_longer_the_latest_is_dropped_when_it_is_the_most() -> None:
    one = state()
    with mock.patch.object(keyed_table, "KEYED_CHUNK_ROWS", 8):
        for lsn in range(1, 2001):
            await one.apply([rows(lsn, (b"%d" % (lsn % 5), 0, b"v"))], lsn)
        table = one._tables[""]
        assert sum(chunk.num_rows for chunk in table._chunks) <= 2 * 5 + 8 + 1
        for lsn in range(2001, 2006):
            await one.apply([rows(lsn, (b"%d" % (lsn % 5), DELETE, None))], lsn)
        for lsn in range(2006, 2100):
            await one.apply([rows(lsn, (b"x", DELETE, None))], lsn)
        assert sum(chunk.num_rows for chunk in table._chunks) <= 8 + 1
        assert len(table._index) <= 8 + 1, "and so are the keys of what was deleted"


@virtual
async def test_a_state_that_grows_record_by_record_is_no_heap_of_batches() -> None:
    one = state()
    for lsn in range(1, 1001):
        await one.apply([rows(lsn, (b"%d" % lsn, 0, b"v"))], lsn)
    assert len(one._tables[""]._chunks) <= 12
    assert one.scan().num_rows == 1000


@virtual
async def test_what_came_last_can_be_compared_and_what_is_older_is_not_known() -> None:
    one = state()
    one._recent = GroupRing(max_bytes=9_500, keeps_last=True)
    first, second = rows(1, (b"a", 0, b"1"), (b"b", 0, b"2")), rows(3, (b"c", 0, b"3"))
    await one.apply([first, second], 3)
    assert (await one.hashes(2, 3)).to_pylist() == [
        record_hashes(first)[1].as_py(),
        record_hashes(second)[0].as_py(),
    ]
    await one.apply([rows(4, (b"d", 0, b"x" * 9_500))], 4)
    assert (await one.hashes(1, 3)).to_pylist() == [None, None, None]
    assert (await one.hashes(4, 4)).null_count == 0, "the last one stays, however large"


@virtual
async def test_an_image_is_written_when_it_is_due_and_makes_everything_in_it_durable() -> None:
    backend = Away()
    store = Store(backend)
    one = KeyedState(keyed_states(store, image_records=3), {}, 0)
    await one.apply([rows(1, (b"a", 0, b"1"), (b"b", 0, b"1"))], 2)
    await one.tend()
    assert one.durable_lsn == 0
    await one.apply([rows(3, (b"a", 0, b"2"))], 3)
    backend.is_away = True
    await one.tend()
    assert (one.durable_lsn, one.images_failed) == (0, 1)
    await one.tend()
    assert one.images_failed == 1, "not at once again"
    backend.is_away = False
    await one.sync()
    assert (one.durable_lsn, one.images_written) == (3, 1)
    for lsn in range(4, 9):
        await one.apply([rows(lsn, (b"a", 0, b"%d" % lsn))], lsn)
        await one.sync()
    kept = await keyed_states(store).images()
    assert [image.lsn for image in kept] == [6, 7, 8], "the newest few are kept"
    behind = KeyedState(keyed_states(store), {}, 0)
    await behind.apply([rows(1, (b"a", 0, b"1"))], 1)
    await behind.sync()
    kept = await keyed_states(store).images()
    assert [image.lsn for image in kept] == [1, 6, 7, 8], "and so is what was said to be durable"


def test_an_image_says_what_it_is_and_another_one_is_refused() -> None:
    table = pa.table({"_key": pa.array([b"a"]), "_lsn": pa.array([3])})
    data = encode_image({"x": [table], "empty": []}, 3, [11, 12])
    decoded, last_hashes = decode_image(data, Image(3, "k"))
    assert last_hashes == [11, 12]
    assert sorted(decoded) == ["empty", "x"]
    assert decoded == {"x": [table], "empty": []}
    with pytest.raises(Corrupt, match="through LSN 3"):
        decode_image(data, Image(4, "k"))
    with pytest.raises(Corrupt, match="not an image"):
        decode_image(data[:-9], Image(3, "k"))
    with pytest.raises(Corrupt, match="not an image"):
        decode_image(b"", Image(3, "k"))
    with mock.patch.object(image_module, "IMAGE_FORMAT", 4):
        later = encode_image({}, 3)
    with pytest.raises(NotSupported, match="Upgrade"):
        decode_image(later, Image(3, "k"))


@virtual
async def test_an_image_with_any_byte_changed_is_not_read() -> None:
    store = memory_store()
    table = pa.table({"_key": pa.array([b"a"]), "_lsn": pa.array([3])})
    data = encode_image({"": [table]}, 3)
    image = await keyed_states(store).write_image(3, data)
    assert (await keyed_states(store).read_image(image)).collections == {"": [table]}
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        await store.put(image.key, bytes(changed))
        handle = keyed_states(store)
        with pytest.raises(Corrupt, match="its checksum differs"):
            await handle.read_image(image)
        assert await handle.newest_image() is None, "and is passed over from then on"


@virtual
async def test_large_groups_and_records_with_and_without_keys_are_taken_at_once() -> None:
    one = state()
    keys = [b"%d" % n if n % 2 else None for n in range(2000)]
    batch = pa.record_batch(
        {
            "_key": pa.array(keys, pa.binary()),
            "_rid": pa.array(range(1, 2001), pa.int64()),
            "_value": pa.array([b"x" * 100] * 2000, pa.binary()),
        }
    )
    await one.apply([Group(1, 1, 2000, batch)], 2000)
    assert one.scan().num_rows == 2000
    by_key, by_rid = one.get(b"7"), one.get(7)
    assert by_key is not None
    assert by_rid is not None
    assert (by_key["_lsn"], by_rid["_lsn"]) == (8, 7)


@virtual
async def test_an_image_that_is_gone_is_passed_over() -> None:
    store = memory_store()
    handle = keyed_states(store)
    gone = await handle.write_image(3, encode_image({}, 3))
    kept = await handle.write_image(2, encode_image({}, 2))
    await store.delete(gone.key)
    with pytest.raises(NotFound):
        await handle.read_image(gone)
    assert await handle.newest_image() == kept
    assert await handle.newest_image(below_lsn=2) is None


def typed(key: bytes, collection: str, column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(
        {"_key": pa.array([key]), "id": column, "_collection": pa.array([collection])}
    )


@virtual
async def test_columns_that_change_their_type_survive_an_image_and_scan_names_them() -> None:
    store = memory_store()
    one = KeyedState(keyed_states(store), {}, 0)
    columns = [
        ("x", pa.array([2**53 + 1])),
        ("x", pa.array([1.5])),
        ("x", pa.array(["text"])),
        ("y", pa.array(["u1"])),
    ]
    for lsn, (collection, column) in enumerate(columns, start=1):
        await one.apply([Group(1, lsn, lsn, typed(b"k%d" % lsn, collection, column))], lsn)
    with pytest.raises(NotSupported, match="'id' is int64 in some records and double in others"):
        one.scan("x")
    assert [part.column("id")[0].as_py() for part in one.scan_parts("x")] == [
        2**53 + 1,
        1.5,
        "text",
    ]
    await one.sync()
    again = await keyed_states(store).open("")
    assert isinstance(again, KeyedState)
    assert again.scan_parts("x") == one.scan_parts("x")
    assert again.scan("y") == one.scan("y")
    assert again.get(b"k1", "x") == one.get(b"k1", "x"), "no column of others comes along"


@virtual
async def test_a_state_of_several_schemas_is_scanned_in_the_order_of_the_log() -> None:
    one = state()
    for lsn in range(1, 7):
        batch = pa.record_batch({"_key": pa.array([b"%d" % lsn]), f"c{lsn % 2}": pa.array([lsn])})
        await one.apply([Group(1, lsn, lsn, batch)], lsn)
    assert one.scan().column("_lsn").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert len(one.scan_parts()) == 2


def test_a_key_that_is_neither_bytes_nor_a_number_is_refused() -> None:
    with pytest.raises(Refused, match="keys are bytes"):
        state().get("k1")  # type: ignore[arg-type]


@virtual
async def test_views_are_kept_as_plain_values() -> None:
    one = state()
    batch = pa.record_batch({"_key": pa.array([b"a"]), "v": pa.array(["s"], pa.string_view())})
    await one.apply([Group(1, 1, 1, batch)], 1)
    assert one.scan().column("v").to_pylist() == ["s"]
    await one.sync()
    assert one.durable_lsn == 1


_VIEW = pa.string_view()
NESTED_VIEWS = {
    "list": pa.array([["x" * 20], None, ["y", None]], pa.list_(_VIEW)),
    "large list": pa.array([["x"], None, []], pa.large_list(_VIEW)),
    "fixed list": pa.array([["x"], None, ["z"]], pa.list_(_VIEW, 1)),
    "struct": pa.array([{"a": ["x"]}, None, {"a": None}], pa.struct([("a", pa.list_(_VIEW))])),
    "map": pa.array([[("a", b"x")], None, []], pa.map_(_VIEW, pa.binary_view())),
}


@pytest.mark.parametrize("column", NESTED_VIEWS.values(), ids=NESTED_VIEWS)
def test_views_inside_of_other_types_are_scanned_and_imaged(column: pa.Array) -> None:
    @virtual
    async def run() -> None:
        store = memory_store()
        one = await keyed_states(store).begin("", None)
        records = pa.record_batch({"_key": pa.array([b"a", b"b", b"c"]), "v": column})
        await one.apply([Group(1, 1, 3, records)], 3)
        await one.apply([Group(1, 4, 6, records)], 6)
        await one.sync()
        again = await keyed_states(store).open("")
        for state in (one, again):
            assert state.scan().column("v").to_pylist() == column.to_pylist()

    run()


@virtual
async def test_a_state_that_no_image_can_hold_goes_on_without_one() -> None:
    one = KeyedState(keyed_states(memory_store(), image_records=1, image_interval_s=300.0), {}, 0)
    nothing = pa.array([{}], pa.struct([]))
    await one.apply([Group(1, 1, 1, pa.record_batch({"_key": [b"a"], "v": nothing}))], 1)
    await one.tend()
    await one.tend()
    assert (one.images_failed, one.durable_lsn, one.applied_lsn) == (1, 0, 1)
    await one.apply([rows(2, (b"a", 0, b"plain"))], 2)
    await runtime.sleep(300.0)
    await one.tend()
    assert one.durable_lsn == 2, "as soon as one can"


@pytest.mark.parametrize("name", EDGES)
def test_what_a_log_carries_comes_back_from_an_image(name: str) -> None:
    @virtual
    async def run() -> None:
        store = memory_store()
        one = KeyedState(keyed_states(store), {}, 0)
        column = EDGES[name]
        rids = pa.array(range(1, len(column) + 1))
        await one.apply([Group(1, 1, len(column), pa.record_batch({"_rid": rids, "v": column}))], 9)
        await one.sync()
        again = await keyed_states(store).open("")
        assert isinstance(again, KeyedState)
        assert (one.durable_lsn, again.applied_lsn) == (9, 9)
        assert again.scan() == one.scan()
        assert again.scan().schema.equals(one.scan().schema, check_metadata=True)

    run()


@virtual
async def test_an_image_that_does_not_give_back_the_state_is_not_written() -> None:
    store = memory_store()
    one = KeyedState(keyed_states(store, image_records=1), {}, 0)
    await one.apply([rows(1, (b"a", 0, b"1"))], 1)
    with mock.patch.object(
        image_module, "from_parquet_column", lambda column, kind: pa.nulls(1, kind)
    ):
        await one.tend()
    assert (one.durable_lsn, one.images_failed) == (0, 1)
    assert await keyed_states(store).newest_image() is None


@virtual
async def test_numbers_that_are_none_come_back_from_an_image() -> None:
    one = KeyedState(keyed_states(memory_store()), {}, 0)
    column = pa.array([float("nan"), None, 1.0])
    await one.apply([Group(1, 1, 3, pa.record_batch({"_rid": [1, 2, 3], "v": column}))], 3)
    await one.sync()
    assert one.durable_lsn == 3


@virtual
async def test_an_image_of_an_older_format_is_passed_over_and_no_divergence() -> None:
    store = memory_store()
    with mock.patch.object(image_module, "IMAGE_FORMAT", 2):
        older = await keyed_states(store).write_image(3, encode_image({}, 3, [1, 2, 3]))
    states = keyed_states(store)
    with pytest.raises(NotSupported, match="cannot be used any more"):
        await states.begin("", older)
    assert await states.newest_image() is None
    assert (await keyed_states(store).open("")).applied_lsn == 0
