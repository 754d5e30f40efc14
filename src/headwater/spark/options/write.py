"""What a writer was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.core.errors import Refused
from headwater.spark.options.mode import Mode
from headwater.spark.options.parse import parse_options
from headwater.spark.options.table import SINK_BATCH_BYTES, SINK_TIMEOUT_MS


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of `df.write` and `df.writeStream`. Cheap, and safe to send elsewhere."""

    url: str
    topic: str
    txn_app_id: str | None = None
    txn_version: int | None = None
    sink_timeout_ms: int = SINK_TIMEOUT_MS
    compression: str | None = None
    """None for the stream's own."""
    batch_bytes: int = SINK_BATCH_BYTES

    @classmethod
    def parse(cls, given: Mapping[str, str], mode: Mode) -> WriteOptions:
        """From what Spark hands on; `Refused` says what to mend."""
        parsed = parse_options(given, mode)
        if parsed["topic"] is None:
            raise Refused('which stream? Name it: .option("topic", "orders")')
        app_id, version = parsed.get("txnAppId"), parsed.get("txnVersion")
        if (app_id is None) != (version is None):
            raise Refused("txnAppId and txnVersion say together which write this is: give both")
        return cls(
            url=parsed["url"],
            topic=parsed["topic"],
            txn_app_id=app_id,
            txn_version=version,
            sink_timeout_ms=parsed["sinkTimeout"],
            compression=parsed["compression"],
            batch_bytes=parsed["batchBytes"],
        )
