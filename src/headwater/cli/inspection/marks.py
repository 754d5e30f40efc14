"""Producers' marks, and whether they point at what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.buffer.queue.native.chunk import Chunk
from headwater.buffer.queue.native.producers import shard_register
from headwater.buffer.queue.native.registers import ProducerRecord
from headwater.buffer.stream import Stream
from headwater.cli.inspection.register import MARK_COLUMNS, mark_rows
from headwater.cli.inspection.report import Problem, Report, Rows
from headwater.core.errors import RolledBack

SHARDS_READ: Final = 64
PARALLEL: Final = 16
Part = Callable[[str, Awaitable[Any]], Awaitable[Any]]
"""Reads a part of the queue; None, and a problem in the report, if it is damaged or gone."""


@dataclass(slots=True)
class Marks:
    """What was read of the producers' records."""

    producers: dict[str, ProducerRecord] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    forgotten: int = 0
    is_all: bool = True


async def read_marks(stream: Stream, prefix: str, part: Part) -> Marks:
    """The records of producers, as far as they are read."""
    folder = f"{prefix}/producers"
    names = []
    async for meta in stream.store.list(folder):
        names.append(meta.key.removeprefix(f"{folder}/").removesuffix(".json"))
        if len(names) > SHARDS_READ:
            break
    marks = Marks(is_all=len(names) <= SHARDS_READ)
    for first in range(0, min(len(names), SHARDS_READ), PARALLEL):
        group = names[first : min(first + PARALLEL, SHARDS_READ)]
        reading = (
            part(f"producers/{name}.json", shard_register(stream.store, prefix, name).read())
            for name in group
        )
        for found in await asyncio.gather(*reading):
            if found is not None:
                marks.producers |= found.value.producers
                marks.rows += mark_rows(found.value)
                marks.forgotten += found.value.dropped
    marks.rows.sort(key=lambda row: -row[MARK_COLUMNS.index("seen_ms")])
    return marks


def check_marks(report: Report, marks: Marks, last: Chunk) -> None:
    """That no mark points beyond the last chunk, which was read after the marks."""
    beyond = [name for name, one in sorted(marks.producers.items()) if _is_beyond(one, last)]
    if not beyond:
        return
    more = f", and those of {len(beyond) - 1:,} others" if len(beyond) > 1 else ""
    problem = RolledBack(
        f"the mark of producer {beyond[0]!r} points beyond the end of the queue, which is chunk "
        f"{last.number:,} and sequence {last.next_sequence:,}{more}: a mark is written after its "
        "batch, so the end of the queue went back"
    )
    report.problems.append(Problem.of(problem, "producers' marks"))


def _is_beyond(producer: ProducerRecord, last: Chunk) -> bool:
    mark = producer.mark
    if producer.anchor > last.number:
        return True
    return mark is not None and (
        mark.chunk > last.number
        or mark.sequence >= last.next_sequence
        or mark.first_lsn > last.next_lsn
    )


def show_marks(report: Report, marks: Marks, shown: int) -> None:
    """The latest of them."""
    total = len(marks.rows) if len(marks.rows) > shown else None
    report.facts |= {"producers": len(marks.rows), "producers_forgotten": marks.forgotten}
    if marks.rows:
        report.tables.append(Rows("producers_marks", MARK_COLUMNS, marks.rows[:shown], total))
    if not marks.is_all:
        report.notes.append(f"only the first {SHARDS_READ} objects with producers' marks were read")
