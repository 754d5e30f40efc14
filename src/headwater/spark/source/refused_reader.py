"""What stands for a reader that could not be made: says why as soon as Spark asks it anything.

Spark's runner of streaming sources stops the reader whether or not it could be made: where making
it fails, a second error about a variable of the runner's own follows the one that counts.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headwater.core.errors import HeadwaterError
from headwater.spark import versions
from headwater.spark.plain_errors import plain


class RefusedReader(DataSourceStreamReader, versions.SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The source of a query that cannot run."""

    def __init__(self, error: HeadwaterError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Never."""
        self._refuse()

    def getDefaultReadLimit(self) -> Any:
        """Never."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        """Never."""
        self._refuse()

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, Any]:
        """Never."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Never."""
        self._refuse()

    def read(self, partition: InputPartition) -> Any:
        """Never."""
        self._refuse()

    @plain
    def _refuse(self) -> NoReturn:
        raise self._error
