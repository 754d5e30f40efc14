"""What a producer tells of itself, whether its calls are awaited or block."""

from __future__ import annotations

import logging
import warnings
from typing import Final

from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.engine import Engine
from headwater.buffer.producer.metrics import ProducerMetrics
from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.stream import Stream

_log: Final = logging.getLogger("headwater")


class AboutProducer:
    """Its stream, id, settings and counters; and a warning when it is dropped unclosed."""

    _engine: Engine

    @property
    def resumed(self) -> dict[int, ProducerState]:
        """By partition: how far the last producer under this id came."""
        return {lane.partition: lane.resumed for lane in self._engine.lanes}

    @property
    def producer_id(self) -> str:
        """The id under which batches are appended."""
        return self._engine.producer_id

    @property
    def stream(self) -> Stream:
        """The stream as the producer knows it, with what it learnt of columns since."""
        return self._engine.stream

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._engine.settings

    @property
    def metrics(self) -> ProducerMetrics:
        """What was done so far."""
        return self._engine.metrics

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream.name!r}, producer_id={self.producer_id!r})"

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            _warn_dropped(self, engine)

    def _fate(self) -> str:
        """What becomes of records that are not accepted when nobody holds the producer any more."""
        return "are lost when its event loop ends before they are"


def _warn_dropped(front: AboutProducer, engine: Engine) -> None:
    """Say what becomes of the records of a producer that nobody closed."""
    if engine.is_closed or engine.is_forked:
        return
    rows = engine.accumulator.untold_rows
    message = (
        f"a producer of stream {engine.stream.name!r} was dropped without close(): "
        f"{rows} records are not accepted, and {front._fate()}"
    )
    # Python shows no ResourceWarning unless it is asked to, and here it is about records.
    _log.warning("%s", message)
    warnings.warn(message, ResourceWarning, source=front, stacklevel=2)
