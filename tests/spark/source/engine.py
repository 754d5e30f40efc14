"""What Spark does with a stream reader, step by step, and stopped at any of them.

The order of steps is that of Spark 4.3: the end of a micro-batch is written down, then the one
before it is committed to the source, then the tasks run, then the sink commits, then the batch is
written down as done. `initialOffset` is asked twice in the first batch. Offsets are compared and
kept as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from headwater.spark.data_source import StreamReader
from tests.spark.source.source_world import rows_of, values_of

POINTS: Final = ("planned", "acknowledged", "read", "sunk", "done")
"""After which steps the driver may be killed."""


class Killed(Exception):
    """The driver is gone."""


class Checkpoint:
    """What survives: Spark's own notes, and a sink that takes each batch once."""

    def __init__(self) -> None:
        self.offsets: dict[int, str] = {}
        self.done: set[int] = set()
        self.sink: dict[int, list[bytes]] = {}

    @property
    def values(self) -> list[bytes]:
        """Everything that the sink has, in order."""
        return [value for _, batch in sorted(self.sink.items()) for value in batch]


class Engine:
    """One run of a query."""

    def __init__(
        self,
        reader: StreamReader,
        checkpoint: Checkpoint,
        *,
        available_now: bool = True,
        kill: Callable[[int, str], bool] = lambda batch, point: False,
    ) -> None:
        self.reader = reader
        self.checkpoint = checkpoint
        self._kill = kill
        if available_now:
            reader.prepareForTriggerAvailableNow()
        self._limit = reader.getDefaultReadLimit()

    def run(self, max_batches: int = 50) -> int:
        """Micro-batches until nothing is new; returns how many there were."""
        for count in range(max_batches):
            if not self.step():
                return count
        return max_batches

    def step(self) -> bool:
        """One micro-batch; False if there is none."""
        notes = self.checkpoint
        number = len(notes.offsets)
        if notes.offsets and number - 1 not in notes.done:
            number -= 1
        else:
            start = self._start_of(number)
            end = json.dumps(self.reader.latestOffset(json.loads(start), self._limit))
            self.reader.reportLatestOffset()
            if end == start:
                return False
            notes.offsets[number] = end
            self._at(number, "planned")
            if number:
                self.reader.commit(json.loads(notes.offsets[number - 1]))
            self._at(number, "acknowledged")
        self._execute(number)
        return True

    def _execute(self, number: int) -> None:
        notes = self.checkpoint
        start, end = json.loads(self._start_of(number)), json.loads(notes.offsets[number])
        values = values_of(rows_of(self.reader, self.reader.partitions(start, end)))
        self._at(number, "read")
        notes.sink.setdefault(number, values)
        self._at(number, "sunk")
        notes.done.add(number)
        self._at(number, "done")

    def _start_of(self, number: int) -> str:
        if number:
            return self.checkpoint.offsets[number - 1]
        return json.dumps(self.reader.initialOffset())

    def _at(self, number: int, point: str) -> None:
        if self._kill(number, point):
            raise Killed(f"batch {number}, {point}")


def positions(offset: dict[str, Any], stream: str = "orders") -> dict[int, int]:
    """The next LSN of each partition of a stream."""
    found = offset["streams"][stream]["partitions"]
    return {int(number): lsn for number, lsn in found.items()}
