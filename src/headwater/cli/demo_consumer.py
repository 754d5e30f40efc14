"""The consumer of the demo: writes what it is given into a ledger of its own.

    python -m headwater.cli.demo_consumer URL STREAM RECORDS LEDGER

A line of the ledger is one batch: its sequence, and the records. Whoever opens it next says through
which batch the ledger goes, and is given what follows: a batch that was delivered and not
acknowledged when its consumer was killed is neither lost nor written twice.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from headwater.buffer.consumer import Consumer
from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.store import open_store

GROUP: Final = "demo"
POLL_S: Final = 0.02


class Line(msgspec.Struct, frozen=True):
    """One batch, as the ledger has it."""

    sequence: int
    through: int
    """Records up to the end of this batch."""
    values: list[str]


async def consume(url: str, stream: str, records: int, ledger: str) -> None:
    """Deliver until the ledger holds this many records."""
    before = last_line(Path(ledger))
    through = before.through if before else 0
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    async with (
        open_store(url) as store,
        await Consumer.open(
            store, stream, group=GROUP, last_acked_sequence=before.sequence if before else None
        ) as consumer,
    ):
        while through < records:
            batch = await consumer.next_batch()
            if batch is None:
                await runtime.sleep(POLL_S)
                continue
            values = [value.decode() for value in batch.records.column("_value").to_pylist()]
            through += len(values)
            line = Line(batch.sequence, through, values)
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
            await consumer.ack(batch.sequence)
    os.close(descriptor)


def last_line(ledger: Path) -> Line | None:
    """The last whole line; a torn one after it is cut off."""
    if not ledger.exists():
        return None
    data = ledger.read_bytes()
    whole = data.rfind(b"\n") + 1
    os.truncate(ledger, whole)
    lines = data[:whole].splitlines()
    return msgspec.json.decode(lines[-1], type=Line) if lines else None


if __name__ == "__main__":
    _url, _stream, _records, _ledger = sys.argv[1:]
    run_loop(consume(_url, _stream, int(_records), _ledger))
