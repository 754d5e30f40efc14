"""What Spark calls for `spark.readStream`, in the process that it keeps for a query's source.

Spark also makes one in its planning worker, only to send its `read` to the executors: making it
opens nothing, and what is sent has no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headwater.core import portal
from headwater.spark import versions
from headwater.spark.options import ReadOptions
from headwater.spark.plain_errors import plain
from headwater.spark.source.executor import Executor
from headwater.spark.source.limits import Limits
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset
from headwater.spark.source.shape import Shape
from headwater.spark.source.slices import SlicePartition
from headwater.spark.stores import store_at

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, versions.SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The source of one streaming query."""

    def __init__(self, options: ReadOptions, schema: StructType, shape: Shape | None) -> None:
        """Opens nothing, asks nobody."""
        self._options = options
        self._executor = Executor(options, schema, shape)
        self._live: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    @plain
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        return portal.shared().call(self._batches().initial()).to_json()

    def getDefaultReadLimit(self) -> Any:
        """The limit that the options ask for."""
        options = self._options
        return versions.default_limit(
            options.max_offsets_per_trigger, options.max_bytes_per_trigger
        )

    @plain
    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to where the streams end at this moment, and no further."""
        portal.shared().call(self._batches().fix_end())

    @plain
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch. Spark 4.1 does not say where it begins."""
        if start is None:
            return portal.shared().call(self._batches().latest_unasked()).to_json()
        return self._latest(Offset.from_json(start), limit).to_json()

    @plain
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the streams: with the end of a micro-batch, its lag."""
        if self._live is None:
            return None
        return portal.shared().call(self._live.report()).to_json()

    @plain
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, also of one that is run again."""
        since, until = Offset.from_json(start), Offset.from_json(end)
        return portal.shared().call(self._batches().plan(since, until))

    @plain
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has written down that everything before `end` is done."""
        portal.shared().call(self._batches().commit(Offset.from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, on an executor."""
        assert isinstance(partition, SlicePartition)
        return self._executor.read(partition)

    def _batches(self) -> MicroBatches:
        if self._live is None:
            self._live = MicroBatches(store_at(self._options.url), self._options)
        return self._live

    def _latest(self, start: Offset, limit: object) -> Offset:
        options = self._options
        limits = Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger)
        if versions.is_unlimited(limit):
            limits = Limits()
        return portal.shared().call(self._batches().latest(start, limits))
