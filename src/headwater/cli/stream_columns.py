"""The columns of the stream that one run of `headwater produce` sends to.

A declared schema is closed: what it does not have is refused. What producers recorded is open: new
columns are added to it, and wider types. The rows of a text are checked before they are sent,
because only whoever reads it can name the line that is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headwater.buffer.producer import BlockingProducer
from headwater.core.errors import Refused


class StreamColumns:
    """What the stream says of its columns, as the producer of the run knows it."""

    def __init__(self, producer: BlockingProducer, alter: str) -> None:
        """`alter` is the command that declares a schema."""
        self._producer = producer
        self.alter = alter
        stream = producer.stream
        self.is_declared = stream.schema is not None and not stream.config.is_inferred

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name → type, of the columns that the stream has by now."""
        schema = self._producer.stream.schema
        return {} if schema is None else {field.name: field.type for field in schema}

    def check(self, records: pa.RecordBatch) -> None:
        """Refuse what the stream would; this records nothing, so rows can be tried."""
        self._producer.stream.taking_in(records.schema).fit(records)

    def record(self, records: pa.RecordBatch | pa.Table) -> None:
        """Let the stream record what these bring; `Refused` if others decided otherwise by now."""
        self._producer.fit(records)


def first_refused(rows: int, error_of: Callable[[int, int], Refused | None]) -> tuple[int, Refused]:
    """How many of the first rows are taken together, and what is wrong with the next one.

    `error_of(start, end)` says what is wrong with these rows, of which all together are refused.
    """
    low, high = 0, rows
    wrong = Refused("no row")
    while high - low > 1:
        middle = (low + high) // 2
        error = error_of(0, middle)
        if error is None:
            low = middle
        else:
            high, wrong = middle, error
    # By itself, if it is wrong by itself: then the error does not count other rows.
    return low, error_of(low, high) or error_of(0, high) or wrong
