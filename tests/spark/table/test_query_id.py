from __future__ import annotations

from typing import Any

import pytest

from headwater.core.errors import Bug, Refused
from headwater.spark.table_io import QueryId


class Batch:
    """A micro-batch whose session answers as Spark's does, and counts how often it is asked."""

    def __init__(self, running: str | None = None, kept: str | None = None) -> None:
        self.asked: list[str] = []
        self._running = running
        self._kept = kept

    sparkSession = property(lambda self: self)
    sparkContext = property(lambda self: self)
    read = property(lambda self: self)

    def getLocalProperty(self, name: str) -> str | None:
        self.asked.append(name)
        return self._running

    def text(self, path: str) -> Batch:
        self.asked.append(path)
        return self

    def first(self) -> tuple[str] | None:
        return None if self._kept is None else (self._kept,)


def test_a_query_of_this_process_tells_its_id_once() -> None:
    batch: Any = Batch(running="q")
    names = QueryId(None, is_remote=False)
    assert [names.of(batch), names.of(batch)] == ["q", "q"]
    assert batch.asked == ["sql.streaming.queryId"]


def test_a_query_of_a_remote_server_is_known_by_its_checkpoint() -> None:
    batch: Any = Batch(kept='{"id":"q"}')
    assert QueryId("/checkpoint", is_remote=True).of(batch) == "q"
    assert batch.asked == ["/checkpoint/metadata"]


def test_a_query_that_cannot_be_named_is_not_written() -> None:
    with pytest.raises(Refused, match="checkpoint_location="):
        QueryId(None, is_remote=True)
    nameless: Any = Batch()
    with pytest.raises(Refused, match="has no id of its query"):
        QueryId("/checkpoint", is_remote=True).of(nameless)
    with pytest.raises(Bug):
        QueryId(None, is_remote=False).of(nameless)
