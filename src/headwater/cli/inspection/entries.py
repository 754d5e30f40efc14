"""Whether the objects of a queue's entries are there: of the oldest and of the newest of them.

Every object takes a request, so only so many are asked for, and the report says how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from headwater.buffer.queue.contract import Descriptor, QueueReader, QueueState
from headwater.buffer.stream import Stream
from headwater.cli.inspection.report import Problem, Report
from headwater.core.errors import NotFound, RolledBack, Trimmed

LOOKED_AT: Final = 100
"""Of the oldest, and as many of the newest."""
PARALLEL: Final = 16


async def check_entries(
    report: Report, stream: Stream, looker: QueueReader, state: QueueState
) -> None:
    """Look for the objects of the oldest and the newest retained entries."""
    found = await _ends(looker, state)
    in_objects = [one for one in found if one.inline is None and not one.duplicate]
    retained = state.next_sequence - state.floor_sequence
    if len(found) < retained:
        report.notes.append(
            f"objects were looked for of the oldest {LOOKED_AT} and the newest {LOOKED_AT} of "
            f"{retained:,} retained batches, not of those between"
        )
    missing = await _missing(stream, in_objects)
    if not missing:
        return
    # What is gone by now may have been acknowledged and collected while it was looked for.
    floor = await looker.floor()
    gone = [one for one in missing if one.sequence >= floor]
    if gone:
        more = f", and those of {len(gone) - 1:,} others" if len(gone) > 1 else ""
        problem = RolledBack(
            f"{gone[0].location}, the object of batch {gone[0].sequence:,}, is missing{more}: a "
            "batch that is retained is never deleted"
        )
        advice = (
            "Restore it from a backup; or read past it with --skip-unreadable, which names what "
            "is lost."
        )
        report.problems.append(Problem.of(problem, "batch objects", advice=advice))


async def _ends(looker: QueueReader, state: QueueState) -> list[Descriptor]:
    """The oldest and the newest entries, each once."""
    while True:
        try:
            oldest = await looker.after(None, LOOKED_AT)
            seen = oldest[-1].sequence if oldest else -1
            start = max(seen, state.next_sequence - 1 - LOOKED_AT)
            return oldest + (await looker.after(start, LOOKED_AT) if oldest else [])
        except Trimmed:
            continue  # collected meanwhile: the oldest are others


async def _missing(stream: Stream, wanted: Sequence[Descriptor]) -> list[Descriptor]:
    async def is_missing(one: Descriptor) -> bool:
        try:
            # Other software may have chosen the name, where the format is not ours alone.
            await stream.store.head(one.location, foreign=one.format == "v1")
        except NotFound:
            return True
        return False

    missing: list[Descriptor] = []
    for first in range(0, len(wanted), PARALLEL):
        group = wanted[first : first + PARALLEL]
        answers = await asyncio.gather(*(is_missing(one) for one in group))
        missing += [one for one, answer in zip(group, answers, strict=True) if answer]
    return missing
