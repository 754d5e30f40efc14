"""A segment that was cut off or changed anywhere is noticed by whoever would be misled by it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headwater.core.errors import Corrupt, NotSupported
from headwater.store import MemoryBackend, Object, Store
from headwater.tier import SegmentMetadata
from headwater.tier.segments import (
    EncodedSegment,
    ObjectCache,
    ObjectStorage,
    read_index,
    segment_key,
)
from headwater.tier.segments.footer import decode_description, encode_description
from headwater.tier.segments.seal import SEAL_BYTES
from tests.store.scripted import Apply, Scripted, virtual
from tests.tier.segments.given import (
    by_lsn,
    decoded,
    encoded,
    lost,
    orders,
    storage,
    told,
)

GROUPS = [orders(1, 3, headers=True), lost(4, 5), orders(6, 4, term=2)]
SEGMENT = encoded(GROUPS)
RECORDS = by_lsn(GROUPS)


async def stored(data: bytes | bytearray, segment: EncodedSegment = SEGMENT) -> ObjectStorage:
    """A storage in which these bytes stand where the segment should."""
    store = Store(MemoryBackend())
    await store.put(segment_key(segment.description.identity), data)
    return ObjectStorage(store)


def fields_of(value: msgspec.Struct) -> dict[str, Any]:
    """All of a value, to make another of."""
    return msgspec.structs.asdict(value)


async def read(found: ObjectStorage, metadata: SegmentMetadata) -> dict[int, tuple[object, ...]]:
    return by_lsn([group async for group in found.fetch(metadata, 1, 100)])


def is_noticed(data: bytes) -> bool:
    """Whether a reader is told; one that is not must have read what was written."""
    try:
        found = by_lsn(decoded(data))
    except Corrupt:
        return True
    assert found == RECORDS
    return False


def test_every_flip_is_noticed_or_harmless() -> None:
    """What stands behind the rows is there for other readers, but for seal and footer."""
    chance = random.Random(5)
    rows = SEGMENT.description.row_groups
    ends = len(SEGMENT.data) - SEGMENT.receipt.footer_bytes - SEAL_BYTES
    unread = {*range(rows[0].offset), *range(rows[-1].offset + rows[-1].size_bytes, ends)}
    of_the_body = range(ends + SEAL_BYTES - 16, ends + SEAL_BYTES)
    for place in range(len(SEGMENT.data)):
        data = bytearray(SEGMENT.data)
        data[place] ^= 1 << chance.randrange(8)
        assert is_noticed(bytes(data)) == (place not in unread and place not in of_the_body), place


@virtual
async def test_every_flip_is_noticed_by_a_look_at_all_of_it() -> None:
    chance = random.Random(6)
    bare = SegmentMetadata(**fields_of(told(SEGMENT)) | {"custom_metadata": None})
    for place in range(0, len(SEGMENT.data), 3):
        data = bytearray(SEGMENT.data)
        data[place] ^= 1 << chance.randrange(8)
        changed = await stored(bytes(data))
        with pytest.raises(Corrupt):
            await changed.verify(bare if place % 2 else told(SEGMENT))


@virtual
async def test_a_segment_cut_off_anywhere_is_corrupt() -> None:
    for size in range(0, len(SEGMENT.data), 7):
        changed = await stored(SEGMENT.data[:size])
        with pytest.raises(Corrupt):
            await read(changed, told(SEGMENT))
        with pytest.raises(Corrupt):
            read_index(memoryview(SEGMENT.data[:size]), size)


@virtual
async def test_anything_after_the_end_is_corrupt() -> None:
    changed = await stored(SEGMENT.data + b"PAR1")
    with pytest.raises(Corrupt, match="bytes"):
        await read(changed, told(SEGMENT))


@virtual
async def test_another_segment_in_its_place_is_noticed() -> None:
    other = encoded(GROUPS, number=8)
    with pytest.raises(Corrupt, match="contains segment"):
        await read(await stored(other.data), told(SEGMENT))


@virtual
async def test_events_that_say_something_else_are_noticed() -> None:
    found = await stored(SEGMENT.data)
    fields = fields_of(told(SEGMENT))
    with pytest.raises(Corrupt, match="LSNs 1 to 9"):
        await read(found, SegmentMetadata(**fields | {"end_offset": 10}))
    receipt = SEGMENT.receipt
    for wrong, words in (
        (receipt._replace(rows=3), "7 records"),
        (receipt._replace(size_bytes=receipt.size_bytes + 1), "its events say"),
    ):
        with pytest.raises(Corrupt, match=words):
            await read(
                found, SegmentMetadata(**fields | {"custom_metadata": wrong.custom_metadata(3)})
            )
    wrong = receipt._replace(xxh3=b"\1" * 16)
    with pytest.raises(Corrupt, match="its events say"):
        await found.verify(
            SegmentMetadata(**fields | {"custom_metadata": wrong.custom_metadata(3)})
        )


@virtual
async def test_a_whole_segment_passes_every_check() -> None:
    found = await stored(SEGMENT.data)
    assert await read(found, told(SEGMENT)) == RECORDS
    assert (await found.verify(told(SEGMENT))).description == SEGMENT.description


def test_a_parquet_file_of_somebody_else_is_no_segment() -> None:
    start = len(SEGMENT.data) - SEGMENT.receipt.footer_bytes
    foreign = SEGMENT.data[: start - SEAL_BYTES] + bytes(SEAL_BYTES) + SEGMENT.data[start:]
    with pytest.raises(Corrupt, match="not a segment of Headwater"):
        decoded(foreign)
    with pytest.raises(Corrupt, match="it has 3 bytes"):
        decoded(b"PAR")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 3}, "rows"),
        ({"last_lsn": 13}, "runs through LSN 9 of 13"),
        ({"runs": []}, "runs through"),
        ({"runs": SEGMENT.description.runs[::-1]}, "is next"),
        ({"row_groups": SEGMENT.description.row_groups[1:]}, "too many"),
        ({"row_groups": SEGMENT.description.row_groups[::-1]}, "row group"),
        ({"schemas": []}, "schema 0 of 0"),
        ({"partition": "x"}, "cannot be decoded"),
    ],
)
def test_a_description_that_does_not_add_up_is_corrupt(
    changes: dict[str, object], words: str
) -> None:
    said = SEGMENT.description
    with pytest.raises(Corrupt, match=words):
        decode_description(encode_description(type(said)(**fields_of(said) | changes)))


def test_a_later_format_asks_for_an_upgrade() -> None:
    later = encode_description(SEGMENT.description).replace(
        b'"segment_format":1', b'"segment_format":2'
    )
    with pytest.raises(NotSupported, match="Upgrade"):
        decode_description(later)


@virtual
async def test_a_segment_is_read_where_the_events_say_nothing_of_its_object() -> None:
    """As after a copy of which only the beginning was told, or of a stamp alone."""
    found = storage()
    await found.copy(SEGMENT)
    fields = fields_of(told(SEGMENT))
    for custom in (None, b"another plugin's"):
        bare = SegmentMetadata(**fields | {"custom_metadata": custom})
        assert await read(found, bare) == RECORDS
        await found.verify(bare)


@virtual
async def test_what_was_damaged_on_its_way_is_not_kept() -> None:
    backend = Scripted()
    found = ObjectStorage(Store(backend), ObjectCache())
    await found.copy(SEGMENT)

    async def damages(apply: Apply) -> Object:
        answer = await apply()
        data = bytearray(answer.data)
        data[SEGMENT.description.row_groups[0].offset + 9] ^= 1
        return Object(answer.meta, bytes(data))

    backend.next("get", damages)
    with pytest.raises(Corrupt):
        await read(found, told(SEGMENT))
    assert await read(found, told(SEGMENT)) == RECORDS
