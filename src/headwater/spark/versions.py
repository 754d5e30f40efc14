"""What the installed Spark can do, detected by its modules and not by its version.

| | 4.3, 4.2 | 4.1 |
| --- | --- | --- |
| `latestOffset` | gets the start and a limit | gets neither: limits have no effect |
| AvailableNow | micro-batches within the limits | one micro-batch, acknowledged by the next run |
| lag in the query's progress | yes | no |
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_schema as _from_arrow_schema
from pyspark.sql.pandas.types import to_arrow_schema as _to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

_LIMITS: Final = "pyspark.sql.streaming.datasource"
HAS_LIMITS: Final = importlib.util.find_spec(_LIMITS) is not None
"""Whether Spark passes a source the start and the limit of a micro-batch."""
_limits: Any = importlib.import_module(_LIMITS) if HAS_LIMITS else None

SupportsTriggerAvailableNow: Any = _limits.SupportsTriggerAvailableNow if HAS_LIMITS else object
"""The base class of sources that can end at a fixed offset."""


def default_limit(max_rows: int | None, max_bytes: int | None) -> Any:
    """The limit in the options; Spark's classes can express only one."""
    if max_rows is not None:
        return _limits.ReadMaxRows(max_rows)
    return _limits.ReadAllAvailable() if max_bytes is None else _limits.ReadMaxBytes(max_bytes)


def is_unlimited(limit: object) -> bool:
    """Whether Spark asks for all records despite the options (`Trigger.Once`)."""
    return HAS_LIMITS and isinstance(limit, _limits.ReadAllAvailable)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for this schema."""
    if "timezone" in inspect.signature(_to_arrow_schema).parameters:
        return _to_arrow_schema(schema, timezone="UTC")
    return _to_arrow_schema(schema)


def spark_schema(columns: pa.Schema) -> StructType:
    """The Spark schema of these columns; timestamps without a zone stay such, also on 4.1."""
    return _from_arrow_schema(columns, prefer_timestamp_ntz=True)
