"""The published Rust buffer and our codecs read each other's bytes, over real servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.buffer.compression import Compression, compress
from headwater.buffer.queue.v1.batch_format import (
    FOOTER_BYTES,
    V1Footer,
    decode_batch,
    encode_batch,
    read_footer,
)
from headwater.buffer.queue.v1.manifest_format import (
    Manifest,
    ManifestEntry,
    MetadataItem,
    decode_manifest,
    encode_manifest,
)
from headwater.core.errors import Corrupt, NotSupported
from headwater.store import Store, open_store
from tests.interop.rust_tool import (
    Consumed,
    Parser,
    RustBuffer,
    RustError,
    ToolDied,
    metadata_of,
    parser,
)
from tests.interop.servers import GOOD
from tests.interop.test_store_conformance import reaching

pytestmark = pytest.mark.interop

S3 = pytest.mark.parametrize(
    "server",
    [recipe for recipe in GOOD if recipe.url().startswith("s3:")],
    indirect=True,
    ids=lambda recipe: recipe.name,
)
BOTH = pytest.mark.parametrize("compression", ["none", "zstd"])

Calls = Sequence[tuple[list[bytes], bytes]]
BATCHES: Sequence[Calls] = (
    [([b"hello", b"world"], b"first"), ([b""], b""), ([b"\x00\xff" * 40], b"\x00\x01\xff")],
    [([b"one record, one call"], b"m" * 300)],
    [([bytes([number % 251]) * (number % 700) for number in range(900)], b"long")],
    [([b""] * 3, b""), ([b"a", b"b"], b"two")],
)
"""Several flushes of several calls: empty records and payloads, all bytes, every length class."""


def records_of(calls: Calls) -> list[bytes]:
    return [record for records, _ in calls for record in records]


def items_of(calls: Calls, times_ms: Sequence[int]) -> list[MetadataItem]:
    """One item for each call, beginning where its records do."""
    items, start = [], 0
    for (records, payload), time_ms in zip(calls, times_ms, strict=True):
        items.append(MetadataItem(start, time_ms, payload))
        start += len(records)
    return items


async def write_with_our_codecs(
    store: Store, rust: RustBuffer, compression: Compression
) -> list[Consumed]:
    """The batches of `BATCHES` and their manifest; gives what a consumer should see."""
    manifest, expected = Manifest(), []
    for number, calls in enumerate(BATCHES):
        location = f"{rust.prefix}/01J5T4R3KXBMZ7QV9N2WSP8YD{number}.batch"
        items = items_of(calls, [1_700_000_000_000 + number for _ in calls])
        await store.put(location, encode_batch(records_of(calls), compression))
        manifest = manifest.appended([(location, items)])
        plain = tuple((item.start_index, item.ingestion_time_ms, item.payload) for item in items)
        expected.append(Consumed(number, location, tuple(records_of(calls)), plain))
    await store.put(rust.manifest_key, encode_manifest(manifest))
    return expected


@S3
@BOTH
def test_what_rust_produces_is_read_by_our_codecs(rust: RustBuffer, compression: str) -> None:
    async def run() -> None:
        times_ms: list[list[int]] = []
        async with rust.producer(compression) as producer:
            for calls in BATCHES:
                times_ms.append([await producer.produce(*call) for call in calls])
                await producer.flush()
            await producer.close()
        async with open_store(rust.server.url) as store:
            data = bytes((await store.get(rust.manifest_key)).data)
            manifest = decode_manifest(data)
            assert (manifest.epoch, manifest.next_sequence) == (0, len(BATCHES))
            assert encode_manifest(Manifest(tuple(manifest.entries), len(BATCHES))) == data
            for number, entry in enumerate(manifest.entries):
                records = records_of(BATCHES[number])
                batch = bytes((await store.get(entry.location)).data)
                kind = Compression[compression.upper()]
                assert entry.sequence == number
                assert entry.location.startswith(f"{rust.prefix}/")
                assert entry.metadata == items_of(BATCHES[number], times_ms[number])
                assert read_footer(batch[-FOOTER_BYTES:]) == V1Footer(len(records), kind)
                assert decode_batch(batch).to_pylist() == records
                if kind is Compression.NONE:  # zstd's own releases differ in what they emit
                    assert encode_batch(records, kind) == batch

    with reaching(rust.server):
        asyncio.run(run())


@S3
@BOTH
def test_what_our_codecs_write_is_consumed_by_rust(rust: RustBuffer, compression: str) -> None:
    async def run() -> None:
        async with open_store(rust.server.url) as store:
            expected = await write_with_our_codecs(store, rust, Compression[compression.upper()])
            async with rust.consumer() as consumer:
                assert await consumer.rest() == expected
                await consumer.ack_through(1)
                assert await consumer.flush() == len(BATCHES) - 2
                await consumer.close()
            after = decode_manifest((await store.get(rust.manifest_key)).data)
            assert [entry.sequence for entry in after.entries] == [2, 3]
            assert (after.epoch, after.next_sequence) == (1, len(BATCHES))

    with reaching(rust.server):
        asyncio.run(run())


@S3
@BOTH
def test_batches_without_records_or_metadata_are_nothing_special(
    rust: RustBuffer, compression: str
) -> None:
    async def run() -> None:
        kind = Compression[compression.upper()]
        empty, bare = (f"{rust.prefix}/{name}.batch" for name in ("empty", "bare"))
        async with open_store(rust.server.url) as store:
            await store.put(empty, encode_batch([], kind))
            await store.put(bare, encode_batch([b"x"], kind))
            manifest = Manifest().appended([(empty, [MetadataItem(0, -1, b"m")]), (bare, [])])
            await store.put(rust.manifest_key, encode_manifest(manifest))
            async with rust.consumer() as consumer:
                assert await consumer.rest() == [
                    Consumed(0, empty, (), ((0, -1, b"m"),)),
                    Consumed(1, bare, (b"x",), ()),
                ]

    with reaching(rust.server):
        asyncio.run(run())


SKIPPED = bytes.fromhex("502a4d1803000000") + b"abc"


def packed(data: bytes) -> bytes:
    return bytes(compress(Compression.ZSTD, data))


AB, C = b"\2\0\0\0ab", b"\1\0\0\0c"
BLOCKS = {
    "no-frame": (b"", 0),
    "two-frames": (packed(AB) + packed(C), 2),
    "cut-in-a-record": (packed(AB[:5]) + packed(AB[5:] + C), 2),
    "skippable-between-and-after": (SKIPPED + packed(AB) + SKIPPED + packed(C) + SKIPPED, 2),
    "only-skippable": (SKIPPED, 0),
    "empty-frames": (packed(b"") + packed(AB) + packed(b""), 1),
    "bytes-after": (packed(AB) + b"xyz!", 1),
    "half-a-frame": (packed(AB) + packed(C)[:-1], 2),
    "nothing-and-half-a-frame": (packed(b"")[:5], 0),
}


@S3
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_zstd_frames_is_read_or_refused_by_both(rust: RustBuffer, name: str) -> None:
    block, count = BLOCKS[name]
    data = block + b"\1" + count.to_bytes(4, "little") + b"\1\0"

    async def run() -> None:
        location = f"{rust.prefix}/01J5T4R3KXBMZ7QV9N2WSP8YD0.batch"
        async with open_store(rust.server.url) as store:
            await store.put(location, data)
            manifest = Manifest().appended([(location, ())])
            await store.put(rust.manifest_key, encode_manifest(manifest))
        async with rust.consumer() as consumer:
            try:
                batch = await consumer.next()
            except RustError:
                with pytest.raises(Corrupt):
                    decode_batch(data)
                return
        assert batch is not None
        assert decode_batch(data).to_pylist() == list(batch.records)

    with reaching(rust.server):
        asyncio.run(run())


def seeded_manifest(draw: random.Random) -> Manifest:
    entries, sequence = [], draw.randrange(1 << 40)
    for _ in range(draw.randrange(4)):
        sequence += 1
        starts = sorted(
            draw.randrange(1 << draw.choice((1, 8, 32))) for _ in range(draw.randrange(4))
        )
        items = tuple(
            MetadataItem(
                start, draw.randrange(-(1 << 63), 1 << 63), draw.randbytes(draw.randrange(6))
            )
            for start in starts
        )
        location = "".join(draw.choice("az09/.-_é水") for _ in range(draw.randrange(20)))
        entries.append(ManifestEntry(sequence, location, items))
    return Manifest(tuple(entries), sequence + 1, draw.randrange(1 << 64))


def test_manifests_mean_the_same_to_both(rust_program: Path) -> None:
    async def run() -> None:
        draw = random.Random(7)
        async with parser(rust_program) as rust:
            for _ in range(300):
                manifest = seeded_manifest(draw)
                assert as_ours(await rust.manifest(encode_manifest(manifest))) == manifest

    asyncio.run(run())


def as_ours(view: dict[str, object]) -> Manifest:
    listed = view["entries"]
    assert isinstance(listed, list)
    entries = tuple(
        ManifestEntry(
            entry["sequence"],
            entry["location"],
            tuple(MetadataItem(*item) for item in metadata_of(entry)),
        )
        for entry in listed
    )
    next_sequence, epoch = view["next_sequence"], view["epoch"]
    assert isinstance(next_sequence, int)
    assert isinstance(epoch, int)
    return Manifest(entries, next_sequence, epoch)


def damaged(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2))):
        match draw.randrange(3):
            case 0 if changed:
                # Large counts make the library reserve memory for them until it is aborted.
                changed[draw.randrange(len(changed))] = draw.randrange(4)
            case 1:
                del changed[draw.randrange(len(changed) + 1) :]
            case _:
                changed.insert(draw.randrange(len(changed) + 1), draw.randrange(4))
    return bytes(changed)


def test_a_damaged_manifest_that_we_accept_means_the_same_to_rust(rust_program: Path) -> None:
    async def verdict(rust: Parser, data: bytes) -> Manifest | None:
        try:
            return as_ours(await rust.manifest(data))
        except RustError:
            return None

    async def run() -> None:
        draw = random.Random(11)
        accepted = 0
        for _ in range(20):
            async with parser(rust_program) as rust:
                for _ in range(50):
                    data = damaged(encode_manifest(seeded_manifest(draw)), draw)
                    try:
                        theirs = await verdict(rust, data)
                    except ToolDied:
                        # It panics on some lengths. So long as we refuse those, all is well.
                        with pytest.raises((Corrupt, NotSupported)):
                            decode_manifest(data)
                        break
                    try:
                        ours = decode_manifest(data)
                    except (Corrupt, NotSupported):
                        continue
                    accepted += 1
                    assert theirs == ours, data.hex()
        assert accepted > 100

    asyncio.run(run())
