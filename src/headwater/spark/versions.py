"""What the Spark at hand can do, found by looking and not by its number.

| | 4.3, 4.2 | 4.1 |
| --- | --- | --- |
| `latestOffset` | is told the start and a limit | is told nothing: limits do not hold |
| AvailableNow | in micro-batches within the limits | one micro-batch, acknowledged by the next |
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
"""Whether Spark tells a source where to begin and how much it may read."""
_limits: Any = importlib.import_module(_LIMITS) if HAS_LIMITS else None

SupportsTriggerAvailableNow: Any = _limits.SupportsTriggerAvailableNow if HAS_LIMITS else object
"""What Spark asks whether a source can end at a fixed offset."""


def default_limit(max_rows: int | None, max_bytes: int | None) -> Any:
    """The limit that a source has by its options; Spark has none that says two things."""
    if max_rows is not None:
        return _limits.ReadMaxRows(max_rows)
    return _limits.ReadAllAvailable() if max_bytes is None else _limits.ReadMaxBytes(max_bytes)


def is_unlimited(limit: object) -> bool:
    """Whether Spark asks for everything, whatever the options say (`Trigger.Once`)."""
    return HAS_LIMITS and isinstance(limit, _limits.ReadAllAvailable)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects batches of this schema to have."""
    if "timezone" in inspect.signature(_to_arrow_schema).parameters:
        return _to_arrow_schema(schema, timezone="UTC")
    return _to_arrow_schema(schema)


def spark_schema(columns: pa.Schema) -> StructType:
    """The Spark schema of these columns; a time without a zone stays one, also on 4.1."""
    return _from_arrow_schema(columns, prefer_timestamp_ntz=True)
