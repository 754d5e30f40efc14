"""A producer of the demo: numbered records, each once, whoever is killed on the way.

    python -m headwater.cli.demo_producer URL STREAM ID RECORDS SECONDS REPORT

The metadata of every call is the number of its last record. A successor under the same id learns
the metadata of the last accepted call, and goes on with the number after it. A line goes to the
report only after the acceptance that it tells of.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Final

from headwater.buffer.producer import Handle, Producer
from headwater.cli.loop import run as run_loop
from headwater.core import runtime
from headwater.store import open_store

CALL_RECORDS: Final = 20


async def produce(
    url: str, stream: str, producer_id: str, records: int, seconds: float, report: str
) -> None:
    """Produce up to the given number, at an even pace."""
    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pace_s = seconds * CALL_RECORDS / records
    under_way: deque[tuple[int, int, Handle]] = deque()

    async def told(*, all_of_them: bool) -> None:
        while under_way and (all_of_them or under_way[0][2].is_done):
            first, last, handle = under_way.popleft()
            await handle
            os.write(descriptor, f"accepted {first} {last}\n".encode())

    async with (
        open_store(url) as store,
        await Producer.open(store, stream, producer_id=producer_id) as producer,
    ):
        done = int(producer.resumed[0].metadata or b"0")
        os.write(descriptor, f"resumed {done}\n".encode())
        while done < records:
            first, last = done + 1, min(done + CALL_RECORDS, records)
            values = [f"{producer_id}:{number}".encode() for number in range(first, last + 1)]
            handle = await producer.produce(values, metadata=b"%d" % last)
            under_way.append((first, last, handle))
            done = last
            await runtime.sleep(pace_s)
            await told(all_of_them=False)
        await told(all_of_them=True)
    os.close(descriptor)


if __name__ == "__main__":
    _url, _stream, _id, _records, _seconds, _report = sys.argv[1:]
    run_loop(produce(_url, _stream, _id, int(_records), float(_seconds), _report))
