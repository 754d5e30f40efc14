"""Where a query stands in all partitions it reads: what Spark keeps in its checkpoint.

    {"closed": 1, "format": 2, "query": "9c41…", "step": 7,
     "streams": {"orders": {"id": "6f1b…", "partitions": {"0": {"lsn": 101, "sequence": 3}}}}}

Always holds: keys are sorted on every level, because Spark compares offsets as text, and the same
place spelled in another order is a micro-batch with nothing in it, for ever.

`closed` says that everything before the place was processed and acknowledged. Spark acknowledges a
micro-batch when the next one begins; where nothing follows, one that differs by this mark alone
makes it acknowledge the last.

`query` and `step` say whose offset it is, because Spark tells a source neither the query's id nor
the number of a micro-batch: a token that is drawn once for each checkpoint, and how many
micro-batches it has come to since (`checkpoint.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headwater.buffer.consumer import QueuePosition
from headwater.buffer.consumer.group import QueryStep
from headwater.core.errors import Refused

FORMAT: Final = 2


class StreamPartition(NamedTuple):
    """One partition of one stream."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"stream {self.stream!r}, partition {self.partition}"


class Offset(msgspec.Struct, frozen=True):
    """A place in each partition."""

    places: Mapping[StreamPartition, QueuePosition]
    ids: Mapping[str, str]
    """The id of each stream: another of the same name has other records at the same places."""
    closed: bool = False
    query: str = ""
    """The token of the checkpoint; empty in what is only reported."""
    step: int = 0
    """How many micro-batches led here."""

    @property
    def last_step(self) -> QueryStep:
        """The micro-batch that led here."""
        return QueryStep(self.step, self.closed)

    def to_json(self) -> dict[str, Any]:
        """What Spark is given: always in the same order."""
        streams: dict[str, Any] = {}
        for part in sorted(self.places, key=lambda part: (part.stream, str(part.partition))):
            stream = streams.setdefault(
                part.stream, {"id": self.ids[part.stream], "partitions": {}}
            )
            place = self.places[part]
            stream["partitions"][str(part.partition)] = {
                "lsn": place.lsn,
                "sequence": place.sequence,
            }
        mark = {"closed": 1} if self.closed else {}
        whose = {"query": self.query, "step": self.step}
        return {**mark, "format": FORMAT, **whose, "streams": streams}

    @classmethod
    def from_json(cls, given: object) -> Offset:
        """What Spark kept; `Refused` if it is not ours."""
        _check_format(given)
        try:
            kept = msgspec.convert(given, _StoredOffset, str_keys=True)
        except msgspec.ValidationError as error:
            raise Refused(
                f"the checkpoint has an offset that is not of this source ({error}): give the "
                "query a checkpoint of its own"
            ) from error
        places = {
            StreamPartition(name, partition): QueuePosition(place.sequence, place.lsn)
            for name, stream in kept.streams.items()
            for partition, place in stream.partitions.items()
        }
        ids = {name: stream.id for name, stream in kept.streams.items()}
        return cls(places, ids, bool(kept.closed), kept.query, kept.step)

    def moved(
        self, places: Mapping[StreamPartition, QueuePosition], ids: Mapping[str, str]
    ) -> Offset:
        """One micro-batch further, with these places instead or in addition."""
        return Offset(
            {**self.places, **places}, {**self.ids, **ids}, False, self.query, self.step + 1
        )

    def marked(self) -> Offset:
        """One micro-batch further, which has no rows: the same place, closed."""
        return Offset(self.places, self.ids, True, self.query, self.step + 1)


def _check_format(given: object) -> None:
    found = given.get("format") if isinstance(given, Mapping) else None
    if isinstance(found, int) and found > FORMAT:
        raise Refused(
            f"the checkpoint has offsets of format {found}, and this version reads format "
            f"{FORMAT}: upgrade Headwater"
        )
    if isinstance(found, int) and found < FORMAT:
        raise Refused(
            f"the checkpoint has offsets of format {found}, and this version reads format "
            f"{FORMAT}: give the query a new checkpoint; it goes on where its group stands"
        )


class _StoredPlace(msgspec.Struct, frozen=True):
    lsn: int
    sequence: int


class _StoredStream(msgspec.Struct, frozen=True):
    id: str
    partitions: dict[int, _StoredPlace]


class _StoredOffset(msgspec.Struct, frozen=True):
    query: str
    step: int
    streams: dict[str, _StoredStream]
    closed: int = 0
