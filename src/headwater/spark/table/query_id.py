"""Which streaming query a micro-batch belongs to: the id that its checkpoint keeps for ever."""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import DataFrame

from headwater.core.errors import Bug, Refused

_PROPERTY: Final = "sql.streaming.queryId"


class QueryId:
    """Finds the id of a query from within one of its micro-batches, once.

    A name that somebody chose, or the checkpoint's address, would not do: whoever deletes the
    checkpoint starts over with batch 0, which would be taken for the old one and never written.
    """

    def __init__(self, checkpoint_location: str | None, *, is_remote: bool) -> None:
        if is_remote and checkpoint_location is None:
            raise Refused(
                "on a remote server the query's id is read from its checkpoint: name one "
                "(checkpoint_location=…)"
            )
        self._found: str | None = None
        self._checkpoint_location = checkpoint_location
        self._is_remote = is_remote

    def of(self, batch: DataFrame) -> str:
        """The id of the query that this micro-batch belongs to."""
        if self._found is None:
            self._found = self._kept(batch) if self._is_remote else _running(batch)
        return self._found

    def _kept(self, batch: DataFrame) -> str:
        """The id that Spark wrote into the checkpoint before the first micro-batch."""
        kept = batch.sparkSession.read.text(f"{self._checkpoint_location}/metadata").first()
        if kept is None:
            raise Refused(f"the checkpoint {self._checkpoint_location} has no id of its query")
        return str(json.loads(kept[0])["id"])


def _running(batch: DataFrame) -> str:
    found = batch.sparkSession.sparkContext.getLocalProperty(_PROPERTY)
    if found is None:
        raise Bug("a micro-batch does not tell which query it belongs to")
    return str(found)
