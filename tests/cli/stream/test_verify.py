"""`headwater stream verify` reads everything that is retained, and finds what is damaged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.store import open_store
from tests.cli.conftest import Invoke

LARGE = "x" * 40_000
"""A record that does not ride in its entry."""


@pytest.fixture
def filled(url: str) -> str:
    async def fill() -> None:
        async with open_store(url) as store:
            await create_stream(store, "orders", partitions=2, linger_ms=0)
            async with Producer(store, "orders") as producer:
                for number in range(6):
                    row = {"id": number, "text": LARGE if number % 2 else "small"}
                    await (await producer.produce_rows([row], partition=number // 3))

    asyncio.run(fill())
    return url


def objects(tmp_path: Path, part: str) -> list[Path]:
    return sorted(path for path in (tmp_path / "store").rglob(f"{part}/*") if path.is_file())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_what_is_whole_is_read_to_its_end(invoke: Invoke, filled: str) -> None:
    result = invoke("stream", "verify", filled, "orders")
    assert result.exit_code == 0, result.stderr
    assert "read 6 batches of stream orders: 6 records" in result.stdout
    assert "0 damaged" in result.stdout
    found = json.loads(
        invoke("stream", "verify", filled, "orders", "--partition=1", "--json").stdout
    )
    assert (found["batches"], found["records"], found["bad"]) == (3, 3, [])
    assert invoke("stream", "verify", filled, "orders", "--partition=7").exit_code == 2


def test_each_flipped_bit_and_each_missing_batch_is_named(
    invoke: Invoke, filled: str, tmp_path: Path
) -> None:
    first, second, *_ = batches = objects(tmp_path, "batches")
    assert len(batches) == 3
    flip(first)
    second.unlink()
    result = invoke("stream", "verify", filled, "orders")
    assert result.exit_code == 1
    assert "read 6 batches" in result.stdout
    assert "2 damaged" in result.stdout
    assert result.stdout.count("LSNs ") == 2
    for name in (first.name, second.name):
        assert name in result.stdout
    assert "checksum" in result.stdout
    found = json.loads(invoke("stream", "verify", filled, "orders", "--json").stdout)
    assert len(found["bad"]) == 2
    assert found["records"] == 4


def test_a_damaged_queue_is_told_and_the_other_partition_read(
    invoke: Invoke, filled: str, tmp_path: Path
) -> None:
    chunk = max(
        (path for path in objects(tmp_path, "chunks") if "/orders/0/" in str(path)),
        key=lambda path: path.stat().st_size,
    )
    flip(chunk)
    result = invoke("stream", "verify", filled, "orders")
    assert result.exit_code == 1
    assert "partition 0: its queue cannot be read to the end" in result.stdout
    assert "read 3 batches" in result.stdout
