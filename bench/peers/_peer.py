"""What a peer is to a comparison: an empty log, ways to fill it, and ways to read it.

A way is called twice: once with its work, to connect and open what it needs, and then, while the
clock runs, to do it. Producing ends once every record is acknowledged, consuming once it holds them
all. What a peer has no call for is left out of its ways, not imitated.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import pyarrow as pa

LIST_RECORDS = 1000
ARROW_RECORDS = 10_000
GROUP_BYTES = 8 * 2**20
"""What peers that leave the grouping to the caller commit at once: as much as Headwater flushes."""

EACH = "produce one a call"
LISTS = f"produce lists of {LIST_RECORDS:,}"
ARROW = f"produce Arrow of {ARROW_RECORDS:,}"
TO_BYTES = "consume to bytes"
TO_ARROW = "consume to Arrow"


@dataclass(frozen=True)
class Records:
    """The same records in every shape that a peer takes, made before anything is timed."""

    size_bytes: int
    values: list[bytes]
    lists: list[list[bytes]]
    batches: list[pa.RecordBatch]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def group(self) -> int:
        """How many records a commit of GROUP_BYTES holds."""
        return max(1, GROUP_BYTES // self.size_bytes)

    def head(self, count: int) -> Records:
        """The first of them."""
        return shaped(self.values[:count], self.size_bytes)


def make_records(count: int, size_bytes: int) -> Records:
    """Random bytes, which nobody can compress: what is measured is moving them."""
    chance = random.Random(7)
    return shaped([chance.randbytes(size_bytes) for _ in range(count)], size_bytes)


def shaped(values: list[bytes], size_bytes: int) -> Records:
    """The records in all shapes."""
    lists = [values[at : at + LIST_RECORDS] for at in range(0, len(values), LIST_RECORDS)]
    batches = [
        pa.record_batch([pa.array(values[at : at + ARROW_RECORDS], pa.binary())], names=["payload"])
        for at in range(0, len(values), ARROW_RECORDS)
    ]
    return Records(size_bytes, values, lists, batches)


def joined(pages: Iterable[list[bytes]]) -> list[bytes]:
    """One list of all the pages."""
    return [value for page in pages for value in page]


def tabled(pages: Iterable[list[bytes]]) -> pa.Table:
    """One Arrow table of all the pages."""
    chunks = [pa.array(page, pa.binary()) for page in pages]
    return pa.table({"payload": pa.chunked_array(chunks, pa.binary())})


Consumed: TypeAlias = list[bytes] | pa.Table
Produce: TypeAlias = Callable[[Records], Callable[[], None]]
Consume: TypeAlias = Callable[[int], Callable[[], Consumed]]


class Peer(ABC):
    """One system under comparison."""

    name: ClassVar[str]
    promise: ClassVar[str]
    """What an acknowledged record survives, and by what setting."""
    is_ordered: ClassVar[bool] = True
    shares: ClassVar[dict[str, float]] = {}
    """Ways that are too slow for all the records: which part of them is run instead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:  # noqa: B027  a library has nothing to start
        """Install and start what is needed; `Unavailable` says why that cannot be."""

    def stop(self) -> None:  # noqa: B027
        """End what was started."""

    def server_pids(self) -> Sequence[int]:
        """The processes that work for this peer outside this one."""
        return ()

    @abstractmethod
    def empty(self) -> None:
        """Begin with an empty log; what was there before may go."""

    @abstractmethod
    def producing(self) -> dict[str, Produce]:
        """Ways to produce, in the order to run them: the last one's records are consumed."""

    @abstractmethod
    def consuming(self) -> dict[str, Consume]:
        """Ways to consume so many records from the beginning of the log."""
