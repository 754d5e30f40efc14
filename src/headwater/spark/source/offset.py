"""Offsets: a query's positions in all its partitions, as Spark stores them in the checkpoint.

    {"closed": 1, "format": 2, "query": "9c41…", "step": 7,
     "streams": {"orders": {"id": "6f1b…", "partitions": {"0": {"lsn": 101, "sequence": 3}}}}}

Always holds: keys are sorted on every level, because Spark compares offsets as text: with another
order of keys, the same position would cause empty micro-batches without end.

`closed` says that everything before the positions was processed and acknowledged. Spark commits a
micro-batch when the next one begins. If no records follow, an offset that differs only by this mark
makes Spark commit the last one.

`query` and `step` identify the checkpoint, because Spark passes a source neither the query's id nor
the number of a micro-batch: a token that is drawn once for each checkpoint, and the number of
micro-batches since (`checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headwater.buffer.consumer.progress import QueryStep
from headwater.buffer.queue.contract import QueuePosition
from headwater.core.errors import Refused

FORMAT: Final = 2


class StreamPartition(NamedTuple):
    stream: str
    partition: int

    def __str__(self) -> str:
        return f"stream {self.stream!r}, partition {self.partition}"


class Offset(msgspec.Struct, frozen=True):
    """All positions of a query, one in each partition. (Elsewhere an offset is one record's.)"""

    positions: Mapping[StreamPartition, QueuePosition]
    ids: Mapping[str, str]
    """The id of each stream: a later stream of the same name has other records."""
    closed: bool = False
    query: str = ""
    """The token of the checkpoint; empty if the offset is only reported."""
    step: int = 0
    """The number of micro-batches before this offset."""

    @property
    def last_step(self) -> QueryStep:
        """The micro-batch that ends here."""
        return QueryStep(self.step, self.closed)

    def to_json(self) -> dict[str, Any]:
        """The JSON for Spark."""
        # The order of the keys is the promise, in the literals too: each is sorted.
        streams: dict[str, Any] = {}
        for part in sorted(self.positions, key=lambda part: (part.stream, str(part.partition))):
            stream = streams.setdefault(
                part.stream, {"id": self.ids[part.stream], "partitions": {}}
            )
            position = self.positions[part]
            stream["partitions"][str(part.partition)] = {
                "lsn": position.lsn,
                "sequence": position.sequence,
            }
        closed = {"closed": 1} if self.closed else {}
        return {
            **closed,
            "format": FORMAT,
            "query": self.query,
            "step": self.step,
            "streams": streams,
        }

    @classmethod
    def from_json(cls, stored: object) -> Offset:
        """Parse what Spark stored; `Refused` if it is not ours."""
        _check_format(stored)
        try:
            offset = msgspec.convert(stored, _StoredOffset, str_keys=True)
        except msgspec.ValidationError as error:
            raise Refused(
                f"the checkpoint has an offset that is not of this source ({error}): give the "
                "query a checkpoint of its own"
            ) from error
        positions = {
            StreamPartition(name, partition): QueuePosition(position.sequence, position.lsn)
            for name, stream in offset.streams.items()
            for partition, position in stream.partitions.items()
        }
        ids = {name: stream.id for name, stream in offset.streams.items()}
        return cls(positions, ids, bool(offset.closed), offset.query, offset.step)

    def next(
        self, positions: Mapping[StreamPartition, QueuePosition], ids: Mapping[str, str]
    ) -> Offset:
        """The offset one micro-batch later, with these positions changed or added."""
        return Offset(
            {**self.positions, **positions}, {**self.ids, **ids}, False, self.query, self.step + 1
        )

    def closed_next(self) -> Offset:
        """The offset after an empty micro-batch: the same positions, closed."""
        return Offset(self.positions, self.ids, True, self.query, self.step + 1)


def _check_format(stored: object) -> None:
    version = stored.get("format") if isinstance(stored, Mapping) else None
    if isinstance(version, int) and version != FORMAT:
        older = "give the query a new checkpoint; it continues from its group's position"
        raise Refused(
            f"the checkpoint has offsets of format {version}, and this version reads format "
            f"{FORMAT}: {'upgrade Headwater' if version > FORMAT else older}"
        )


class _StoredPosition(msgspec.Struct, frozen=True):
    lsn: int
    sequence: int


class _StoredStream(msgspec.Struct, frozen=True):
    id: str
    partitions: dict[int, _StoredPosition]


class _StoredOffset(msgspec.Struct, frozen=True):
    query: str
    step: int
    streams: dict[str, _StoredStream]
    closed: int = 0
