"""A producer of the demo: numbered orders, each exactly once, also if it is killed.

    python -m headwater.cli.demo.producer URL ID ORDERS SECONDS REPORT

The metadata of every call is the number of its last order. A successor under the same id learns the
metadata of the last accepted call, and goes on with the number after it. A line goes to the report
only after the acceptance that it tells of.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Final

import msgspec

from headwater.buffer.producer import Handle, Producer
from headwater.cli.demo.orders import STREAM, order_of
from headwater.cli.terminal import run_loop
from headwater.core import runtime
from headwater.store import open_store

CALLS: Final = 250
"""How many calls all of the orders take, however many they are."""


async def produce(url: str, producer_id: str, orders: int, seconds: float, report: str) -> None:
    """Produce up to the given number, at an even pace."""
    descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    each = max(1, orders // CALLS)
    pace_s = seconds * each / orders
    under_way: deque[tuple[int, int, Handle]] = deque()

    async def told(*, all_of_them: bool) -> None:
        while under_way and (all_of_them or under_way[0][2].is_done):
            first, last, handle = under_way.popleft()
            await handle
            os.write(descriptor, f"accepted {first} {last}\n".encode())

    async with (
        open_store(url) as store,
        await Producer.open(store, STREAM, producer_id=producer_id) as producer,
    ):
        done = int(producer.resumed[0].metadata or b"0")
        os.write(descriptor, f"resumed {done}\n".encode())
        while done < orders:
            first, last = done + 1, min(done + each, orders)
            made = [order_of(producer_id, number) for number in range(first, last + 1)]
            handle = await producer.produce(
                [msgspec.json.encode(one) for one in made],
                keys=[one.customer.encode() for one in made],
                metadata=b"%d" % last,
            )
            under_way.append((first, last, handle))
            done = last
            await runtime.sleep(pace_s)
            await told(all_of_them=False)
        await told(all_of_them=True)
    os.close(descriptor)


if __name__ == "__main__":
    _url, _id, _orders, _seconds, _report = sys.argv[1:]
    run_loop(produce(_url, _id, int(_orders), float(_seconds), _report))
