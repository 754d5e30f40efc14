"""What commands load: those that need neither Arrow nor Spark do not wait for them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.buffer import Producer, create_stream, open_stream
from headwater.log import Spool
from headwater.store import open_store
from headwater.tier import TopicIdPartition, encode_event
from headwater.tier.eventlog import StoredEventLog
from tests.cli.conftest import Invoke
from tests.log.given import numbered, wait
from tests.tier.given import finished, started

HEAVY = {"numpy", "pandas", "pyarrow", "pydantic", "pyiceberg", "pyspark"}
PROGRAM = """
import json, sys
from headwater.cli import main

try:
    main()
finally:
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps(loaded), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """The packages that a command has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr  # 1: there are none
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "command",
    [
        "version",
        "--help",
        "stream --help",
        "store ls URL",
        "stream list URL",
        "stream list URL --json",
        "stream describe URL orders",
        "stream describe URL published",
        "stream create URL fresh",
        "stream create URL fresh --format v1",
        "stream alter URL orders --retention 3d",
        "lag URL orders",
        "lag URL orders --json",
        "group list URL orders",
        "gc URL orders",
        "gc URL published",
        "stream truncate URL orders --before 2 --yes",
        "stream delete URL orders --yes",
        "tier list URL orders",
        "tier compact URL",
        "tier renew URL --to-prefix moved",
        "inspect manifest MANIFEST",
        "inspect queue CHUNK",
        "inspect queue REGISTER",
        "inspect queue URL --stream orders",
        "inspect queue URL --stream published",
        "inspect event EVENT",
        "inspect event URL --metadata-partition 0",
        "log repair LOG",
    ],
)
def test_a_command_that_needs_no_arrow_loads_none(root: Path, tmp_path: Path, command: str) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    assert loaded_by(*_resolved(command, copy)) & HEAVY == set()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a stream of each format and a log of the tier's events; and a local log."""
    made = tmp_path_factory.mktemp("startup")
    asyncio.run(_fill(f"file://{made}/store"))
    spool = Spool.open(str(made / "log"))
    wait(spool.append(numbered(1, 3), term=1))
    wait(spool.close())
    return made


async def _fill(url: str) -> None:
    async with open_store(url) as store:
        for name, written in (("orders", "native"), ("published", "v1")):
            await create_stream(store, name, format=written)
            async with Producer(store, name) as producer:
                await producer.produce([b"a", b"b"])
        stream = await open_stream(store, "orders")
        partition = TopicIdPartition.of_stream(stream.id, "orders", 0)
        log = await StoredEventLog.open(store, partition_count=1)
        for event in (started(1, 1, 2, partition=partition), finished(1, partition=partition)):
            await log.publish(0, encode_event(event))
        await log.close()


def _resolved(command: str, root: Path) -> list[str]:
    """The words of a command, with the address and the objects that it names."""
    places = {
        "CHUNK": "store/streams/orders/0/ingest/*/chunks/*1",
        "EVENT": "store/metadata/0/*0",
        "LOG": "log",
        "MANIFEST": "store/streams/published/0/ingest/manifest",
        "REGISTER": "store/streams/orders/0/ingest/*/queue.json",
    }
    named = {word: str(next(root.glob(place))) for word, place in places.items()}
    return [(named | {"URL": f"file://{root}/store"}).get(word, word) for word in command.split()]


def test_help_and_plain_output_do_not_load_rich(invoke: Invoke, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    assert invoke("stream", "create", url, "orders").exit_code == 0
    for command in ("--help", "stream create --help", "version", f"store ls {url}"):
        assert "rich" not in loaded_by(*command.split())


def test_a_command_that_reads_records_loads_arrow(root: Path) -> None:
    assert "pyarrow" in loaded_by("read", f"file://{root}/store", "orders")
